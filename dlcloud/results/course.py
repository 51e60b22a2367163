"""The course of an elastic training: its workers by market and type, what happened to them, and the bill.

Times are seconds since the launch of the first instance: what lies before the first step is the start.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from dlcloud.model.cluster import Member
from dlcloud.model.money import MINIMUM_BILLED_S, member_usd, total_usd
from dlcloud.results.timeline import Timeline, TrainingEvent
from dlcloud.results.training_summary import OnDemandBaseline
from dlcloud.trainer.records import EventName

BILL_POINTS = 60
"""Times at which the bill is drawn, beside launches and ends."""
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

    Args:
        timeline: Its steps and events.
        members: Its instances, terminated ones included.
        baseline: The fixed run that it is compared with.
        disk_gib: Of each instance's volume.
        now: The end of the billing period of an instance that is up.
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
    return member_usd(_up(member), disk_gib, until)


def _up(member: Member) -> Member:
    """Return an instance as it was while it was up: whether it turns out free is only known at its end."""
    return replace(member, ended_at=None)


def _fixed_bill(baseline: OnDemandBaseline) -> tuple[tuple[float, Decimal], ...]:
    """Return the bill of the fixed run: its first minute at once, then by the second."""
    billed_s = max(MINIMUM_BILLED_S, baseline.seconds)
    first = baseline.usd * Decimal(MINIMUM_BILLED_S / billed_s)
    flat_s = min(float(MINIMUM_BILLED_S), baseline.seconds)
    return ((0.0, first), (flat_s, first), (baseline.seconds, baseline.usd))
