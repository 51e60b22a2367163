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
    """One pool while a job is replayed: what the trace gives now, and what runs there.

    Attributes:
        state: What policies are given. It changes from event to event: a new one for each took as long as
            all else of a replay.
        key: That of the state.
        trace: None for on-demand.
        next_s: When the trace's next run begins.
        ready_s: When each instance that boots will join.
    """

    __slots__ = (
        "_available_s",
        "_changed_s",
        "_off",
        "_on",
        "_paid_since_s",
        "_paid_usd_s",
        "_place",
        "key",
        "next_s",
        "ready_s",
        "state",
        "trace",
    )

    def __init__(self, name: str, market: Market, price_usd: float, trace: PoolTrace | None) -> None:
        self.state = PoolState(
            market=market,
            name=name,
            hourly_usd=price_usd,
            obtainable=0,
            availability=UNKNOWN if trace is None else Availability(),
            region="" if trace is None else trace.region,
        )
        self.key, self.trace = self.state.key, trace
        self.next_s = 0.0 if trace is not None else inf
        self.ready_s: list[float] = []
        self._place = -1
        self._available_s = self._changed_s = 0.0
        self._paid_usd_s = self._paid_since_s = 0.0
        self._on, self._off = SpellFit(ON), SpellFit(OFF)

    def step(self) -> int:
        """Take the next run of the trace; return how many instances are lost, those that boot first."""
        trace, state = self.trace, self.state
        if trace is None:
            return 0
        now_s, self._place = self.next_s, self._place + 1
        is_over = self._place >= len(trace.counts)
        before, count = state.obtainable, 0 if is_over else trace.counts[self._place]
        state.obtainable = count
        if is_over:
            self.next_s = inf
        else:
            following = self._place + 1
            self.next_s = trace.starts_s[following] if following < len(trace.counts) else trace.end_s
            if trace.prices is not None:
                self._paid_usd_s += state.hourly_usd * (now_s - self._paid_since_s)
                state.hourly_usd, self._paid_since_s = trace.prices[self._place], now_s
        if count < before and count:
            state.availability.drops += 1
        elif (count > 0) != (before > 0):
            self._end_spell(now_s, was_open=before > 0)
        lost = state.running + state.starting - count
        if lost > 0:
            booting = min(lost, state.starting)
            del self.ready_s[state.starting - booting :]
            state.starting -= booting
            state.running -= lost - booting
        return max(0, lost)

    def _end_spell(self, now_s: float, *, was_open: bool) -> None:
        past, length_s = self.state.availability, now_s - self._changed_s
        self._changed_s = now_s
        if was_open:
            self._available_s += length_s
            self._on.end(length_s)
            past.on_factor = self._on.factor()
        elif now_s > 0:
            self._off.end(length_s)
            past.off_factor = self._off.factor()

    def look(self, now_s: float) -> None:
        """Bring what the past says of the pool up to date."""
        state, unchanged_s = self.state, now_s - self._changed_s
        past = state.availability
        past.observed_s, past.unchanged_s = now_s, unchanged_s
        if state.obtainable:
            past.available_s = self._available_s + unchanged_s
            past.on_factor = self._on.factor(unchanged_s)
        else:
            past.available_s = self._available_s
            past.off_factor = self._off.factor(unchanged_s)
        if now_s > 0 and self.trace is not None and self.trace.prices is not None:
            paid_usd_s = self._paid_usd_s + state.hourly_usd * (now_s - self._paid_since_s)
            state.usual_usd = paid_usd_s / now_s

    def start(self, number: int, ready_s: float) -> None:
        self.ready_s += [ready_s] * number
        self.state.starting += number

    def join(self, now_s: float) -> int:
        """Let those that have booted take part; return how many."""
        booting = [at_s for at_s in self.ready_s if at_s > now_s]
        ready = len(self.ready_s) - len(booting)
        if ready:
            self.ready_s = booting
            self.state.starting -= ready
            self.state.running += ready
        return ready


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
        self.moved_s = 0.0
        self.refusals: list[tuple[float, float]] = list(job.refusals)
        self.may_refuse_first = job.refuse_first_s > 0
        self.moments: list[Moment] | None = [] if keep_moments else None
        self._situation = Situation(
            work_s=job.work_s,
            work_left_s=job.work_s,
            allowed_s=job.allowed_s,
            time_left_s=job.allowed_s,
            pools=tuple([pool.state for pool in self.pools]),
            minimum=job.minimum,
            maximum=job.maximum,
            changeover_s=job.changeover_s,
            boot_s=job.boot_s,
            refusal_s=job.refusal_s,
            scaling=job.scaling,
            move=job.move,
        )

    def observe(self) -> None:
        """Bring what happened until now into effect: the trace's changes, losses, workers that join."""
        now_s, changed = self.now_s, False
        for pool in self.spot:
            while pool.next_s <= now_s:
                lost = pool.step()
                self.interruptions += lost
                changed = changed or lost > 0
            pool.look(now_s)
        for pool in self.pools:
            if pool.ready_s and pool.join(now_s):
                changed = True
                self._settle(pool)
        if changed:
            self._pause()
        refused = self.refusals and any(begin <= now_s < end for begin, end in self.refusals)
        self.on_demand.state.obtainable = self.on_demand.state.present if refused else self.job.maximum

    def situation(self) -> Situation:
        """Return what a policy may know now; it holds until the next event."""
        now_s, situation = self.now_s, self._situation
        situation.work_left_s = self.work_left_s
        situation.time_left_s = self.job.allowed_s - now_s
        paused_s = self.paused_until_s - now_s
        situation.changing_s = paused_s if paused_s > 0 and self._running() else 0.0
        return situation

    def apply(self, decision: PoolDecision) -> None:
        """Make the instances as many as decided; what is replaced leaves once the other has joined."""
        targets, changed, surplus, booting = decision.targets, False, False, 0
        for pool in self.pools:
            state, desired = pool.state, targets.get(pool.key, 0)
            present = state.running + state.starting
            if desired > present:
                if state.obtainable > present:
                    changed = self._grow(pool, min(desired, state.obtainable) - present) or changed
            elif desired < present:
                surplus = True
            booting += state.starting
        if surplus and not booting:
            for pool in self.pools:
                desired = targets.get(pool.key, 0)
                if pool.state.running > desired:
                    pool.state.running = desired
                    changed = True
        if changed:
            self._pause()
        if self.moments is not None:
            self._note(decision.reason)

    def _grow(self, pool: _PoolRun, missing: int) -> bool:
        """Request instances of a pool; return whether they take part already."""
        if pool is self.on_demand and self._refuses_first():
            return False
        boot_s = self.job.boot_s
        if self.now_s <= 0 and self.job.first_boot_s is not None:
            boot_s = self.job.first_boot_s
        if boot_s > 0:
            pool.start(missing, self.now_s + boot_s)
            return False
        pool.state.running += missing
        self._settle(pool)
        return True

    def _settle(self, pool: _PoolRun) -> None:
        """Bring the state to the Region of workers that have joined: another one's are left behind."""
        region, before = pool.state.region, self._situation.region
        if region == before:
            return
        if not before:
            self._situation.region = region or self.spot[0].state.region
        elif region:
            self._situation.region = region
            self.usd += self.job.move.usd
            self.moved_s = self.job.move.seconds

    def _refuses_first(self) -> bool:
        if not self.may_refuse_first or self.now_s <= 0:
            return False
        self.may_refuse_first = False
        self.refusals.append((self.now_s, self.now_s + self.job.refuse_first_s))
        self.on_demand.state.obtainable = self.on_demand.state.present
        return True

    def _pause(self) -> None:
        self.paused_until_s = self.now_s + self.job.changeover_s + self.moved_s
        self.moved_s = 0.0

    def advance(self, decision: PoolDecision) -> None:
        """Let time pass until the next event or the end of the work; bill it."""
        job, now_s = self.job, self.now_s
        times = [now_s + max(decision.ask_again_s, 1.0), GIVE_UP * job.allowed_s]
        hourly_usd, running, present, most = 0.0, 0, 0, 0
        for pool in self.pools:
            times.append(pool.next_s)
            times += pool.ready_s
            state = pool.state
            here = state.running + state.starting
            if here:
                running += state.running
                present += here
                most = max(most, here)
                hourly_usd += here * state.hourly_usd
        for refusal in self.refusals:
            times += [at_s for at_s in refusal if at_s > now_s]
        until_s = min(times)
        begin_s = max(now_s, self.paused_until_s)
        if running and running >= job.minimum and until_s > begin_s:
            speed = job.scaling.speed(running)
            done_s = (until_s - begin_s) * speed
            if done_s >= self.work_left_s:
                until_s, done_s = begin_s + self.work_left_s / speed, self.work_left_s
            self.work_left_s -= done_s
        seconds, fixed = until_s - now_s, self.on_demand.state.present
        hourly_usd += (present - most) * job.traffic_usd
        self.usd += hourly_usd * seconds / HOUR_S
        self.spot_s += (present - fixed) * seconds
        self.on_demand_s += fixed * seconds
        self.now_s = until_s

    def _running(self) -> int:
        return sum([pool.state.running for pool in self.pools])

    def _note(self, reason: str, *, is_last: bool = False) -> None:
        if self.moments is None:
            return
        spot, on_demand = sum(pool.state.present for pool in self.spot), self.on_demand.state.present
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
