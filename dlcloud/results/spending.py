"""What a home's clusters cost: by cluster and by day, trainings and failed set-ups included."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

from dlcloud.model.cluster import Cluster, Member
from dlcloud.model.money import member_usd, total_usd


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

    Args:
        clusters: All of a home.
        members: Their instances by cluster id, terminated ones included.
        now: The end of the billing period of an instance that is up.
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
