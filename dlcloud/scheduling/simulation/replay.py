"""One job lived through one window under one policy, event by event."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from dlcloud.model.instance import Market
from dlcloud.scheduling.policies.situation import (
    HOUR_S,
    NO_MOVE,
    REFUSAL_S,
    UNKNOWN,
    Availability,
    Move,
    Policy,
    PoolDecision,
    PoolState,
    Scaling,
    Situation,
)
from dlcloud.scheduling.simulation.traces import PoolTrace, Window
from dlcloud.scheduling.spells import OFF, ON, SpellFit

SPOT_SHARE = 0.318
"""A spot price over the on-demand price.

Source: 0.9731 over 3.06 USD for a V100, Wu et al., "Can't Be Late", NSDI 2024.
"""
CHANGEOVER_S = 1.8
"""Seconds without progress at a change of workers.

Source: about what tests/performance/elastic.py measured for a drain and a join, with room.
"""


GIVE_UP = 4.0
"""A job that has not ended after this many times its allowed time counts as unfinished."""
LEAST_S = 1e-6
ON_DEMAND = "on-demand"
"""The name of the on-demand pool of a replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """What is replayed: the work, its limits, the prices.

    Attributes:
        work_s: The work, as seconds of one worker alone.
        allowed_s: Seconds from the start to the deadline.
        minimum: With fewer workers no step is made.
        maximum: More workers are never used.
        on_demand_usd: Price of an on-demand instance-hour.
        spot_usd: Price of a spot instance-hour where the trace has none.
        changeover_s: Seconds without progress after any change of workers; all are billed.
        boot_s: Seconds that a new instance is billed before its worker joins.
        first_boot_s: The same of those that are requested at the start, when no other has the environment;
            None: as long.
        scaling: Speed against workers.
        move: What it takes to move the state to another Region, where pools of several are replayed.
        traffic_usd: What a worker outside the zone of most workers adds to an hour.
        refusals: Times, as (from, until) in seconds, in which no on-demand instance is given.
        refuse_first_s: For so long the first on-demand request after the start is refused.
        refusal_s: The refusal that policies are asked to survive.
    """

    work_s: float
    allowed_s: float
    on_demand_usd: float
    spot_usd: float
    minimum: int = 1
    maximum: int = 1
    changeover_s: float = 0.0
    boot_s: float = 0.0
    first_boot_s: float | None = None
    scaling: Scaling = field(default_factory=Scaling)
    move: Move = NO_MOVE
    traffic_usd: float = 0.0
    refusals: tuple[tuple[float, float], ...] = ()
    refuse_first_s: float = 0.0
    refusal_s: float = REFUSAL_S

    @property
    def on_demand_cost_usd(self) -> float:
        """The bill of all workers on-demand from start to end."""
        seconds = self.work_s / self.scaling.speed(self.maximum) + self.changeover_s + self.boot_s
        return seconds / HOUR_S * self.maximum * self.on_demand_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What ran from `at_s` on, and how much work was done until then."""

    at_s: float
    spot: int
    on_demand: int
    done_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedOutcome:
    """How a job ended.

    Attributes:
        usd: The bill.
        finished_s: When the work was done; infinite if it never was.
        late_s: Seconds after the deadline; 0 in time.
        interruptions: Spot instances that were taken away.
        spot_s: Instance-seconds billed on spot.
        on_demand_s: Instance-seconds billed on-demand.
        moments: Each change, if they were asked for.
    """

    usd: float
    finished_s: float
    late_s: float
    interruptions: int
    spot_s: float
    on_demand_s: float
    moments: tuple[Moment, ...] = ()


def replay(
    job: SimulatedJob, window: Window, policy: Policy, *, keep_moments: bool = False
) -> SimulatedOutcome:
    """Return how the job ends in the window under the policy."""
    run = _Run(job, window, keep_moments=keep_moments)
    while run.work_left_s > LEAST_S and run.now_s < GIVE_UP * job.allowed_s:
        run.observe()
        decision = policy(run.situation())
        run.apply(decision)
        run.advance(decision)
    return run.outcome()


class _PoolRun:
    """One pool while a job is replayed: what the trace gives now, and what runs there."""

    __slots__ = (
        "available_s",
        "changed_s",
        "cost_usd",
        "drops",
        "is_open",
        "market",
        "name",
        "next_s",
        "obtainable",
        "off",
        "on",
        "paid_since_s",
        "paid_usd_s",
        "place",
        "price_usd",
        "region",
        "running",
        "spells",
        "starting",
        "trace",
    )

    def __init__(self, name: str, market: Market, price_usd: float, trace: PoolTrace | None) -> None:
        self.name, self.market, self.price_usd, self.trace = name, market, price_usd, trace
        self.region = "" if trace is None else trace.region
        self.place = -1
        self.next_s = 0.0 if trace is not None else inf
        self.obtainable = self.running = self.spells = 0
        self.starting: list[float] = []
        self.available_s = self.changed_s = 0.0
        self.paid_usd_s = self.paid_since_s = 0.0
        self.is_open = False
        self.on, self.off, self.drops = SpellFit(ON), SpellFit(OFF), 0

    @property
    def present(self) -> int:
        return self.running + len(self.starting)

    def step(self) -> None:
        """Take the next run of the trace."""
        trace = self.trace
        if trace is None:
            return
        now_s, self.place = self.next_s, self.place + 1
        is_over = self.place >= len(trace.counts)
        before = self.obtainable
        self.obtainable = 0 if is_over else trace.counts[self.place]
        if trace.prices is not None and not is_over:
            self.paid_usd_s += self.price_usd * (now_s - self.paid_since_s)
            self.price_usd, self.paid_since_s = trace.prices[self.place], now_s
        following = self.place + 1
        if is_over:
            self.next_s = inf
        else:
            self.next_s = trace.starts_s[following] if following < len(trace.counts) else trace.end_s
        self.drops += 0 < self.obtainable < before
        self._note_spell(now_s)

    def _note_spell(self, now_s: float) -> None:
        is_open = self.obtainable > 0
        if is_open != self.is_open:
            self.available_s += now_s - self.changed_s if self.is_open else 0.0
            if now_s > 0:
                (self.on if self.is_open else self.off).end(now_s - self.changed_s)
            self.changed_s, self.is_open = now_s, is_open
            self.spells += is_open

    def lose(self) -> int:
        """Take away what is no longer obtainable, those that boot first; return how many."""
        lost = self.present - self.obtainable
        if lost <= 0:
            return 0
        booting = min(lost, len(self.starting))
        del self.starting[len(self.starting) - booting :]
        self.running -= lost - booting
        return lost

    def view(self, now_s: float) -> PoolState:
        availability = UNKNOWN
        if self.trace is not None:
            unchanged_s = now_s - self.changed_s
            on_s, off_s = (unchanged_s, 0.0) if self.is_open else (0.0, unchanged_s)
            availability = Availability(
                observed_s=now_s,
                available_s=self.available_s + on_s,
                spells=self.spells,
                unchanged_s=unchanged_s,
                on_factor=self.on.factor(on_s),
                off_factor=self.off.factor(off_s),
                drops=self.drops,
            )
        return PoolState(
            market=self.market,
            name=self.name,
            hourly_usd=self.price_usd,
            obtainable=self.obtainable,
            running=self.running,
            starting=len(self.starting),
            availability=availability,
            usual_usd=self._usual_usd(now_s),
            region=self.region,
        )

    def _usual_usd(self, now_s: float) -> float:
        """Return the mean price so far; 0 if the trace has no prices."""
        if self.trace is None or self.trace.prices is None or now_s <= 0:
            return 0.0
        return (self.paid_usd_s + self.price_usd * (now_s - self.paid_since_s)) / now_s


class _Run:
    def __init__(self, job: SimulatedJob, window: Window, *, keep_moments: bool) -> None:
        self.job = job
        self.now_s = 0.0
        self.work_left_s = job.work_s
        self.paused_until_s = 0.0
        self.spot = [_PoolRun(trace.name, Market.SPOT, job.spot_usd, trace) for trace in window.pools]
        self.on_demand = _PoolRun(ON_DEMAND, Market.ON_DEMAND, job.on_demand_usd, None)
        self.pools = [*self.spot, self.on_demand]
        self.usd = self.spot_s = self.on_demand_s = 0.0
        self.interruptions = 0
        self.region, self.moved_s = "", 0.0
        self.refusals: list[tuple[float, float]] = list(job.refusals)
        self.may_refuse_first = job.refuse_first_s > 0
        self.moments: list[Moment] | None = [] if keep_moments else None

    def observe(self) -> None:
        """Bring what happened until now into effect: the trace's changes, losses, workers that join."""
        now_s, changed = self.now_s, False
        for pool in self.spot:
            while pool.next_s <= now_s:
                pool.step()
                lost = pool.lose()
                self.interruptions += lost
                changed = changed or lost > 0
        for pool in self.pools:
            if pool.starting:
                ready = sum(at_s <= now_s for at_s in pool.starting)
                pool.starting = pool.starting[ready:]
                pool.running += ready
                changed = changed or ready > 0
                self._settle(pool, ready)
        if changed:
            self._pause()
        refused = any(begin <= now_s < end for begin, end in self.refusals)
        self.on_demand.obtainable = self.on_demand.present if refused else self.job.maximum

    def situation(self) -> Situation:
        job = self.job
        return Situation(
            work_s=job.work_s,
            work_left_s=self.work_left_s,
            allowed_s=job.allowed_s,
            time_left_s=job.allowed_s - self.now_s,
            pools=tuple([pool.view(self.now_s) for pool in self.pools]),
            minimum=job.minimum,
            maximum=job.maximum,
            changeover_s=job.changeover_s,
            boot_s=job.boot_s,
            refusal_s=job.refusal_s,
            scaling=job.scaling,
            changing_s=max(0.0, self.paused_until_s - self.now_s) if self._running() else 0.0,
            region=self.region,
            move=job.move,
        )

    def apply(self, decision: PoolDecision) -> None:
        """Make the instances as many as decided; what is replaced leaves once the other has joined."""
        changed = self._grow(decision)
        if not any(pool.starting for pool in self.pools):
            changed = self._shrink(decision) or changed
        if changed:
            self._pause()
        if self.moments is not None:
            self._note(decision.reason)

    def _grow(self, decision: PoolDecision) -> bool:
        changed = False
        for pool in self.pools:
            desired = decision.targets.get((pool.market, pool.name), 0)
            missing = min(desired, pool.obtainable) - pool.present
            if missing <= 0 or (pool is self.on_demand and self._refuses_first()):
                continue
            boot_s = self.job.boot_s
            if self.now_s <= 0 and self.job.first_boot_s is not None:
                boot_s = self.job.first_boot_s
            if boot_s > 0:
                pool.starting += [self.now_s + boot_s] * missing
            else:
                pool.running += missing
                changed = True
                self._settle(pool, missing)
        return changed

    def _settle(self, pool: _PoolRun, joined: int) -> None:
        """Bring the state to the Region of workers that have joined: another one's are left behind."""
        if not joined or pool.region == self.region:
            return
        if not self.region:
            self.region = pool.region or self.spot[0].region
        elif pool.region:
            self.region = pool.region
            self.usd += self.job.move.usd
            self.moved_s = self.job.move.seconds

    def _shrink(self, decision: PoolDecision) -> bool:
        changed = False
        for pool in self.pools:
            surplus = pool.present - decision.targets.get((pool.market, pool.name), 0)
            if surplus > 0:
                pool.running -= surplus
                changed = True
        return changed

    def _refuses_first(self) -> bool:
        if not self.may_refuse_first or self.now_s <= 0:
            return False
        self.may_refuse_first = False
        self.refusals.append((self.now_s, self.now_s + self.job.refuse_first_s))
        self.on_demand.obtainable = self.on_demand.present
        return True

    def _pause(self) -> None:
        self.paused_until_s = self.now_s + self.job.changeover_s + self.moved_s
        self.moved_s = 0.0

    def advance(self, decision: PoolDecision) -> None:
        """Let time pass until the next event or the end of the work; bill it."""
        until_s = self._next_event(decision.ask_again_s)
        running = self._running()
        speed = self.job.scaling.speed(running) if running >= self.job.minimum else 0.0
        begin_s = max(self.now_s, self.paused_until_s)
        if speed > 0 and until_s > begin_s:
            done_s = (until_s - begin_s) * speed
            if done_s >= self.work_left_s:
                until_s, done_s = begin_s + self.work_left_s / speed, self.work_left_s
            self.work_left_s -= done_s
        self._bill(until_s - self.now_s)
        self.now_s = until_s

    def _running(self) -> int:
        return sum([pool.running for pool in self.pools])

    def _next_event(self, ask_again_s: float) -> float:
        times = [self.now_s + max(ask_again_s, 1.0), GIVE_UP * self.job.allowed_s]
        times += [pool.next_s for pool in self.spot]
        times += [at_s for pool in self.pools for at_s in pool.starting]
        times += [at_s for refusal in self.refusals for at_s in refusal if at_s > self.now_s]
        return min(times)

    def _bill(self, seconds: float) -> None:
        hourly_usd, spot = 0.0, 0
        for pool in self.spot:
            present = pool.present
            if present:
                spot += present
                hourly_usd += present * pool.price_usd
        fixed = self.on_demand.present
        hourly_usd += fixed * self.job.on_demand_usd
        if self.job.traffic_usd:
            most = max(pool.present for pool in self.pools)
            hourly_usd += (spot + fixed - most) * self.job.traffic_usd
        self.usd += hourly_usd * seconds / HOUR_S
        self.spot_s += spot * seconds
        self.on_demand_s += fixed * seconds

    def _note(self, reason: str, *, is_last: bool = False) -> None:
        if self.moments is None:
            return
        spot, on_demand = sum(pool.present for pool in self.spot), self.on_demand.present
        if self.moments and not is_last:
            last = self.moments[-1]
            if (last.spot, last.on_demand) == (spot, on_demand):
                return
        done_s = self.job.work_s - self.work_left_s
        moment = Moment(at_s=self.now_s, spot=spot, on_demand=on_demand, done_s=done_s, reason=reason)
        self.moments.append(moment)

    def outcome(self) -> SimulatedOutcome:
        is_done = self.work_left_s <= LEAST_S
        finished_s = self.now_s if is_done else inf
        self._note("done" if is_done else "given up", is_last=True)
        return SimulatedOutcome(
            usd=self.usd,
            finished_s=finished_s,
            late_s=max(0.0, finished_s - self.job.allowed_s - LEAST_S),
            interruptions=self.interruptions,
            spot_s=self.spot_s,
            on_demand_s=self.on_demand_s,
            moments=tuple(self.moments or ()),
        )


def replay_all(job: SimulatedJob, windows: Sequence[Window], policy: Policy) -> list[SimulatedOutcome]:
    return [replay(job, window, policy) for window in windows]
