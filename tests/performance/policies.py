"""Spot policies over availability traces: cost over the offline bound, missed deadlines, time of the replay.

    python tests/performance/policies.py --traces DIR --pooled DIR [--part single] [--every 10]

DIR has one folder per pool with JSON windows, as FrontierCS/Frontier-CS has them (`docs/deadlines.md` lists
formats); without it, generated windows are replayed. Windows of a recording overlap. They are halved by time:
those that end before `CUT_TICK`, or `CUT_TIME`, are for choosing constants, those that begin after it for
reporting. The others are left out.
"""

import gc
import json
import time
from argparse import ArgumentParser
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from importlib import import_module
from itertools import chain, pairwise, product
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean

from common import parser_of, verdict

from dlcloud.app.deadlines import load_windows, scale_counts
from dlcloud.model.instance import SLOW_BOOT_S, Market
from dlcloud.model.money import REGION_TRAFFIC_USD_PER_GB
from dlcloud.scheduling.deadline_scaling import LEAVING_S, RETURN_S, leave_region
from dlcloud.scheduling.policies import POLICIES, value
from dlcloud.scheduling.policies.situation import (
    HOUR_S,
    NO_MOVE,
    REFUSAL_S,
    Policy,
    PoolDecision,
    PoolState,
    Situation,
    move_of_state,
)
from dlcloud.scheduling.simulation.bound import least_cost_usd
from dlcloud.scheduling.simulation.generate import (
    adversarial_windows,
    generate_partial_window,
    generate_window,
)
from dlcloud.scheduling.simulation.replay import SimulatedJob, SimulatedOutcome, replay, replay_all
from dlcloud.scheduling.simulation.traces import PoolTrace, Window
from dlcloud.scheduling.spells import OFF, ON, Hazard, SpellFit

WORK_H = 48
CHANGEOVERS_S, REFUSALS_S = (720.0, 72.0, 1.8), (0.0, REFUSAL_S)
GOALS = {52.0: 1.08, 70.0: 1.05}
SIXTEEN_H = 40
SIXTEEN_GOALS = {44.0: 1.10, 60.0: 1.10}
"""Windows of several zones end after 60 hours, and have no spot from then on."""
SINGLE = SimulatedJob(work_s=WORK_H * HOUR_S, allowed_s=0, on_demand_usd=3.06, spot_usd=0.9731)
"""Source: Wu et al., "Can't Be Late", NSDI 2024: V100 in us-west-2."""
ZONES = ("us-east-1a", "us-east-1c", "us-east-1d", "us-east-1f")
"""The zones of one region with the most capacity: pooled for sixteen workers."""
PARTS = ("single", "sixteen", "regions", "live", "worst", "model", "known", "speed")

REGION_USD_PER_GB = float(REGION_TRAFFIC_USD_PER_GB)
CUT_TICK, CUT_TIME = 950, datetime(2023, 3, 10, 13, 20)  # noqa: DTZ001  as the recordings write it
"""Of the recordings of October 2022 in ticks, and of those of February 2023."""


def is_reporting(file: Path, window: Window) -> bool | None:
    """Return whether a window is for reporting; None if it has ticks of both halves."""
    start = json.loads(file.read_text())["metadata"]["start_time"]
    if isinstance(start, int):
        ticks = round(window.end_s / 600)
        return start >= CUT_TICK if start >= CUT_TICK or start + ticks <= CUT_TICK else None
    begin = datetime.fromisoformat(start)
    end = begin + timedelta(seconds=window.end_s)
    return begin >= CUT_TIME if begin >= CUT_TIME or end <= CUT_TIME else None


def half(windows: Iterable[Window], folder: Path | None, *, reporting: bool) -> list[Window]:
    """Return the windows of one half; all of those that were generated."""
    if folder is None:
        return list(windows)
    return [w for w in windows if is_reporting(next(folder.glob(f"**/{w.name}")), w) is reporting]


