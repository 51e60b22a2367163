"""The walk of `dlcloud status`: what the store remembers, corrected by what the cloud tells now."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from itertools import groupby

from dlcloud.cli.context import Context
from dlcloud.core.cluster import CLUSTER_TAG, Cluster, ClusterState, Member
from dlcloud.core.cost import billed_seconds, instance_usd, money, rounded, volume_usd
from dlcloud.core.instance import Instance, InstanceState, Market
from dlcloud.core.whereabouts import DetachedCluster, controlled
from dlcloud.report.table import Report, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLine:
    """One instance; `member` is None for a cluster without instances, `cluster` for an unknown instance.

    `controlled` is set where an instance of the cluster itself controls it: it knows more than this home.
    """

    cluster: Cluster | None
    member: Member | None
    controlled: DetachedCluster | None = None

    def usd(self, now: datetime) -> Decimal | None:
        """Return what the instance and its disk have cost until now or their end."""
        if self.cluster is None or self.member is None or self.member.hourly_usd is None:
            return None
        seconds = billed_seconds(self.member.instance.launched_at, self.member.ended_at or now)
        return instance_usd(self.member.hourly_usd, seconds) + volume_usd(self.cluster.disk_gib, seconds)


def instance_lines(
    context: Context, name: str = "", *, everything: bool, everywhere: bool = False
) -> list[InstanceLine]:
    """Return a line for each instance of each cluster, and for managed ones that no cluster here knows.

    Args:
        context: The collaborators.
        name: Only of this cluster; of all if it is empty.
        everything: Also of clusters that are down.
        everywhere: Also of clusters that other machines left to instances of their own.

    Raises:
        RecipeError: There is no cluster of that name.
    """
    if name:
        return _lines_of_one(context, context.clusters.find(name) or context.find_cluster(name))
    clusters = context.clusters.all() if everything else context.clusters.active()
    places = {(cluster.cloud, cluster.region) for cluster in context.clusters.active()}
    if everywhere:
        from dlcloud.cli.elsewhere import everywhere as find_everywhere

        places |= {(each.cloud, each.region) for each in find_everywhere(context)}
    seen = {place: _seen(context, *place) for place in sorted(places)}
    controllers = {
        found.cluster_id: found
        for (cloud, region), instances in seen.items()
        for found in controlled(instances, cloud=cloud, region=region)
    }
    lines: list[InstanceLine] = []
    for cluster in clusters:
        now = seen.get((cluster.cloud, cluster.region), [])
        members = context.clusters.members(cluster.cluster_id)
        lines += _lines_of(cluster, members, now, controllers.get(cluster.cluster_id))
    known = {cluster.cluster_id for cluster in context.clusters.all()}
    strays = [each for found in seen.values() for each in found if each.tags.get(CLUSTER_TAG) not in known]
    # One cluster after the other, and last those that nobody controls.
    strays.sort(
        key=lambda each: (each.tags.get(CLUSTER_TAG) not in controllers, each.tags.get(CLUSTER_TAG, ""))
    )
    return lines + [
        InstanceLine(
            cluster=None, member=_member(each), controlled=controllers.get(each.tags.get(CLUSTER_TAG, ""))
        )
        for each in strays
        if each.alive
    ]


def status_report(lines: Sequence[InstanceLine], *, now: datetime) -> Report:
    """Return a table for each cluster: its instances, where they are, for how long, for how much."""
    grouped = groupby(lines, key=lambda line: (line.cluster, line.controlled))
    return Report(
        command="status",
        records=[_record(line, now) for line in lines],
        sections=[_section(*of_whom, list(of_cluster), now) for of_whom, of_cluster in grouped],
        empty="nothing is up",
    )


def _section(
    cluster: Cluster | None, found: DetachedCluster | None, lines: Sequence[InstanceLine], now: datetime
) -> Section:
    heading = _heading(cluster, found)
    rows = [_row(line.member, line.usd(now), now, cluster) for line in lines if line.member]
    local = cluster is not None and cluster.cloud == "local"
    return Section(
        heading=heading,
        titles=("instance", "state", "type", "address", "up", "USD"),
        rows=rows,
        notes=["* rehearsal on the local EC2: not billed, at the type's price"] if local and rows else [],
        numeric=frozenset({4, 5}),
    )


def _heading(cluster: Cluster | None, found: DetachedCluster | None) -> str:
    if found is not None:
        where = f"detached, {found.cloud} {found.region}, controlled by {found.instance.instance_id}"
        return f"{found.name}: {where}; dlcloud status {found.name} asks it"
    if cluster is None:
        return "instances with dlcloud's tag that this home does not know: another machine made them"
    return f"{cluster.name}: {cluster.state}, {cluster.cloud} {cluster.region}"


def _lines_of_one(context: Context, cluster: Cluster) -> list[InstanceLine]:
    members = context.clusters.members(cluster.cluster_id)
    down = cluster.state is ClusterState.DOWN
    return _lines_of(cluster, members, [] if down else _seen(context, cluster.cloud, cluster.region), None)


def _seen(context: Context, cloud: str, region: str) -> list[Instance]:
    if cloud == "local" and context.local_site.find() is None:
        return []  # its instances ended with it; looking must not start another
    return context.cloud(cloud, region).instances()


def _lines_of(
    cluster: Cluster, members: Sequence[Member], seen: Iterable[Instance], found: DetachedCluster | None
) -> list[InstanceLine]:
    """Join what was remembered of a cluster with what is seen of it."""
    now = {each.instance_id: each for each in seen if each.tags.get(CLUSTER_TAG) == cluster.cluster_id}
    remembered = {member.instance.instance_id: member for member in members}
    joined = [_current(member, now.get(name)) for name, member in remembered.items()]
    joined += [_member(each) for name, each in now.items() if name not in remembered]
    return [InstanceLine(cluster=cluster, member=member, controlled=found) for member in joined] or [
        InstanceLine(cluster=cluster, member=None, controlled=found)
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
        f"{money(usd)}{mark}" if usd is not None else "unknown",
    )


def _address(instance: Instance) -> str:
    return instance.host if instance.ssh_port == 22 else f"{instance.host}:{instance.ssh_port}"  # noqa: PLR2004


def _record(line: InstanceLine, now: datetime) -> dict[str, str | int | bool | Decimal | datetime | None]:
    cluster, member = line.cluster, line.member
    known = cluster or line.controlled
    return {
        "cluster": known.name if known else None,
        "cluster_id": known.cluster_id if known else None,
        "cluster_state": "detached" if line.controlled else str(cluster.state) if cluster else None,
        "controller": line.controlled.instance.instance_id if line.controlled else None,
        "cloud": known.cloud if known else None,
        "region": known.region if known else None,
        "rehearsal": known.cloud == "local" if known else None,
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
