"""The walk of `dlcloud status`: what the store remembers, corrected by what the cloud tells now."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from itertools import groupby

from dlcloud.cli.context import Context
from dlcloud.core.cluster import CLUSTER_TAG, Cluster, Member
from dlcloud.core.cost import billed_seconds, instance_usd, rounded, volume_usd
from dlcloud.core.instance import Instance, InstanceState, Market
from dlcloud.report.table import Report, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLine:
    """One instance; `member` is None for a cluster without instances, `cluster` for an unknown instance."""

    cluster: Cluster | None
    member: Member | None

    def usd(self, now: datetime) -> Decimal | None:
        """Return what the instance and its disk have cost until now or their end."""
        if self.cluster is None or self.member is None or self.member.hourly_usd is None:
            return None
        seconds = billed_seconds(self.member.instance.launched_at, self.member.ended_at or now)
        return instance_usd(self.member.hourly_usd, seconds) + volume_usd(self.cluster.disk_gib, seconds)


def instance_lines(context: Context, *, everything: bool) -> list[InstanceLine]:
    """Return a line for each instance of each cluster, and for managed ones that no cluster here knows."""
    clusters = context.clusters.all() if everything else context.clusters.active()
    places = {(cluster.cloud, cluster.region) for cluster in context.clusters.active()}
    seen = {place: _seen(context, *place) for place in sorted(places)}
    lines: list[InstanceLine] = []
    for cluster in clusters:
        now = seen.get((cluster.cloud, cluster.region), [])
        lines += _lines_of(cluster, context.clusters.members(cluster.cluster_id), now)
    known = {cluster.cluster_id for cluster in context.clusters.all()}
    strays = [each for found in seen.values() for each in found if each.tags.get(CLUSTER_TAG) not in known]
    return lines + [InstanceLine(cluster=None, member=_member(each)) for each in strays if each.alive]


def status_report(lines: Sequence[InstanceLine], *, now: datetime) -> Report:
    """Return a table for each cluster: its instances, where they are, for how long, for how much."""
    grouped = groupby(lines, key=lambda line: line.cluster)
    return Report(
        command="status",
        records=[_record(line, now) for line in lines],
        sections=[_section(cluster, list(of_cluster), now) for cluster, of_cluster in grouped],
        empty="nothing is up",
    )


def _section(cluster: Cluster | None, lines: Sequence[InstanceLine], now: datetime) -> Section:
    if cluster is None:
        heading = "instances with dlcloud's tag that this home does not know: another machine made them"
    else:
        heading = f"{cluster.name}: {cluster.state}, {cluster.cloud} {cluster.region}"
    rows = [_row(line.member, line.usd(now), now, cluster) for line in lines if line.member]
    local = cluster is not None and cluster.cloud == "local"
    return Section(
        heading=heading,
        titles=("instance", "state", "type", "address", "up", "USD"),
        rows=rows,
        notes=["* rehearsal on the local EC2: not billed, at the type's price"] if local and rows else [],
        numeric=frozenset({4, 5}),
    )


def _seen(context: Context, cloud: str, region: str) -> list[Instance]:
    if cloud == "local" and context.local_site.find() is None:
        return []  # its instances ended with it; looking must not start another
    return context.cloud(cloud, region).instances()


def _lines_of(cluster: Cluster, members: Sequence[Member], seen: Iterable[Instance]) -> list[InstanceLine]:
    """Join what was remembered of a cluster with what is seen of it."""
    now = {each.instance_id: each for each in seen if each.tags.get(CLUSTER_TAG) == cluster.cluster_id}
    remembered = {member.instance.instance_id: member for member in members}
    joined = [_current(member, now.get(name)) for name, member in remembered.items()]
    joined += [_member(each) for name, each in now.items() if name not in remembered]
    return [InstanceLine(cluster=cluster, member=member) for member in joined] or [
        InstanceLine(cluster=cluster, member=None)
    ]


def _current(member: Member, seen: Instance | None) -> Member:
    if seen is None:
        return replace(member, instance=replace(member.instance, state=InstanceState.TERMINATED))
    return replace(member, instance=seen)


def _member(instance: Instance) -> Member:
    return Member(instance=instance, hourly_usd=None, price_source="", price_as_of=None)


def _row(member: Member, usd: Decimal | None, now: datetime, cluster: Cluster | None) -> tuple[str, ...]:
    instance = member.instance
    mark = "*" if cluster and cluster.cloud == "local" else ""
    return (
        instance.instance_id,
        str(instance.state),
        f"{instance.instance_type}{' spot' if instance.market is Market.SPOT else ''}",
        _address(instance) if instance.host and instance.alive else "",
        str((member.ended_at or now) - instance.launched_at).partition(".")[0],
        f"{rounded(usd)}{mark}" if usd is not None else "unknown",
    )


def _address(instance: Instance) -> str:
    return instance.host if instance.ssh_port == 22 else f"{instance.host}:{instance.ssh_port}"  # noqa: PLR2004


def _record(line: InstanceLine, now: datetime) -> dict[str, str | int | bool | Decimal | datetime | None]:
    cluster, member = line.cluster, line.member
    return {
        "cluster": cluster.name if cluster else None,
        "cluster_id": cluster.cluster_id if cluster else None,
        "cluster_state": str(cluster.state) if cluster else None,
        "cloud": cluster.cloud if cluster else None,
        "region": cluster.region if cluster else None,
        "rehearsal": cluster.cloud == "local" if cluster else None,
        "instance_id": member.instance.instance_id if member else None,
        "instance_type": member.instance.instance_type if member else None,
        "market": str(member.instance.market) if member else None,
        "zone": member.instance.zone if member else None,
        "state": str(member.instance.state) if member else None,
        "host": member.instance.host if member else None,
        "ssh_port": member.instance.ssh_port if member else None,
        "launched_at": member.instance.launched_at if member else None,
        "ended_at": member.ended_at if member else None,
        "hourly_usd": member.hourly_usd if member else None,
        "usd_so_far": None if (usd := line.usd(now)) is None else rounded(usd, 6),
    }