def print_ratios(
    title: str, job: SimulatedJob, windows: Sequence[Window], goal: float, names: Sequence[str]
) -> None:
    bound = fmean(least_cost_usd(job, window) for window in windows)
    costs, cells = {}, []
    for name in names:
        outcomes = replay_all(job, windows, POLICIES[name])
        costs[name] = fmean(outcome.usd for outcome in outcomes)
        late = sum(outcome.late_s > 0 for outcome in outcomes)
        cells.append(f"{name} {costs[name] / bound:.3f}" + (f" ({late} MISSED)" if late else ""))
    ratio = costs["elastic"] / bound
    missed = "met" if ratio <= goal else f"MISSED by {ratio - goal:.3f}"
    others = [costs[name] for name in names if name == "uniform-progress"]
    below = "" if not others else ", below UP" if costs["elastic"] < others[0] else ", NOT below UP"
    print(
        f"{title}: bound {bound / job.on_demand_cost_usd:.3f} of on-demand; over it: {', '.join(cells)}; "
        f"goal {goal} {missed}{below} (n={len(windows)})",
        flush=True,
    )


def single(windows: Sequence[Window]) -> None:
    for refusal_s, (hours, goal), changeover_s in product(REFUSALS_S, GOALS.items(), CHANGEOVERS_S):
        job = replace(SINGLE, allowed_s=hours * HOUR_S, changeover_s=changeover_s, refusal_s=refusal_s)
        title = f"refusal {refusal_s:g} s, {hours:g} h, changeover {changeover_s:g} s"
        print_ratios(title, job, windows, goal, ("greedy", "uniform-progress", "elastic"))


def sixteen(windows: Sequence[Window]) -> None:
    work_s = 16 * SIXTEEN_H * HOUR_S
    for refusal_s, (hours, goal) in product(REFUSALS_S, SIXTEEN_GOALS.items()):
        job = replace(SINGLE, work_s=work_s, allowed_s=hours * HOUR_S, maximum=16, refusal_s=refusal_s)
        title = f"16 workers, refusal {refusal_s:g} s, {hours:g} h"
        names = ("gang", "uniform-progress", "elastic")
        print_ratios(title, replace(job, changeover_s=1.8), windows, goal, names)


STATES_GB = (0.3, 4.0, 112.0)
"""Of ResNet-50 and BERT-large with Adam, and of 7e9 parameters."""
HOME_REGION = "us-east-1"
REGIONS_GOAL, SAVED_GOAL, MOST_WINDOWS = 1.10, 0.30, 1000


def regions(windows: Sequence[Window]) -> None:
    """Print the cost over several Regions by a policy that sees all of them."""

    def run(job: SimulatedJob, window: Window) -> SimulatedOutcome:
        return replay(job, window, POLICIES["elastic"])

    print_over_regions("regions", windows, run, {"": STATES_GB})


def live(windows: Sequence[Window]) -> None:
    """Print the same of the decisions of a running training: see `OneRegionAtATime`.

    A state of 0 GB is one that was copied ahead; the copies are not billed.
    """
    names = [pool.region for pool in windows[0].pools]

    def run(job: SimulatedJob, window: Window) -> SimulatedOutcome:
        return replay(as_it_runs(job), window, OneRegionAtATime(names))

    print_over_regions("live", windows, run, {"": STATES_GB, " with a state copied ahead": (0.0,)})


def print_over_regions(
    part: str,
    windows: Sequence[Window],
    run: Callable[[SimulatedJob, Window], SimulatedOutcome],
    sizes: dict[str, tuple[float, ...]],
) -> None:
    """Print the cost against the bound with moves, and against one of the Regions alone.

    Then how many of 1,000 shorter jobs are late that begin anywhere in the windows, by size of state in GB.
    """
    alone = [replace(w, pools=tuple(p for p in w.pools if p.region == HOME_REGION)) for w in windows]
    for refusal_s, changeover_s in product(REFUSALS_S, CHANGEOVERS_S):
        one = replace(SINGLE, allowed_s=52 * HOUR_S, changeover_s=changeover_s, refusal_s=refusal_s)
        confined = fmean(outcome.usd for outcome in replay_all(one, alone, POLICIES["elastic"]))
        for gb in sorted(set(chain.from_iterable(sizes.values()))):
            job = replace(one, move=move_of_state(gb, usd_per_gb=REGION_USD_PER_GB))
            bound = fmean(least_cost_usd(job, window) for window in windows)
            outcomes = [run(job, window) for window in windows]
            usd, missed = fmean(o.usd for o in outcomes), sum(o.late_s > 0 for o in outcomes)
            is_met = usd <= REGIONS_GOAL * bound and usd <= (1 - SAVED_GOAL) * confined and not missed
            print(
                f"{part}, refusal {refusal_s:g} s, 52 h, changeover {changeover_s:g} s, state of {gb:g} GB: "
                f"over the bound {usd / bound:.3f}, over {HOME_REGION} alone {usd / confined:.3f}, {missed} "
                f"missed; goals {REGIONS_GOAL}, {1 - SAVED_GOAL:g}, 0 {verdict(is_met)} (n={len(windows)})",
                flush=True,
            )
    for title, some in sizes.items():
        missed = sum(run(job, window).late_s > 0 for job, window in hard_jobs(windows, some))
        print(f"{part}, {MOST_WINDOWS} jobs of 10 h{title}: {missed} missed; goal 0 {verdict(not missed)}")


