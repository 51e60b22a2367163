"""An elastic training, from the records of its workers to its steps, its cost and its course.

`build_timelines` reads the records of `dlcloud.trainer.records` leniently: `step` (a committed step: step,
samples, loss, world_size, seconds, lineage, parent) and `event` (event, cause). Every worker of a step
records it; one record is enough. A step that was committed twice, by separate groups of workers or again from
an older state, has several lineages: the run continued with those that the latest commit descends from.

`summarize_training` turns a timeline and the bills of its instances into the figures of `dlcloud training`:
world sizes, pauses, and the cost compared with on-demand instances. `course_of` returns what its page draws:
the workers by market and type, what happened to them, and the bill, in seconds since the launch of the first
instance.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from itertools import accumulate, groupby, pairwise
from statistics import median
from typing import Any

from dlcloud.model.cluster import Member
from dlcloud.model.instance import Market
from dlcloud.model.money import (
    MINIMUM_BILLED_S,
    ZONE_TRAFFIC_USD_PER_GB,
    billed_seconds,
    cost_of_seconds,
    member_usd,
    region_of,
    total_usd,
)
from dlcloud.model.untrusted import number_of, time_or_none
from dlcloud.trainer.records import EventName, event_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A committed step; `at_s` is seconds since the run began, `seconds` since the commit before.

    `workers`: those whose record of the commit is there. `reduced_bytes`: what each worker summed with the
    others; 0 if the records do not say.
    """

    step: int
    at_s: float
    world_size: int
    samples: int
    seconds: float
    loss: float | None
    reduced_bytes: int = 0
    workers: frozenset[str] = frozenset()
    on_instances: int = 0

    @property
    def instances(self) -> int:
        """The instances on which its workers ran; older records do not say, and had one worker on each."""
        return self.on_instances or self.world_size

    @property
    def throughput(self) -> float | None:
        """Samples a second; None where no time passed, as at the first step of a worker."""
        return self.samples / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEvent:
    """An event of a worker, an agent or a lighthouse, in words, and its cause; `worker` recorded it.

    `of`: the workers that it is about, where the record names others.
    """

    at_s: float
    event: str
    cause: str
    worker: str
    of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One elastic run: its steps in order, and its events as they came.

    `replaced` are the commits that another commit of the same step replaced.
    """

    run: str
    began_at: datetime
    steps: tuple[Step, ...]
    events: tuple[TrainingEvent, ...]
    replaced: tuple[Step, ...] = ()


def build_timelines(records: Iterable[Mapping[str, Any]], *, since: datetime | None = None) -> list[Timeline]:
    """Build the timeline of every run in the records that has steps.

    Records that are unreadable, or older than `since`, are left out.
    """
    runs: dict[str, list[tuple[datetime, Mapping[str, Any]]]] = {}
    for record in records:
        time = time_or_none(record.get("time"))
        if record.get("record") in {"step", "event"} and time is not None and (not since or time >= since):
            runs.setdefault(str(record.get("run", "")), []).append((time, record))
    timelines = [_build(run, sorted(entries, key=lambda entry: entry[0])) for run, entries in runs.items()]
    return [timeline for timeline in timelines if timeline.steps]


def _build(run: str, entries: list[tuple[datetime, Mapping[str, Any]]]) -> Timeline:
    began_at = entries[0][0]
    commits: dict[int, dict[str, Step]] = {}
    newest = 0
    parents: dict[tuple[int, str], str] = {}
    kept: dict[int, str] = {}
    workers: dict[tuple[int, str], set[str]] = {}
    events: list[TrainingEvent] = []
    for time, record in entries:
        at_s = (time - began_at).total_seconds()
        if record["record"] == "event":
            events.append(_event(record, at_s))
        elif (step := _step(record, at_s)) is not None:
            # Every worker records a commit: the first record counts.
            lineage = str(record.get("lineage"))
            commits.setdefault(step.step, {}).setdefault(lineage, step)
            parents[step.step, lineage] = str(record.get("parent"))
            newest, kept[step.step] = step.step, lineage
            workers.setdefault((step.step, lineage), set()).add(str(record.get("worker", "")))
    # A worker that was stopped in a commit may record it after the others have taken the step again.
    for number in sorted((number for number in kept if number <= newest), reverse=True):
        parent = parents[number, kept[number]]
        if (number - 1, parent) in parents:
            kept[number - 1] = parent
    ordered = tuple(
        replace(commits[number][kept[number]], workers=frozenset(workers[number, kept[number]]))
        for number in sorted(commits)
    )
    replaced = tuple(
        step
        for number, lineages in commits.items()
        for lineage, step in lineages.items()
        if lineage != kept[number]
    )
    return Timeline(run=run, began_at=began_at, steps=ordered, events=tuple(events), replaced=replaced)


def _step(record: Mapping[str, Any], at_s: float) -> Step | None:
    try:
        loss = record.get("loss")
        return Step(
            step=int(number_of(record["step"])),
            at_s=at_s,
            world_size=int(number_of(record["world_size"])),
            samples=int(number_of(record["samples"])),
            seconds=number_of(record.get("seconds") or 0.0),
            loss=None if loss is None else number_of(loss),
            reduced_bytes=int(number_of(record.get("reduced_bytes") or 0)),
            on_instances=int(number_of(record.get("instances") or 0)),
        )
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return None


def _event(record: Mapping[str, Any], at_s: float) -> TrainingEvent:
    return TrainingEvent(
        at_s=at_s,
        event=event_words(str(record.get("event", ""))),
        cause=str(record.get("cause", "")),
        worker=str(record.get("worker", "")),
        of=tuple(map(str, others)) if isinstance(others := record.get("workers"), list) else (),
    )


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
        samples: Of these steps.
        seconds: From the first record to the last step.
        start_s: From the launch of the first instance to the first step.
        trained_s: From there to the last step, and a usual step.
        mean_world_size: Weighted by time.
        steps_redone: Steps that were rolled back, or committed and taken again from an older state.
        redone_usd: Of `usd`, what the latter cost; None where a price is missing.
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

    `on_demand` has the USD an hour of each instance type. `requested` is the most workers that were asked
    for, which the fixed run has; None: as many as there were. An instance that is up is billed until `now`.
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
    """Estimate the same steps on as many instances as were asked for at most, at their usual speed.

    More than that are there for a while where one is replaced before it leaves; fewer where capacity lacked.
    Billed from launch; they boot as long as the first instances did, from their launch to the first step.
    """
    sizes = {step.instances for step in timeline.steps}
    size = max((size for size in sizes if requested is None or size <= requested), default=min(sizes))
    usual = [step.seconds for step in timeline.steps if step.instances == size and step.seconds > 0]
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


BILL_POINTS = 60
"""Times at which the bill is drawn, in addition to launches and ends."""
SAME_S = 5.0
"""Records of one thing about one worker are of one happening if they come within this of each other."""
NOT_RECORDED = "not recorded"
"""The name of workers whose own records of a step are missing."""


class Happening(StrEnum):
    """What happens to a worker, as the picture of a training shows it."""

    NOTICE = "notice"
    DRAIN = "drain"
    JOIN = "join"
    LOSS = "loss"


HAPPENINGS: Mapping[str, Happening] = {
    EventName.NOTICE: Happening.NOTICE,
    EventName.REBALANCE: Happening.NOTICE,
    EventName.DRAINED: Happening.DRAIN,
    EventName.JOINED: Happening.JOIN,
    EventName.HEALED: Happening.JOIN,
    EventName.LOST: Happening.LOSS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """The workers of one market and type from a time on, until the next entry of that pool."""

    at_s: float
    pool: str
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened to a worker; `size` is the number of workers then."""

    at_s: float
    happening: Happening
    worker: str
    cause: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The course of a training.

    Attributes:
        launched_at: Of the first instance: second 0.
        start_s: From there to the first step.
        end_s: The last step, or the last end of an instance.
        sizes: Of every pool, at the first step, at each change, and at the last step.
        marks: In the order of time.
        bill: Seconds, and USD of all instances so far; empty where a price is not known.
        fixed_bill: Likewise of the fixed run.
    """

    launched_at: datetime
    start_s: float
    end_s: float
    sizes: tuple[PoolSize, ...]
    marks: tuple[Mark, ...]
    bill: tuple[tuple[float, Decimal], ...]
    fixed_bill: tuple[tuple[float, Decimal], ...]


def course_of(
    timeline: Timeline,
    members: Sequence[Member],
    *,
    baseline: OnDemandBaseline | None,
    disk_gib: int,
    now: datetime,
) -> Course:
    """Return the course of a training.

    `baseline` is the fixed run that it is compared with; an instance that is up is billed until `now`.
    """
    launched_at = min((member.instance.launched_at for member in members), default=timeline.began_at)
    offset_s = (timeline.began_at - launched_at).total_seconds()
    ends = [((member.ended_at or now) - launched_at).total_seconds() for member in members]
    end_s = max([timeline.steps[-1].at_s + offset_s, *ends])
    return Course(
        launched_at=launched_at,
        start_s=timeline.steps[0].at_s + offset_s,
        end_s=end_s,
        sizes=tuple(_sizes(timeline, members, offset_s)),
        marks=tuple(_marks(timeline, offset_s)),
        bill=tuple(_bill(members, launched_at, end_s, disk_gib)),
        fixed_bill=() if baseline is None else _fixed_bill(baseline),
    )


def pool_of(member: Member) -> str:
    """Return the market and type of an instance, as a pool is named in a picture."""
    return f"{member.instance.market} {member.instance.instance_type}"


def _sizes(timeline: Timeline, members: Sequence[Member], offset_s: float) -> Iterator[PoolSize]:
    """Yield the size of every pool where one changes."""
    pools = {member.instance.instance_id: pool_of(member) for member in members}
    counts = [
        (step.at_s + offset_s, _count_by_pool(step.workers, step.world_size, pools))
        for step in timeline.steps
    ]
    names = dict.fromkeys(name for _, of_step in counts for name in of_step)
    last: Mapping[str, int] | None = None
    for place, (at_s, of_step) in enumerate(counts):
        if of_step != last or place == len(counts) - 1:
            yield from (PoolSize(at_s=at_s, pool=name, workers=of_step.get(name, 0)) for name in names)
        last = of_step


def _count_by_pool(workers: Iterable[str], size: int, pools: Mapping[str, str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for worker in workers:
        instance_id = worker.partition(".")[0]  # an instance may have several workers
        if instance_id in pools:
            counts[pools[instance_id]] = counts.get(pools[instance_id], 0) + 1
    missing = size - sum(counts.values())
    return counts | ({NOT_RECORDED: missing} if missing > 0 else {})


def _marks(timeline: Timeline, offset_s: float) -> Iterator[Mark]:
    """Yield what happened, each thing once.

    Every worker that is left records a loss, and one that takes its state from a peer joins then.
    """
    last_s: dict[tuple[Happening, str], float] = {}
    for event in timeline.events:
        happening = HAPPENINGS.get(event.event)
        if happening is None:
            continue
        for worker in _subjects(event, happening):
            before_s = last_s.get((happening, worker))
            last_s[happening, worker] = event.at_s
            if before_s is not None and event.at_s - before_s < SAME_S:
                continue
            yield Mark(
                at_s=event.at_s + offset_s,
                happening=happening,
                worker=worker,
                cause=event.cause,
                size=_size_at(timeline, event.at_s),
            )


def _subjects(event: TrainingEvent, happening: Happening) -> Sequence[str]:
    return event.of if happening is Happening.LOSS and event.of else (event.worker,)


def _size_at(timeline: Timeline, at_s: float) -> int:
    place = bisect_right(timeline.steps, at_s, key=lambda step: step.at_s)
    return timeline.steps[max(0, place - 1)].world_size


def _bill(
    members: Sequence[Member], launched_at: datetime, end_s: float, disk_gib: int
) -> Iterator[tuple[float, Decimal]]:
    """Yield the bill so far: minimum billings, volumes and addresses included."""
    changes = {
        (time - launched_at).total_seconds()
        for member in members
        for time in (member.instance.launched_at, member.ended_at)
        if time is not None
    }
    times = {end_s * place / BILL_POINTS for place in range(BILL_POINTS + 1)} | changes
    for at_s in sorted(times):
        until = launched_at + timedelta(seconds=at_s)
        usd = total_usd(_usd_until(member, until, disk_gib) for member in members)
        if usd is None:
            return
        yield at_s, usd


def _usd_until(member: Member, until: datetime, disk_gib: int) -> Decimal | None:
    if member.instance.launched_at > until:
        return Decimal(0)
    if member.ended_at is not None and member.ended_at <= until:
        return member_usd(member, disk_gib, until)
    # As it was billed while it was up: whether it turns out free is only known at its end.
    return member_usd(replace(member, ended_at=None), disk_gib, until)


def _fixed_bill(baseline: OnDemandBaseline) -> tuple[tuple[float, Decimal], ...]:
    """Return the bill of the fixed run: its first minute whole, then by the second."""
    billed_s = max(MINIMUM_BILLED_S, baseline.seconds)
    first = baseline.usd * Decimal(MINIMUM_BILLED_S / billed_s)
    flat_s = min(float(MINIMUM_BILLED_S), baseline.seconds)
    return ((0.0, first), (flat_s, first), (baseline.seconds, baseline.usd))
