"""What an elastic run came to: steps, sizes, interruptions, and its cost beside a fixed one on demand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from statistics import median

from dlcloud.core.cluster import Member
from dlcloud.core.cost import billed_seconds, cost_of_seconds, member_usd, total_usd
from dlcloud.core.instance import Market
from dlcloud.core.timeline import Timeline, TrainingEvent

REPORTED_EVENTS = (
    "joined",
    "healed",
    "resumed",
    "coordinator",
    "notice",
    "rebalance",
    "drained",
    "lost",
    "leaving seen",
    "retry",
    "hold",
    "no quorum",
    "killed",
    "checkpoint failed",
    "done",
)
"""The events that say something of the run; the others are the daily life of its processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSizePeriod:
    """A time in which the number of workers did not change.

    `at_s` is since the run began; `pause_s` is what the change that began it cost: the time from the commit
    before to the first one at this size, less a usual step; None for the first.
    """

    at_s: float
    world_size: int
    steps: int
    pause_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceCost:
    """What one instance cost the run; `usd` is None at an unknown price."""

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
        samples: Seen by them.
        seconds: From its first record to its last step.
        mean_size: Workers, weighted with the time that each number of them lasted.
        redone: Steps that were begun and not committed, or committed and taken again from an older state.
        spells: The sizes over time.
        events: What happened, and why.
        shares: What each instance cost, the oldest first.
        fixed: The same on demand and without a change; None where a price or a throughput is missing.
    """

    run: str
    steps: int
    samples: int
    seconds: float
    mean_size: float
    redone: int
    last_loss: float | None
    spells: tuple[WorldSizePeriod, ...]
    events: tuple[TrainingEvent, ...]
    shares: tuple[InstanceCost, ...]
    fixed: OnDemandBaseline | None

    @property
    def usd(self) -> Decimal | None:
        """Return what all instances cost together; None where a price is missing."""
        return total_usd(share.usd for share in self.shares)

    @property
    def saved(self) -> Decimal | None:
        """Return which share of the fixed run's cost was saved; below 0 where it cost more."""
        if self.usd is None or self.fixed is None or not self.fixed.usd:
            return None
        return 1 - self.usd / self.fixed.usd


def training_of(
    timeline: Timeline,
    members: Sequence[Member],
    *,
    on_demand: Mapping[str, Decimal],
    disk_gib: int,
    now: datetime,
) -> Training:
    """Return what a run came to.

    Args:
        timeline: Its steps and events.
        members: Its instances, those that ended included.
        on_demand: USD an hour of each instance type, on demand.
        disk_gib: Of each instance's volume.
        now: How far an instance that is up has been billed.
    """
    steps = timeline.steps
    shares = tuple(
        _share(each, disk_gib, now) for each in sorted(members, key=lambda each: each.instance.launched_at)
    )
    return Training(
        run=timeline.run,
        steps=len(steps),
        samples=sum(step.samples for step in steps),
        seconds=steps[-1].at_s,
        mean_size=_mean_size(timeline),
        redone=timeline.again
        + len({(each.worker, each.at_s) for each in timeline.events if each.event == "retry"}),
        last_loss=steps[-1].loss,
        spells=tuple(_spells(timeline)),
        events=tuple(each for each in timeline.events if each.event in REPORTED_EVENTS),
        shares=shares,
        fixed=_fixed(timeline, shares, on_demand, disk_gib),
    )


def _share(member: Member, disk_gib: int, now: datetime) -> InstanceCost:
    seconds = billed_seconds(member.instance.launched_at, member.ended_at or now)
    return InstanceCost(member=member, seconds=seconds, usd=member_usd(member, disk_gib, now))


def _mean_size(timeline: Timeline) -> float:
    spent = sum(step.seconds for step in timeline.steps)
    if not spent:
        return float(timeline.steps[0].world_size)
    return sum(step.world_size * step.seconds for step in timeline.steps) / spent


def _spells(timeline: Timeline) -> list[WorldSizePeriod]:
    groups: list[list[int]] = []
    steps = timeline.steps
    for place, step in enumerate(steps):
        if groups and steps[groups[-1][-1]].world_size == step.world_size:
            groups[-1].append(place)
        else:
            groups.append([place])
    spells = []
    for number, group in enumerate(groups):
        own = [steps[place] for place in group]
        usual = median(step.seconds for step in own)
        pause = max(0.0, own[0].seconds - usual) if number else None
        spells.append(
            WorldSizePeriod(at_s=own[0].at_s, world_size=own[0].world_size, steps=len(own), pause_s=pause)
        )
    return spells


def _fixed(
    timeline: Timeline, shares: Sequence[InstanceCost], on_demand: Mapping[str, Decimal], disk_gib: int
) -> OnDemandBaseline | None:
    """Estimate the fixed run: as many workers as there were at most, at their usual speed, from boot to end.

    It boots as long as the first instances did, from their launch to the first step.
    """
    size = max(step.world_size for step in timeline.steps)
    usual = [step.seconds for step in timeline.steps if step.world_size == size and step.seconds > 0]
    prices = [on_demand.get(share.member.instance.instance_type) for share in shares]
    known = [price for price in prices if price is not None]
    if not usual or not known or not shares or len(known) < len(prices):
        return None
    first = min(share.member.instance.launched_at for share in shares)
    boot_s = max(0.0, (timeline.began_at - first).total_seconds()) + timeline.steps[0].at_s
    seconds = boot_s + median(usual) * len(timeline.steps)
    billed = max(60, round(seconds))
    usd = size * cost_of_seconds(max(known), disk_gib, billed)
    return OnDemandBaseline(instances=size, seconds=seconds, usd=usd)


def of_market(training: Training, market: Market) -> Decimal | None:
    """Return what the instances of a market cost together; None where a price is missing."""
    return total_usd(share.usd for share in training.shares if share.member.instance.market is market)
