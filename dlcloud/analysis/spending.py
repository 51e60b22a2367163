"""What the clusters of a home cost, by cluster and by day, and the limit of a month.

`cost-report` shows the costs, trainings and failed set-ups included. Before a launch, `up` adds what running
clusters and allowed plans may yet cost (`MonthState`) and refuses a plan that exceeds what is left of the
month. A plan counts from the moment it is allowed until its cluster is stored, so that two launches at the
same time cannot spend the same money.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Self

from dlcloud.model.cluster import Cluster, Member
from dlcloud.model.money import member_usd, money, total_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCost:
    """The cost of a cluster's instances, volumes and addresses so far; None at an unknown price."""

    cluster: Cluster
    instances: int
    usd: Decimal | None
    days: Mapping[date, Decimal]

    @property
    def rehearsal(self) -> bool:
        """True if nothing of it was billed."""
        return self.cluster.cloud == "local"


def costs_of_clusters(
    clusters: Iterable[Cluster], members: Mapping[str, Sequence[Member]], now: datetime
) -> list[ClusterCost]:
    """Return the costs of the clusters that had instances, the newest first.

    `members` are their instances by cluster id; one that is up is billed until `now`.
    """
    costs = [
        _cost_of_cluster(cluster, members.get(cluster.cluster_id, ()), now)
        for cluster in clusters
        if members.get(cluster.cluster_id)
    ]
    return sorted(costs, key=lambda cost: cost.cluster.created_at, reverse=True)


def total_of(costs: Iterable[ClusterCost], *, rehearsal: bool) -> tuple[Decimal, int]:
    """Return the sum of the prices that are known, and the number of clusters without one."""
    chosen = [cost.usd for cost in costs if cost.rehearsal is rehearsal]
    return sum((usd for usd in chosen if usd is not None), Decimal(0)), chosen.count(None)


def costs_by_day(costs: Iterable[ClusterCost], *, rehearsal: bool) -> dict[date, Decimal]:
    """Return the costs of each day in UTC, the oldest first."""
    days: dict[date, Decimal] = {}
    for cost in costs:
        if cost.rehearsal is rehearsal:
            for day, usd in cost.days.items():
                days[day] = days.get(day, Decimal(0)) + usd
    return dict(sorted(days.items()))


def _cost_of_cluster(cluster: Cluster, members: Sequence[Member], now: datetime) -> ClusterCost:
    amounts = [member_usd(member, cluster.disk_gib, now) for member in members]
    days: dict[date, Decimal] = {}
    for member, usd in zip(members, amounts, strict=True):
        for day, share in _shares(member.instance.launched_at, member.ended_at or now):
            if usd is not None:
                days[day] = days.get(day, Decimal(0)) + usd * share
    return ClusterCost(cluster=cluster, instances=len(members), usd=total_usd(amounts), days=days)


def _shares(start: datetime, end: datetime) -> list[tuple[date, Decimal]]:
    """Return the days between two times in UTC, each with its share of the time."""
    begin, end = start.astimezone(UTC), max(start, end).astimezone(UTC)
    whole = (end - begin).total_seconds()
    if not whole:
        return [(begin.date(), Decimal(1))]
    shares = []
    while begin < end:
        midnight = datetime.combine(begin.date() + timedelta(days=1), time(), UTC)
        until = min(end, midnight)
        shares.append((begin.date(), Decimal(repr((until - begin).total_seconds() / whole))))
        begin = until
    return shares


THRESHOLDS = (50, 80, 100)
"""Percents of the limit that are notified of."""