def hard_jobs(windows: Sequence[Window], sizes: Sequence[float]) -> Iterator[tuple[SimulatedJob, Window]]:
    """Yield 1,000 jobs of 10 h that begin anywhere in the windows, with little time and refusals.

    Their states have one of `sizes` in GB.
    """
    chance = Random(1)
    for place in range(MOST_WINDOWS):
        window = shifted(windows[place % len(windows)], chance.uniform(0, 40 * HOUR_S))
        move = move_of_state(chance.choice(sizes), usd_per_gb=REGION_USD_PER_GB)
        job = replace(
            SINGLE,
            work_s=10 * HOUR_S,
            allowed_s=chance.uniform(11.5, 15) * HOUR_S,
            changeover_s=chance.choice(CHANGEOVERS_S),
            move=move,
            refuse_first_s=chance.choice((0.0, HOUR_S)),
        )
        yield job, window


CHECKPOINT_S = 60.0
"""The recipe's default: on average half of it is trained again after a move."""


class OneRegionAtATime:
    """A training over Regions as `up` runs it: the policy has the pools of one Region, until all are empty.

    Then `leave_region` decides, as in a running training. A Region that was left is not asked for
    `RETURN_S`. The next one is the cheapest that has spot, or the cheapest. What a policy has seen of pools
    is what the trace shows.
    """

    def __init__(self, regions: Iterable[str]) -> None:
        self.regions, self.home = list(dict.fromkeys(regions)), ""
        self.left_s: dict[str, float] = {}

    def __call__(self, situation: Situation) -> PoolDecision:
        if not self.home:
            self.home = self.next_of(situation, self.regions)
        policy, own = POLICIES["elastic"], self.seen_from_home(situation)
        is_empty = not any(pool.obtainable for pool in own.pools if pool.market is Market.SPOT)
        until_s = situation.time_left_s + RETURN_S
        others = [
            name for name in self.regions if name != self.home and self.left_s.get(name, inf) >= until_s
        ]
        if is_empty and others and situation.region:
            usd = {name: min(pool.hourly_usd for pool in pools_in(situation, name)) for name in others}
            moves = dict.fromkeys(others, situation.move)
            if leave_region(policy, own, home=self.home, elsewhere=usd, moves=moves) is not None:
                self.left_s[self.home] = situation.time_left_s
                self.home = self.next_of(situation, others)
                own = self.seen_from_home(situation)
        return policy(own)

    def next_of(self, situation: Situation, regions: Iterable[str]) -> str:
        def cost(name: str) -> tuple[bool, float]:
            pools = pools_in(situation, name)
            offered = [pool.hourly_usd for pool in pools if pool.obtainable]
            return not offered, min(offered or [pool.hourly_usd for pool in pools])

        return min(regions, key=cost)

    def seen_from_home(self, situation: Situation) -> Situation:
        fixed = [pool for pool in situation.pools if pool.market is not Market.SPOT]
        own = [replace(pool, region="") for pool in pools_in(situation, self.home)]
        # The time of a move passes when it is decided; the replay bills it once workers have joined.
        is_moving = situation.region not in {"", self.home}
        left_s = situation.time_left_s - (situation.move.seconds if is_moving else 0.0)
        return replace(situation, pools=(*own, *fixed), region="", move=NO_MOVE, time_left_s=left_s)


def pools_in(situation: Situation, region: str) -> list[PoolState]:
    return [pool for pool in situation.pools if pool.market is Market.SPOT and pool.region == region]


def as_it_runs(job: SimulatedJob) -> SimulatedJob:
    """Return a job whose moves also take the end of a cluster, a boot, and steps that are taken again."""
    seconds = job.move.seconds + LEAVING_S + SLOW_BOOT_S + CHECKPOINT_S / 2
    return replace(job, move=replace(job.move, seconds=seconds))


