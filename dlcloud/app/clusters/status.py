"""`dlcloud status`: what the store holds of the clusters, corrected by what the cloud reports now."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from itertools import groupby
from typing import Any

from dlcloud.analysis.run_progress import RunProgress, progress_of, progress_of_trials
from dlcloud.app.context import Context
from dlcloud.app.terminal.screen import clear, say
from dlcloud.detached.locate import DetachedCluster, find_detached
from dlcloud.model.account import Ownership, owner_of
from dlcloud.model.cluster import CLUSTER_TAG, Cluster, ClusterState, Member
from dlcloud.model.errors import WrongAccountError
from dlcloud.model.events import Warned
from dlcloud.model.instance import SSH_PORT, Instance, InstanceState, Market
from dlcloud.model.money import member_usd, millionths, money
from dlcloud.report.cells import describe_progress, progress_record
from dlcloud.report.table import Format, Report, Section, render
from dlcloud.runs.replacement import Interruptions, interruptions_of
from dlcloud.scheduling.outlook import Outlook, describe_outlook

WATCH_S = 5.0
"""Seconds between two prints of --watch."""


def run(
    context: Context,
    *,
    cluster: str = "",
    all_clusters: bool = False,
    everywhere: bool = False,
    all_owners: bool = False,
    watch: bool = False,
    output: str,
) -> int | None:
    """Show instances as the cloud reports them now, with their cost.

    Args:
        context: The collaborators.
        cluster: Only this one.
        all_clusters: Include clusters that are down.
        everywhere: Include detached clusters of other machines, in every region.
        all_owners: Include clusters of other people.
        watch: Print it again every WATCH_S seconds while an instance is up.
        output: The format.
    """
    if cluster:
        status = context.forward_command(cluster)
        if status is not None:
            return status

    def show() -> bool:
        """Print the status; True if an instance is up."""
        lines = (
            _lines_of_one(context, _cluster_named(context, cluster))
            if cluster
            else _all_lines(context, all_clusters=all_clusters, everywhere=everywhere, all_owners=all_owners)
        )
        ids = {line.cluster.cluster_id for line in lines if line.cluster}
        outlooks = {name: outlook for name in ids if (outlook := context.clusters.outlook(name)) is not None}
        interruptions = {
            name: summary for name in ids if (summary := interruptions_of(context.clusters, name)) is not None
        }
        progress = _progress(context, ids)
        notes = StatusNotes(outlooks=outlooks, progress=progress, interruptions=interruptions)
        say(render(status_report(lines, now=context.clock.now(), notes=notes), Format(output)))
        return any(line.member is not None and line.member.instance.alive for line in lines)

    is_up = show()
    while watch and is_up:
        context.clock.sleep(WATCH_S)
        clear()
        is_up = show()
    return None


def _progress(context: Context, cluster_ids: Iterable[str]) -> dict[str, RunProgress]:
    """Return the progress of the runs that have not ended, by cluster."""
    by_cluster = {}
    for cluster_id in cluster_ids:
        runs = context.runs.of_cluster(cluster_id)
        if trials := [run for run in runs if run.experiment]:
            by_cluster[cluster_id] = progress_of_trials(trials)
            continue
        running = [run.run_id for run in runs if run.ended_at is None]
        records = [
            record
            for kind in ("start", "step", "progress")
            for of_run in context.measurements.records(running, kind).values()
            for record in of_run
        ]
        progress = progress_of(records, context.clock.now())
        if progress is not None:
            by_cluster[cluster_id] = progress
    return by_cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusNotes:
    """What is known of clusters in addition to their instances, by cluster id: of deadlines, and of runs."""

    outlooks: Mapping[str, Outlook] = field(default_factory=dict)
    progress: Mapping[str, RunProgress] = field(default_factory=dict)
    interruptions: Mapping[str, Interruptions] = field(default_factory=dict)

    def of(self, cluster: Cluster | None, now: datetime) -> list[str]:
        """Return the notes of a cluster."""
        if cluster is None:
            return []
        progress, outlook = self.progress.get(cluster.cluster_id), self.outlooks.get(cluster.cluster_id)
        notes = [] if progress is None else [describe_progress(progress)]
        interruptions = self.interruptions.get(cluster.cluster_id)
        notes += [] if interruptions is None else [interruptions.describe()]
        return notes if outlook is None else [*notes, describe_outlook(outlook, now)]

    def records(self) -> dict[str, list[dict[str, Any]]]:
        """Return the same for programs; empty where there is nothing."""
        deadlines = [{"cluster_id": name, **outlook.to_values()} for name, outlook in self.outlooks.items()]
        running = [{"cluster_id": name, **progress_record(of_run)} for name, of_run in self.progress.items()]
        lost = [{"cluster_id": name, **of_one.to_values()} for name, of_one in self.interruptions.items()]
        parts = {"deadlines": deadlines, "progress": running, "interruptions": lost}
        return {name: records for name, records in parts.items() if records}


NO_NOTES = StatusNotes()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLine:
    """One instance; `member` is None for a cluster without instances, `cluster` for an unknown instance.

    `detached` is set where an instance of the cluster itself controls it: it knows more than this home.
    """

    cluster: Cluster | None
    member: Member | None
    detached: DetachedCluster | None = None

    def usd(self, now: datetime) -> Decimal | None:
        """Return the cost of the instance and its disk until now or their end."""
        if self.cluster is None or self.member is None:
            return None
        return member_usd(self.member, self.cluster.disk_gib, now)


def _all_lines(
    context: Context, *, all_clusters: bool, everywhere: bool, all_owners: bool
) -> list[InstanceLine]:
    """Return a line for each instance of each cluster, and for tagged instances of clusters unknown here."""
    clusters = context.clusters.all() if all_clusters else context.clusters.active()
    places = {(cluster.cloud, cluster.region, cluster.profile) for cluster in context.clusters.active()}
    if everywhere:
        elsewhere = replace(context.detached, all_owners=all_owners).find_all()
        places |= {(cluster.cloud, cluster.region, cluster.profile) for cluster in elsewhere}
    reported = {place: _reported(context, *place) for place in sorted(places)}
    known_ids = {cluster.cluster_id for cluster in context.clusters.all()}
    if not all_owners:
        reported = {
            place: _without_others(context, place, instances, known_ids)
            for place, instances in reported.items()
        }
    detached = {
        cluster.cluster_id: cluster
        for (cloud, region, profile), instances in reported.items()
        for cluster in find_detached(instances, cloud=cloud, region=region, profile=profile)
    }
    lines: list[InstanceLine] = []
    for cluster in clusters:
        instances = reported.get((cluster.cloud, cluster.region, cluster.profile), [])
        members = context.clusters.members(cluster.cluster_id)
        if cluster.state is not ClusterState.DOWN and _is_unlisted(context, cluster, members, instances):
            try:
                context.accounts.verify(cluster)
            except WrongAccountError as error:
                context.emit(
                    Warned(
                        message=f"{error.message} (hint: {error.hint}); its instances are shown as last seen"
                    )
                )
                lines += [InstanceLine(cluster=cluster, member=member) for member in members] or [
                    InstanceLine(cluster=cluster, member=None)
                ]
                continue
        lines += _lines_of(context, cluster, members, instances, detached.get(cluster.cluster_id))
    return lines + _lines_of_strays(reported.values(), known_ids, detached)


def _cluster_named(context: Context, name: str) -> Cluster:
    """Return the cluster of a name or id, else one that is up whose name begins so, else the newest such.

    Raises:
        RecipeError: There is none, or several are up.
    """
    exact = context.clusters.find(name)
    alike = [cluster for cluster in context.clusters.all() if cluster.name.startswith(name)]
    is_up = any(cluster.name.startswith(name) for cluster in context.clusters.active())
    if exact is None and alike and not is_up:
        return max(alike, key=lambda cluster: cluster.created_at)
    return exact or context.find_cluster(name)


def _without_others(
    context: Context, place: tuple[str, str, str], instances: Sequence[Instance], known_ids: set[str]
) -> list[Instance]:
    """Leave out the instances of other people."""
    if all(instance.tags.get(CLUSTER_TAG) in known_ids for instance in instances):
        return list(instances)
    mine = context.owner(*place)
    return [
        instance
        for instance in instances
        if instance.tags.get(CLUSTER_TAG) in known_ids
        or mine.relation(owner_of(instance.tags)) is not Ownership.OTHER_OWNER
    ]


def status_report(lines: Sequence[InstanceLine], *, now: datetime, notes: StatusNotes = NO_NOTES) -> Report:
    """Return a table for each cluster: its instances, where they are, for how long, for how much."""
    groups = groupby(lines, key=lambda line: (line.cluster, line.detached))
    return Report(
        command="status",
        records=[_record(line, now) for line in lines],
        sections=[
            _add_notes(_section(*key, list(of_cluster), now), notes.of(key[0], now))
            for key, of_cluster in groups
        ],
        empty="nothing is up",
        extra=notes.records(),
    )


def _add_notes(section: Section, notes: Sequence[str]) -> Section:
    return replace(section, notes=[*notes, *section.notes])


def _lines_of_one(context: Context, cluster: Cluster) -> list[InstanceLine]:
    members = context.clusters.members(cluster.cluster_id)
    down = cluster.state is ClusterState.DOWN
    instances = [] if down else _reported(context, cluster.cloud, cluster.region, cluster.profile)
    if not down and _is_unlisted(context, cluster, members, instances):
        context.accounts.verify(cluster)
    return _lines_of(context, cluster, members, instances, None)


def _is_unlisted(
    context: Context, cluster: Cluster, members: Sequence[Member], instances: Iterable[Instance]
) -> bool:
    """True if EC2 answered without a living instance of a cluster: perhaps for another account."""
    if cluster.cloud == "local" and context.local_site.find() is None:
        return False
    listed = {instance.instance_id for instance in instances}
    return any(member.ended_at is None and member.instance.instance_id not in listed for member in members)


def _reported(context: Context, cloud: str, region: str, profile: str) -> list[Instance]:
    if cloud == "local" and context.local_site.find() is None:
        return []  # its instances ended with it; a look must not start another local EC2
    return context.clouds.instances(cloud, region, profile).find()


def _lines_of(
    context: Context,
    cluster: Cluster,
    members: Sequence[Member],
    instances: Iterable[Instance],
    detached: DetachedCluster | None,
) -> list[InstanceLine]:
    """Join the stored members of a cluster with its reported instances."""
    current = {
        instance.instance_id: instance
        for instance in instances
        if instance.tags.get(CLUSTER_TAG) == cluster.cluster_id
    }
    stored = {member.instance.instance_id: member for member in members}
    joined = [_updated_member(member, current.get(name)) for name, member in stored.items()]
    joined += _priced(context, cluster, [one for name, one in current.items() if name not in stored])
    return [InstanceLine(cluster=cluster, member=member, detached=detached) for member in joined] or [
        InstanceLine(cluster=cluster, member=None, detached=detached)
    ]


def _priced(context: Context, cluster: Cluster, instances: Sequence[Instance]) -> list[Member]:
    """Return members for instances that another machine has launched for a cluster, at the prices of now."""
    if not instances:
        return []
    from dlcloud.launch.preflight import PriceLookup  # noqa: PLC0415  only for these

    lookup = PriceLookup(context.clouds.cloud(cluster.cloud, cluster.region, cluster.profile).prices)
    members = []
    for one in instances:
        prices = lookup.of(one.instance_type, one.zone)
        usd = next((price.hourly_usd for price in prices if price.market is one.market), None)
        members.append(Member(instance=one, hourly_usd=usd))
    return members


def _lines_of_strays(
    reported: Iterable[Sequence[Instance]], known_ids: set[str], detached: dict[str, DetachedCluster]
) -> list[InstanceLine]:
    """Return a line for each live instance of an unknown cluster; those without a controller come last."""
    # Two profiles may be of one account.
    by_id = {instance.instance_id: instance for instances in reported for instance in instances}
    strays = [
        (instance.tags.get(CLUSTER_TAG, ""), instance)
        for instance in by_id.values()
        if instance.alive and instance.tags.get(CLUSTER_TAG) not in known_ids
    ]
    strays.sort(key=lambda stray: (stray[0] not in detached, stray[0]))
    return [
        InstanceLine(cluster=None, member=Member(instance=instance), detached=detached.get(cluster_id))
        for cluster_id, instance in strays
    ]


def _updated_member(member: Member, instance: Instance | None) -> Member:
    if instance is None:
        return replace(member, instance=replace(member.instance, state=InstanceState.TERMINATED))
    ended_at, interrupted = member.ended_at or instance.ended_at, member.interrupted or instance.interrupted
    return replace(member, instance=instance, ended_at=ended_at, interrupted=interrupted)


def _section(
    cluster: Cluster | None, detached: DetachedCluster | None, lines: Sequence[InstanceLine], now: datetime
) -> Section:

    rows = [_row(line.member, line.usd(now), now, cluster) for line in lines if line.member]
    local = cluster is not None and cluster.cloud == "local"
    return Section(
        heading=_heading(cluster, detached),
        titles=("instance", "state", "type", "address", "up", "USD"),
        rows=rows,
        notes=["* rehearsal on the local EC2: not billed, at the type's price"] if local and rows else [],
        numeric=frozenset({4, 5}),
    )


def _heading(cluster: Cluster | None, detached: DetachedCluster | None) -> str:
    if detached is not None:
        controller = detached.instance.instance_id
        where = f"detached, {detached.cloud} {detached.region}, controlled by {controller}"
        theirs = owner_of(detached.instance.tags)
        where += f", owner {theirs.digest or 'unknown'}"
        return f"{detached.name}: {where}; dlcloud status {detached.name} asks it"
    if cluster is None:
        return "instances with dlcloud's tag of clusters that are not in this home's store"
    return f"{cluster.name}: {cluster.state}, {cluster.cloud} {cluster.region}"


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
    return instance.host if instance.ssh_port == SSH_PORT else f"{instance.host}:{instance.ssh_port}"


def _record(line: InstanceLine, now: datetime) -> dict[str, str | int | bool | Decimal | datetime | None]:
    cluster, member = line.cluster, line.member
    owner = cluster or line.detached
    return {
        "cluster": owner.name if owner else None,
        "cluster_id": owner.cluster_id if owner else None,
        "cluster_state": "detached" if line.detached else str(cluster.state) if cluster else None,
        "controller": line.detached.instance.instance_id if line.detached else None,
        "cloud": owner.cloud if owner else None,
        "region": owner.region if owner else None,
        "rehearsal": owner.cloud == "local" if owner else None,
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
        "usd_so_far": millionths(line.usd(now)),
    }
