"""The walk of `dlcloud status`: what the store remembers, corrected by what the cloud tells now."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from dlcloud.cli.context import Context
from dlcloud.core.cluster import CLUSTER_TAG, Cluster, Member
from dlcloud.core.cost import billed_seconds, instance_usd, rounded, volume_usd
from dlcloud.core.instance import Instance, InstanceState
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
    """Return the table: who, what, where, for how long, for how much."""
    section = Section(
        heading="",
        titles=("cluster", "state", "instance", "type", "market", "address", "up", "USD"),
        rows=[_row(line, now) for line in lines],
        notes=_notes(lines),
        numeric=frozenset({6, 7}),
    )
    return Report(
        command="status",
        records=[_record(line, now) for line in lines],
        sections=[section] if lines else [],
        empty="nothing is up",
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


def _row(line: InstanceLine, now: datetime) -> tuple[str, ...]:
    cluster = f"{line.cluster.name}" if line.cluster else "(not of this home)"
    if line.member is None:
        return (cluster, str(line.cluster.state) if line.cluster else "", "no instance", "", "", "", "", "")
    instance, usd = line.member.instance, line.usd(now)
    mark = "*" if line.cluster and line.cluster.cloud == "local" else ""
    address = "" if not instance.host or not instance.alive else _address(instance)
    return (
        cluster,
        str(instance.state),
        instance.instance_id,
        instance.instance_type,
        str(instance.market),
        address,
        _duration((line.member.ended_at or now) - instance.launched_at),
        f"{rounded(usd)}{mark}" if usd is not None else "unknown",
    )


def _address(instance: Instance) -> str:
    return instance.host if instance.ssh_port == 22 else f"{instance.host}:{instance.ssh_port}"  # noqa: PLR2004


def _duration(elapsed: object) -> str:
    return str(elapsed).partition(".")[0]


def _notes(lines: Sequence[InstanceLine]) -> list[str]:
    local = any(line.cluster and line.cluster.cloud == "local" for line in lines)
    notes = ["* rehearsal on the local EC2: not billed, at the types' prices"] if local else []
    if any(line.cluster is None for line in lines):
        notes.append(
            "instances not of this home carry dlcloud's tag; another machine or a lost store made them"
        )
    return notes


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
