"""What deadlines are expected to cost: the policy replayed over windows, by deadline and choice of pools."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from math import isfinite
from statistics import fmean

from dlcloud.model.instance import Market, Price
from dlcloud.scheduling.policies.situation import HOUR_S, Policy, PoolDecision, Situation
from dlcloud.scheduling.simulation.generate import MEAN_DOWN_H, MEAN_UP_H
from dlcloud.scheduling.simulation.replay import SimulatedJob, replay
from dlcloud.scheduling.simulation.trace import PoolTrace, Window

AVAILABILITY = MEAN_UP_H / (MEAN_UP_H + MEAN_DOWN_H)
"""The assumed share of the time in which a pool has capacity, where nothing is known: that of the V100 traces
of Wu et al., "Can't Be Late", NSDI 2024."""
CYCLE_H = MEAN_UP_H + MEAN_DOWN_H
"""The assumed mean time from the beginning of a spell with capacity to that of the next."""
BEST_SCORE = 10
SPREAD = 0.1
"""The spread of a cost leaves out this share of the windows at either end."""
MOST_SINGLE = 12
"""More pools are not compared one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineCost:
    """One deadline with one choice of pools.

    Attributes:
        hours: From the start to the deadline.
        pools: The choice.
        windows: Replayed.
        usd: Mean cost; `low_usd` and `high_usd` leave out a tenth of the windows at either end.
        on_demand_usd: All on-demand from the start.
        finished_h: Mean time to the end.
        missed: Windows that ended after the deadline.
    """

    hours: float
    pools: str
    windows: int
    usd: float
    low_usd: float
    high_usd: float
    on_demand_usd: float
    finished_h: float
    missed: int

    @property
    def over_on_demand(self) -> float:
        return self.usd / self.on_demand_usd


def keep_base(policy: Policy, base: int) -> Policy:
    """Return a policy that never leaves the on-demand instances that coordinate a training."""

    def kept(situation: Situation) -> PoolDecision:
        pools, left = [], base
        for pool in situation.pools:
            keep = left if pool.market is Market.ON_DEMAND else 0
            left -= keep
            pools.append(replace(pool, keep=keep))
        return policy(replace(situation, pools=tuple(pools)))

    return kept


def choose_pools(windows: Sequence[Window]) -> dict[str, list[Window]]:
    """Return the windows by choice of pools: all of them, and each alone if there are some, but not many."""
    names = list(dict.fromkeys(pool.name for window in windows for pool in window.pools))
    if max(len(window.pools) for window in windows) < 2:  # noqa: PLR2004  there is no choice
        return {names[0] if len(names) == 1 else "one pool": list(windows)}
    choices = {f"all {len(names)} pools": list(windows)}
    for name in names if len(names) <= MOST_SINGLE else ():
        alone = [replace(w, pools=tuple(p for p in w.pools if p.name == name)) for w in windows]
        choices[name] = [window for window in alone if window.pools]
    return choices


def cost_of_deadlines(
    job: SimulatedJob, hours: Sequence[float], choices: Mapping[str, Sequence[Window]], policy: Policy
) -> list[DeadlineCost]:
    """Replay a job with each deadline over each choice; at most a tenth of the time is kept for refusals."""
    return [
        _cost(
            replace(job, allowed_s=h * HOUR_S, refusal_s=min(job.refusal_s, h * HOUR_S / 10)),
            name,
            windows,
            policy,
        )
        for h in hours
        for name, windows in choices.items()
    ]


def _cost(job: SimulatedJob, name: str, windows: Sequence[Window], policy: Policy) -> DeadlineCost:
    outcomes = [replay(job, window, policy) for window in windows]
    costs = sorted(outcome.usd for outcome in outcomes)
    cut = int(len(costs) * SPREAD)
    finished = [outcome.finished_s for outcome in outcomes if isfinite(outcome.finished_s)]
    return DeadlineCost(
        hours=job.allowed_s / HOUR_S,
        pools=name,
        windows=len(costs),
        usd=fmean(costs),
        low_usd=costs[cut],
        high_usd=costs[-1 - cut],
        on_demand_usd=job.on_demand_cost_usd,
        finished_h=fmean(finished) / HOUR_S if finished else float("inf"),
        missed=sum(outcome.late_s > 0 for outcome in outcomes),
    )


def history_windows(
    history: Sequence[Price],
    *,
    hours: float,
    end: datetime,
    shares: Mapping[str, float],
    count: int,
    number: int,
) -> list[Window]:
    """Return windows with the prices of a spot price history, and capacity that is made up.

    A price history says nothing of capacity: each pool is on and off in turn, for exponentially distributed
    times, so that it is on for its share of the time; the same for the same arguments.

    Args:
        history: Prices with their zones and times.
        hours: The length of a window.
        end: That of the history.
        shares: By zone: the share of the time, 0 to 1; AVAILABILITY of a zone that is not named.
        count: Instances that a pool gives while it is on.
        number: Windows; their starts are spread evenly over the history.
    """
    begin = min(price.as_of for price in history)
    room_s = max(0.0, (end - begin).total_seconds() - hours * HOUR_S)
    starts = [room_s * i / max(1, number - 1) for i in range(number)]
    pools = {(price.zone, price.instance_type) for price in history}
    windows = []
    for which, start_s in enumerate(starts):
        traces = []
        for zone, instance_type in sorted(pools):
            prices = sorted(
                ((p.as_of - begin).total_seconds() - start_s, float(p.hourly_usd))
                for p in history
                if (p.zone, p.instance_type) == (zone, instance_type)
            )
            name = f"{zone} {instance_type}"
            spells = _spells(f"{which}/{name}", hours, shares.get(zone, AVAILABILITY))
            traces.append(_merge(name, prices, spells, count=count, end_s=hours * HOUR_S))
        windows.append(Window(name=f"from hour {start_s / HOUR_S:.0f}", pools=tuple(traces)))
    return windows


def _spells(seed: str, hours: float, share: float) -> list[tuple[float, bool]]:
    """Return when a pool becomes on or off, in seconds."""
    if share >= 1 or share <= 0:
        return [(0.0, share >= 1)]
    source = random.Random(seed)  # noqa: S311  a simulation, no secret
    is_on, at_s, spells = source.random() < share, 0.0, []
    while at_s < hours * HOUR_S:
        spells.append((at_s, is_on))
        mean_h = CYCLE_H * (share if is_on else 1 - share)
        at_s += source.expovariate(1 / (mean_h * HOUR_S))
        is_on = not is_on
    return spells


def _merge(
    name: str,
    prices: Sequence[tuple[float, float]],
    spells: Sequence[tuple[float, bool]],
    *,
    count: int,
    end_s: float,
) -> PoolTrace:
    """Return the trace of changing prices and changing capacity."""
    changes = sorted({0.0, *(at_s for at_s, _ in (*prices, *spells) if 0 < at_s < end_s)})
    values = []
    for at_s in changes:
        price = next((usd for begin_s, usd in reversed(prices) if begin_s <= at_s), prices[0][1])
        is_on = next(on for begin_s, on in reversed(spells) if begin_s <= at_s)
        values.append((count if is_on else 0, price))
    kept = [0, *(i for i, (before, after) in enumerate(pairwise(values), start=1) if before != after)]
    return PoolTrace(
        name=name,
        starts_s=tuple(changes[i] for i in kept),
        counts=tuple(values[i][0] for i in kept),
        prices=tuple(values[i][1] for i in kept),
        end_s=end_s,
    )
