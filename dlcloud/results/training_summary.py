"""Summary of an elastic run: steps, world sizes, interruptions, and its cost beside on-demand instances."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import accumulate, groupby, pairwise
from statistics import median

from dlcloud.model.cluster import Member
from dlcloud.model.instance import Market
from dlcloud.model.money import MINIMUM_BILLED_S, billed_seconds, cost_of_seconds, member_usd, total_usd
from dlcloud.model.surcharges import ZONE_TRAFFIC_USD_PER_GB, region_of
from dlcloud.results.timeline import Step, Timeline, TrainingEvent
from dlcloud.trainer.records import EventName, event_words

STALL_S, STALL_FACTOR = 5.0, 5
"""A longer time between two steps, in seconds and in usual steps, is a stall."""
REPORTED_EVENTS = frozenset(
    event_words(name)
    for name in (
        EventName.JOINED,
        EventName.HEALED,
        EventName.RESUMED,
        EventName.COORDINATOR,
        EventName.NOTICE,
        EventName.REBALANCE,
        EventName.DRAINED,
        EventName.LOST,
        EventName.LEAVING_SEEN,
        EventName.RETRY,
        EventName.HOLD,
        EventName.NO_QUORUM,
        EventName.KILLED,
        EventName.CHECKPOINT_FAILED,
        EventName.DONE,
    )
)
"""The events that a report shows; the others only concern single processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSizePeriod:
    """A time in which the number of workers did not change, and no step stalled.

    `at_s` is since the run began. `pause_s` is the cost of the change or the stall that began it: the time
    from the commit before to the first one of the period, less a usual step; None for the first period.
    """

    at_s: float
    world_size: int
    steps: int
    pause_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceCost:
    """The cost of one instance; `usd` is None at an unknown price."""

    member: Member
    seconds: int
    usd: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemandBaseline:
    """The same steps on a fixed number of on-demand instances: an estimate."""

    instances: int
    seconds: float
    usd: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One elastic run.

    Attributes:
        steps: Committed.
        samples: Of these steps.
        seconds: From the first record to the last step.
        start_s: From the launch of the first instance to the first step.
        trained_s: From there to the last step, and a usual step.
        mean_world_size: Weighted by time.
        steps_redone: Steps that were rolled back, or committed and taken again from an older state.
        redone_usd: Of `usd`, what the latter cost; None where a price is missing.
        periods: The world sizes over time.
        costs: Of each instance, the oldest first.
        baseline: None where a price or a throughput is missing.
        traffic_gb: The most that crossed between Availability Zones, in 10^9 bytes; not in `usd`.
    """

    run: str
    steps: int
    samples: int
    seconds: float
    mean_world_size: float
    steps_redone: int
    last_loss: float | None
    periods: tuple[WorldSizePeriod, ...]
    events: tuple[TrainingEvent, ...]
    costs: tuple[InstanceCost, ...]
    baseline: OnDemandBaseline | None
    traffic_gb: float = 0.0
    start_s: float = 0.0
    trained_s: float = 0.0
    redone_usd: Decimal | None = Decimal(0)

    @property
    def traffic_usd(self) -> Decimal:
        """The most that traffic between zones cost."""
        return Decimal(str(round(self.traffic_gb, 9))) * ZONE_TRAFFIC_USD_PER_GB

    @property
    def usd(self) -> Decimal | None:
        """The cost of all instances; None where a price is missing."""
        return total_usd(cost.usd for cost in self.costs)

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second from the first step to the last; None for a run of one step."""
        return self.samples / self.trained_s if self.trained_s else None

    @property
    def usd_per_million(self) -> Decimal | None:
        """USD of a million samples; None where a price is missing."""
        return None if self.usd is None or not self.samples else self.usd * 1_000_000 / self.samples

    @property
    def fixed_usd_per_million(self) -> Decimal | None:
        """Likewise of the fixed run."""
        if self.baseline is None or not self.samples:
            return None
        return self.baseline.usd * 1_000_000 / self.samples

    @property
    def saved_fraction(self) -> Decimal | None:
        """The saved part of the baseline's cost; below 0 where the run cost more.

        None where a price is missing, or where no time passed between steps: that compares nothing.
        """
        if self.usd is None or self.baseline is None or not self.baseline.usd or not self.trained_s:
            return None
        return 1 - self.usd / self.baseline.usd

    @property
    def is_minimum_billed(self) -> bool:
        """True if EC2's minimum of a minute decides what an instance, or the fixed run, costs."""
        fixed_s = self.baseline.seconds if self.baseline is not None else MINIMUM_BILLED_S
        shortest_s = min((cost.seconds for cost in self.costs), default=MINIMUM_BILLED_S + 1)
        return fixed_s < MINIMUM_BILLED_S or shortest_s <= MINIMUM_BILLED_S


