"""What AWS billed for clusters, beside what dlcloud reckons that they cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from dlcloud.core.cluster import Cluster, Member
from dlcloud.core.cost import billed_seconds, instance_usd, volume_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledCost:
    """What AWS billed; `estimated` until it has closed the month."""

    usd: Decimal
    estimated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """One cluster: our estimate, None at an unknown price, and AWS's bill, None where none is known."""

    cluster: Cluster
    estimate: Decimal | None
    billed: BilledCost | None

    @property
    def difference(self) -> Decimal | None:
        """Return how much more AWS billed than we reckoned."""
        return None if self.estimate is None or self.billed is None else self.billed.usd - self.estimate


def cluster_usd(cluster: Cluster, members: Sequence[Member], now: datetime) -> Decimal | None:
    """Return what the instances of a cluster and their volumes have cost until their end, or until now."""
    usd = Decimal(0)
    for member in members:
        if member.hourly_usd is None:
            return None
        seconds = billed_seconds(member.instance.launched_at, member.ended_at or now)
        usd += instance_usd(member.hourly_usd, seconds) + volume_usd(cluster.disk_gib, seconds)
    return usd


def reconcile(
    clusters: Sequence[Cluster],
    members: Mapping[str, Sequence[Member]],
    billed: Mapping[str, BilledCost],
    now: datetime,
) -> list[Reconciliation]:
    """Return estimate and bill of clusters; those on the local EC2, which bills nothing, are left out."""
    return [
        Reconciliation(
            cluster=cluster,
            estimate=cluster_usd(cluster, members.get(cluster.cluster_id, ()), now),
            billed=billed.get(cluster.cluster_id),
        )
        for cluster in clusters
        if cluster.cloud != "local"
    ]