def shifted(window: Window, by_s: float) -> Window:
    """Return what is left of a window after a time."""

    def rest(pool: PoolTrace) -> PoolTrace:
        first = bisect_right(pool.starts_s, by_s) - 1
        return replace(
            pool,
            starts_s=tuple(max(0.0, at_s - by_s) for at_s in pool.starts_s[first:]),
            counts=pool.counts[first:],
            prices=None if pool.prices is None else pool.prices[first:],
            end_s=pool.end_s - by_s,
        )

    return replace(window, pools=tuple(map(rest, window.pools)))


def worst(windows: Sequence[Window]) -> None:
    """Print how many windows elastic misses: given and worst ones, with on-demand refused for an hour."""
    for hours in GOALS:
        cases = [*adversarial_windows(hours=hours), *windows]
        for changeover_s in CHANGEOVERS_S:
            job = replace(SINGLE, allowed_s=hours * HOUR_S, changeover_s=changeover_s)
            jobs = {"never refused": job, "first request refused": replace(job, refuse_first_s=HOUR_S)}
            for begin_h in range(1, int(hours), 7):
                refusals = ((begin_h * HOUR_S, (begin_h + 1) * HOUR_S),)
                jobs[f"refused from hour {begin_h}"] = replace(job, refusals=refusals)
            missed = {
                case: sum(outcome.late_s > 0 for outcome in replay_all(hard, cases, POLICIES["elastic"]))
                for case, hard in jobs.items()
            }
            print(
                f"{hours:g} h, changeover {changeover_s:g} s: {sum(missed.values())} missed of "
                f"{len(cases) * len(jobs)} ({len(cases)} windows, {len(jobs)} kinds of refusal)",
                flush=True,
            )


def speed(windows: Sequence[Window]) -> None:
    """Print the processor time of a thousand windows, for 1 and 16 workers: every policy, and the bound."""
    thousand = [windows[place % len(windows)] for place in range(1000)]
    job = replace(SINGLE, allowed_s=70 * HOUR_S, changeover_s=1.8)
    speed_of("1 worker", job, thousand)
    partial = [generate_partial_window(seed, hours=72, pools=3, count=16) for seed in range(1000)]
    work_s = 16 * WORK_H * HOUR_S
    slow = replace(SINGLE, work_s=work_s, allowed_s=52.8 * HOUR_S, maximum=16, changeover_s=72.0, boot_s=44.0)
    speed_of("16 workers, generated windows of three pools", slow, partial)


def speed_of(title: str, job: SimulatedJob, windows: Sequence[Window]) -> None:
    total, longest_s = 0.0, 0.0
    gc.freeze()  # a controller's memory has no thousand windows, which the collector would look through

    def elastic(situation: Situation) -> PoolDecision:
        nonlocal longest_s
        begun = time.process_time()
        decision = POLICIES["elastic"](situation)
        longest_s = max(longest_s, time.process_time() - begun)
        return decision

    for name in [*POLICIES, "offline bound"]:
        begun = time.process_time()
        if name in POLICIES:
            replay_all(job, windows, elastic if name == "elastic" else POLICIES[name])
        else:
            _ = [least_cost_usd(job, window) for window in windows]
        seconds = time.process_time() - begun
        total += seconds
        print(f"{title}, a thousand windows, {name}: {seconds:.1f} s of one core", flush=True)
    print(
        f"{title}, a thousand windows, the whole table: {total:.1f} s; goal 120 "
        f"{verdict(total <= 120)}; a decision takes {1000 * longest_s:.0f} ms at most, goal 50"
    )


def model(windows: Sequence[Window]) -> None:
    """Print what no policy can reach that does not know the future, if spot is what the policy believes.

    Each window is replaced by one that is drawn from the spells fitted to it. `elastic` then plans with the
    very distribution that the spells come from, once knowing their factors, once learning them.
    """
    random = Random(1)
    drawn = [(factors, draw_window(factors, random)) for factors in map(fit_window, windows)]
    for refusal_s, hours in product(REFUSALS_S, GOALS):
        job = replace(SINGLE, allowed_s=hours * HOUR_S, changeover_s=CHANGEOVERS_S[0], refusal_s=refusal_s)
        bound = fmean(least_cost_usd(job, window) for _, window in drawn)
        knowing = fmean(replay(job, window, tell(factors)).usd for factors, window in drawn)
        texts = [f"elastic knowing the factors {knowing / bound:.3f}"]
        for name in ("elastic", "uniform-progress"):
            usd = fmean(replay(job, window, POLICIES[name]).usd for _, window in drawn)
            texts.append(f"{name} {usd / bound:.3f}")
        title = f"drawn windows, refusal {refusal_s:g} s, {hours:g} h, changeover {CHANGEOVERS_S[0]:g} s"
        print(f"{title}: over the bound {', '.join(texts)} (n={len(drawn)})", flush=True)