def summarize_training(
    timeline: Timeline,
    members: Sequence[Member],
    *,
    on_demand: Mapping[str, Decimal],
    disk_gib: int,
    now: datetime,
    requested: int | None = None,
) -> Training:
    """Summarize a run.

    Args:
        timeline: Its steps and events.
        members: Its instances, terminated ones included.
        on_demand: On-demand price of each instance type, in USD an hour.
        disk_gib: Of each instance's volume.
        now: The end of the billing period of an instance that is up.
        requested: The most workers that were asked for, which the fixed run has; None: as many as there were.
    """
    steps = timeline.steps
    costs = tuple(
        InstanceCost(
            member=member,
            seconds=billed_seconds(member.instance.launched_at, member.ended_at or now),
            usd=member_usd(member, disk_gib, now),
        )
        for member in sorted(members, key=lambda member: member.instance.launched_at)
    )
    retries = {(event.worker, event.at_s) for event in timeline.events if event.event == EventName.RETRY}
    return Training(
        run=timeline.run,
        steps=len(steps),
        samples=sum(step.samples for step in steps),
        seconds=steps[-1].at_s,
        mean_world_size=_mean_world_size(timeline),
        steps_redone=len(timeline.replaced) + len(retries),
        redone_usd=_redone_usd(timeline, costs),
        last_loss=steps[-1].loss,
        periods=tuple(_find_periods(timeline)),
        events=tuple(event for event in timeline.events if event.event in REPORTED_EVENTS),
        costs=costs,
        baseline=_estimate_baseline(timeline, costs, on_demand, disk_gib, requested),
        traffic_gb=_bound_traffic(timeline, members),
        start_s=_boot_s(timeline, costs),
        trained_s=_trained_s(steps),
    )


def _redone_usd(timeline: Timeline, costs: Sequence[InstanceCost]) -> Decimal | None:
    """Return what the instances that were up cost during the commits that others replaced."""
    amounts: list[Decimal | None] = []
    for step in timeline.replaced:
        at = timeline.began_at + timedelta(seconds=step.at_s)
        for cost in costs:
            start, end = cost.member.instance.launched_at, cost.member.ended_at
            if start <= at and (end is None or at <= end):
                share = Decimal(step.seconds) / max(1, cost.seconds)
                amounts.append(None if cost.usd is None else cost.usd * share)
    return total_usd(amounts)


def _bound_traffic(timeline: Timeline, members: Sequence[Member]) -> float:
    """Return the GB that crossed zones at most: all of a ring's, in steps while instances of several were up.

    Source: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms", 2009: each of n workers sends
    2 (n - 1) / n times the vector.
    """
    spans = [
        (member.instance.zone, member.instance.launched_at, member.ended_at)
        for member in members
        if member.instance.zone
    ]
    total = 0
    for step in timeline.steps:
        at = timeline.began_at + timedelta(seconds=step.at_s)
        zones = {zone for zone, start, end in spans if start <= at and (end is None or at <= end)}
        if len(zones) > 1:
            total += 2 * (step.world_size - 1) * step.reduced_bytes
    return total / 1e9