PENDING = timedelta(hours=1)
"""How long a plan counts that has launched nothing yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPlan:
    """A plan that was allowed and whose cluster is not stored yet.

    `name` is that of its recipe, `usd` its worst case.
    """

    name: str
    usd: Decimal
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeMonth:
    """One home's part of a month.

    Attributes:
        spent: USD so far.
        committed: USD that its clusters and plans may yet cost.
        pending: Its plans without a cluster; `committed` includes them.
    """

    spent: Decimal
    committed: Decimal
    pending: Sequence[PendingPlan] = ()
    as_of: datetime

    def to_json(self) -> dict[str, Any]:
        plans = [
            {"name": plan.name, "usd": str(plan.usd), "at": plan.at.isoformat()} for plan in self.pending
        ]
        return {
            "spent_usd": str(self.spent),
            "committed_usd": str(self.committed),
            "pending": plans,
            "as_of": self.as_of.isoformat(),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read it.

        Raises:
            ValueError, ArithmeticError, KeyError, TypeError: It is none.
        """
        return cls(
            spent=Decimal(values["spent_usd"]),
            committed=Decimal(values["committed_usd"]),
            pending=tuple(
                PendingPlan(
                    name=plan["name"], usd=Decimal(plan["usd"]), at=datetime.fromisoformat(plan["at"])
                )
                for plan in values.get("pending", ())
            ),
            as_of=datetime.fromisoformat(values["as_of"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthState:
    """A month of everybody who shares its limit.

    Attributes:
        month: As in 2026-11.
        homes: By the id of the home.
        billed: What Cost Explorer knows; None where it was not asked, or does not answer.
    """

    month: str
    limit: Decimal
    homes: Mapping[str, HomeMonth]
    billed: Decimal | None = None

    @property
    def spent(self) -> Decimal:
        """What was spent: the larger of what homes computed and what AWS billed."""
        own = sum((home.spent for home in self.homes.values()), Decimal(0))
        return max(own, self.billed or Decimal(0))

    @property
    def committed(self) -> Decimal:
        """What running clusters and allowed plans may yet cost."""
        return sum((home.committed for home in self.homes.values()), Decimal(0))

    @property
    def left(self) -> Decimal:
        return max(Decimal(0), self.limit - self.spent - self.committed)

    def refusal(self, usd: Decimal | None) -> str:
        """Return why a plan that may cost `usd` must not start; empty if it may."""
        if usd is None:
            return "a price is unknown, so that the limit of the month cannot be held"
        if usd <= self.left:
            return ""
        parts = f"{money(self.spent)} spent, {money(self.committed)} USD that running clusters may yet cost"
        return (
            f"this could cost up to {money(usd)} USD, and {money(self.left)} USD of {money(self.limit)} "
            f"are left for {self.month} ({parts})"
        )

    def passed(self, before: int) -> int:
        """Return the largest threshold that was passed, if it is above `before`; else 0."""
        share = 100 * self.spent / self.limit
        return max((percent for percent in THRESHOLDS if before < percent <= share), default=0)


def month_of(now: datetime) -> str:
    """Return the month in UTC, by which AWS bills."""
    return f"{now.astimezone(UTC):%Y-%m}"


def spent_in(costs: Iterable[ClusterCost], month: str, *, rehearsals: bool) -> Decimal:
    """Return what clusters cost in a month, rehearsals only with `rehearsals`."""
    return sum(
        (
            usd
            for cost in costs
            if rehearsals or not cost.rehearsal
            for day, usd in cost.days.items()
            if f"{day:%Y-%m}" == month
        ),
        Decimal(0),
    )


def yet_to_cost(
    cluster: Cluster, members: Iterable[Member], *, max_hours: float, max_usd: Decimal | None, now: datetime
) -> Decimal:
    """Return what the living instances of a cluster may cost from now on, by the budget of its recipe."""
    total = Decimal(0)
    for member in members:
        if member.ended_at is None:
            end = max(now, member.instance.launched_at + timedelta(hours=max_hours))
            worst, so_far = (member_usd(member, cluster.disk_gib, until) for until in (end, now))
            total += (worst or Decimal(0)) - (so_far or Decimal(0))
    return total if max_usd is None else min(total, max_usd)


def still_pending(
    plans: Iterable[PendingPlan], created: Collection[tuple[str, datetime]], now: datetime
) -> list[PendingPlan]:
    """Return the plans that still count in addition to the clusters that are stored.

    Args:
        plans: The plans.
        created: The recipe's name and the creation of each cluster; one made after a plan is that plan's.
        now: A plan is forgotten after a while.
    """
    return [
        plan
        for plan in plans
        if now < plan.at + PENDING and not any(name == plan.name and at >= plan.at for name, at in created)
    ]