def known(windows: Sequence[Window], others: Sequence[Window]) -> None:
    """Print what `elastic` costs in the real windows if it is told how often spells end, by their age.

    That is, the rates of the zone in the other half of the recording, which are knowledge of the past; those
    of the zone in this half; and those of the window alone, which are knowledge of its future.
    """
    sources = {
        "elastic": lambda _: None,
        "told the rates of the zone in the other half": lambda w: [o for o in others if zone(o) == zone(w)],
        "told those of the zone in this half": lambda w: [o for o in windows if zone(o) == zone(w)],
        "told those of the window": lambda w: [w],
    }
    for hours in GOALS:
        job = replace(SINGLE, allowed_s=hours * HOUR_S, changeover_s=CHANGEOVERS_S[0], refusal_s=0.0)
        bound = fmean(least_cost_usd(job, window) for window in windows)
        texts = []
        for name, source in sources.items():
            costs, last = [], None
            for window in windows:
                told = source(window)
                if told is not None and [w.name for w in told] != last:
                    use_rates(fit_rates(told, is_on=True), fit_rates(told, is_on=False))
                    last = [w.name for w in told]
                policy = POLICIES["elastic"] if told is None else tell((1.0, 1.0, True))
                costs.append(replay(job, window, policy).usd)
            texts.append(f"{name} {fmean(costs) / bound:.3f}")
        use_rates(ON, OFF)
        policies = [POLICIES["elastic"], POLICIES["uniform-progress"]]
        best = fmean(min(replay(job, window, policy).usd for policy in policies) for window in windows)
        texts.append(f"the cheaper of elastic and Uniform Progress, chosen afterwards {best / bound:.3f}")
        print(
            f"{hours:g} h, changeover {CHANGEOVERS_S[0]:g} s: over the bound {', '.join(texts)}", flush=True
        )


def zone(window: Window) -> str:
    return window.name.partition("/")[0]


def fit_rates(windows: Sequence[Window], *, is_on: bool) -> Hazard:
    """Return how often an hour spells of some windows end, by seven or eight classes of age."""
    edges = (1 / 6, 1 / 3, 1 / 2, 1.0, 1.5, 3.0, 6.0) if is_on else (1 / 6, 1 / 3, 1 / 2, 1.0, 2.0, 4.0)
    spells = []
    for window in windows:
        trace = window.pools[0]
        until = (*trace.starts_s[1:], trace.end_s)
        spells += [
            ((end - begin) / HOUR_S, end < trace.end_s)
            for begin, end, count in zip(trace.starts_s, until, trace.counts, strict=True)
            if (count > 0) is is_on
        ]
    hourly = []
    for begin, end in pairwise((0.0, *edges, inf)):
        exposure = sum(max(0.0, min(length, end) - begin) for length, _ in spells)
        # A tenth of an end in 0.3 hours is added, so that no rate is 0.
        hourly.append(
            (0.1 + sum(has_ended and begin < h <= end for h, has_ended in spells)) / (0.3 + exposure)
        )
    return Hazard(edges_h=edges, hourly=tuple(hourly))


def use_rates(on: Hazard, off: Hazard) -> None:
    for module in (value, import_module("dlcloud.scheduling.policies.elastic")):
        module.ON, module.OFF = on, off
    value.value_table.cache_clear()


Factors = tuple[float, float, bool]
"""How many times as often as usual spells with and without spot end; True if the window begins with one."""