def _mean_world_size(timeline: Timeline) -> float:
    seconds = sum(step.seconds for step in timeline.steps)
    if not seconds:
        return float(timeline.steps[0].world_size)
    return sum(step.world_size * step.seconds for step in timeline.steps) / seconds


def _find_periods(timeline: Timeline) -> list[WorldSizePeriod]:
    periods: list[WorldSizePeriod] = []
    before_s = 0.0
    for steps in split_periods(timeline):
        usual = median(step.seconds for step in steps)
        first = steps[0]
        # Not the seconds of its record: those of a worker that joins are since its own start.
        pause = first.at_s - before_s - usual if periods else None
        periods.append(
            WorldSizePeriod(
                at_s=first.at_s,
                world_size=first.world_size,
                steps=len(steps),
                pause_s=None if pause is None else max(0.0, pause),
            )
        )
        before_s = steps[-1].at_s
    return periods


def split_periods(timeline: Timeline) -> list[list[Step]]:
    """Return the steps between changes of the world size and stalls; a stall begins a new period."""
    numbered = zip(number_segments(timeline.steps), timeline.steps, strict=True)
    groups = groupby(numbered, key=lambda pair: (pair[0], pair[1].world_size))
    return [[step for _, step in group] for _, group in groups]


def number_segments(steps: Sequence[Step]) -> list[int]:
    """Return for each step how many stalls came before it."""
    stall_s = max(STALL_S, STALL_FACTOR * median(step.seconds for step in steps))
    stalls = (after.at_s - before.at_s > stall_s for before, after in pairwise(steps))
    return [*accumulate(stalls, initial=0)]


def _estimate_baseline(
    timeline: Timeline,
    costs: Sequence[InstanceCost],
    on_demand: Mapping[str, Decimal],
    disk_gib: int,
    requested: int | None,
) -> OnDemandBaseline | None:
    """Estimate the same steps by as many workers as were asked for at most, at their usual speed.

    More than that are there for a while where one is replaced before it leaves; fewer where capacity lacked.
    Billed from launch; they boot as long as the first instances did, from their launch to the first step.
    """
    sizes = {step.world_size for step in timeline.steps}
    size = max((size for size in sizes if requested is None or size <= requested), default=min(sizes))
    usual = [step.seconds for step in timeline.steps if step.world_size == size and step.seconds > 0]
    prices = [on_demand.get(cost.member.instance.instance_type) for cost in costs]
    if not usual or not prices or None in prices:
        return None
    seconds = _boot_s(timeline, costs) + median(usual) * len(timeline.steps)
    highest = max(price for price in prices if price is not None)
    region = region_of(costs[0].member.instance.zone)
    usd = size * cost_of_seconds(highest, disk_gib, max(MINIMUM_BILLED_S, round(seconds)), region=region)
    return OnDemandBaseline(instances=size, seconds=seconds, usd=usd)


def _boot_s(timeline: Timeline, costs: Sequence[InstanceCost]) -> float:
    """Return the seconds from the launch of the first instance to the first step."""
    first = min((cost.member.instance.launched_at for cost in costs), default=timeline.began_at)
    return max(0.0, (timeline.began_at - first).total_seconds()) + timeline.steps[0].at_s


def _trained_s(steps: Sequence[Step]) -> float:
    """Return the seconds in which all steps were computed: the first one took as long as a usual one."""
    between_s = steps[-1].at_s - steps[0].at_s
    return between_s * len(steps) / (len(steps) - 1) if len(steps) > 1 else 0.0


def market_usd(training: Training, market: Market) -> Decimal | None:
    """Return the cost of the instances of a market; None where a price is missing."""
    return total_usd(cost.usd for cost in training.costs if cost.member.instance.market is market)