def fit_window(window: Window) -> Factors:
    """Fit the spells of a window's first pool as the policy does at its end."""
    trace = window.pools[0]
    begins = [
        (at_s, count > 0)
        for place, (at_s, count) in enumerate(zip(trace.starts_s, trace.counts, strict=True))
        if not place or (count > 0) != (trace.counts[place - 1] > 0)
    ]
    fits = {True: SpellFit(ON), False: SpellFit(OFF)}
    for (begin_s, is_on), (end_s, _) in pairwise(begins):
        fits[is_on].end(end_s - begin_s)
    last_s, is_on = begins[-1]
    ages = {is_on: trace.end_s - last_s, not is_on: 0.0}
    return fits[True].factor(ages[True]), fits[False].factor(ages[False]), begins[0][1]


def draw_window(factors: Factors, random: Random, hours: float = 92.0) -> Window:
    """Return a window whose spells have the distribution that the policy believes in (`spells`)."""
    on_factor, off_factor, is_on = factors
    at_s, starts, counts = 0.0, [], []
    while at_s < hours * HOUR_S:
        starts.append(at_s)
        counts.append(int(is_on))
        at_s += HOUR_S * draw_spell(*((ON, on_factor) if is_on else (OFF, off_factor)), random)
        is_on = not is_on
    trace = PoolTrace(name="drawn", starts_s=tuple(starts), counts=tuple(counts), end_s=hours * HOUR_S)
    return Window(name="drawn", pools=(trace,))


def draw_spell(hazard: Hazard, factor: float, random: Random) -> float:
    """Return the hours of a spell: its expected ends are exponentially distributed."""
    ends, age_h = random.expovariate(factor), 0.0
    for hourly, edge_h in zip(hazard.hourly, (*hazard.edges_h, inf), strict=True):
        if ends <= hourly * (edge_h - age_h):
            return age_h + ends / hourly
        ends -= hourly * (edge_h - age_h)
        age_h = edge_h
    return age_h


def tell(factors: Factors) -> Policy:
    """Return `elastic` that knows the factors of all spot pools from the start."""

    def decide(situation: Situation) -> PoolDecision:
        pools = [
            replace(
                pool, availability=replace(pool.availability, on_factor=factors[0], off_factor=factors[1])
            )
            for pool in situation.pools
        ]
        return POLICIES["elastic"](replace(situation, pools=tuple(pools)))

    return decide


def single_windows(folder: Path | None) -> list[Window]:
    if folder is None:
        return [generate_window(seed, hours=92) for seed in range(300)]
    return [window for window in load_windows(folder) if window.end_s >= max(GOALS) * HOUR_S]


def pooled_windows(folder: Path | None) -> list[Window]:
    if folder is None:
        return scale_counts([generate_window(seed, hours=72, pools=3) for seed in range(100)], 16)
    return in_zones(scale_counts(load_windows(folder, pooled=True), 16), ZONES)


def in_zones(windows: Sequence[Window], zones: tuple[str, ...]) -> list[Window]:
    """Return windows with the pools of some zones alone, where they have them."""
    chosen = []
    for window in windows:
        pools = tuple(pool for pool in window.pools if pool.name.startswith(zones))
        chosen.append(replace(window, pools=pools) if pools else window)
    return chosen


def add_sources(parser: ArgumentParser) -> None:
    """Let a program be told which windows to replay."""
    parser.add_argument("--traces", type=Path, help="a folder of windows of one zone each")
    parser.add_argument("--pooled", type=Path, help="a folder with a folder of aligned windows per zone")
    parser.add_argument("--half", choices=("choosing", "reporting"), default="reporting")


def main() -> None:
    parser = parser_of(__doc__)
    add_sources(parser)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--every", type=int, default=1, help="only every so many windows")
    options = parser.parse_args()
    parts, reporting = options.part or PARTS, options.half == "reporting"

    def chosen(windows: list[Window], folder: Path | None, *, reporting: bool = reporting) -> list[Window]:
        return half(windows, folder, reporting=reporting)[:: options.every]

    alone = single_windows(options.traces)
    windows = chosen(alone, options.traces)
    for name, run in {"single": single, "worst": worst, "model": model, "speed": speed}.items():
        if name in parts:
            run(windows)
    if "sixteen" in parts:
        sixteen(chosen(pooled_windows(options.pooled), options.pooled))
    for name, run in {"regions": regions, "live": live}.items():
        if name in parts:
            run(chosen(load_windows(options.pooled, pooled=True), options.pooled))
    if "known" in parts:
        known(windows, chosen(alone, options.traces, reporting=not reporting))


if __name__ == "__main__":
    main()
