"""End some of a cluster's instances while the others go on."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from dlcloud.core.cluster import Cluster, Member
from dlcloud.core.errors import CloudError
from dlcloud.core.events import Emit, stage
from dlcloud.core.instance import Instance
from dlcloud.core.protocols import Clock, Cloud
from dlcloud.store.clusters import Clusters

SHRINK = "shrink"
"""The name of the intent that precedes the end of instances; its detail names them."""

SHRINK_TIMEOUT_S = 120.0
POLL_S = 1.0


def shrink(
    cluster: Cluster,
    members: Sequence[Member],
    *,
    cloud: Cloud,
    clusters: Clusters,
    clock: Clock,
    emit: Emit,
) -> list[Member]:
    """End these instances, and see that EC2 does; nothing waits for their last moment, for they cost no more.

    The store knows which before EC2 is asked: whoever comes after a crash counts them as gone, although EC2
    may still tell of them as running.

    Returns:
        The instances with the times at which they ended.

    Raises:
        CloudError: EC2 still tells of one as running; the message names it. Running it again goes on.
    """
    if not members:
        return []
    ids = [member.instance.instance_id for member in members]
    with stage(emit, clock, f"ending {len(ids)} instance(s) of {cluster.name}"):
        intent_id = clusters.begin_intent(cluster.cluster_id, SHRINK, " ".join(ids), clock.now())
        asked_at = clock.now()
        cloud.terminate(ids)
        seen = _await_end(cluster, ids, cloud=cloud, clock=clock)
        ended = ended_members(members, seen, asked_at)
        clusters.put_members(cluster.cluster_id, ended)
        clusters.end_intent(intent_id, "ended", clock.now())
    return ended


def terminating_ids(cluster_id: str, clusters: Clusters) -> set[str]:
    """Return the ids of the instances that were ever asked to end by a shrink of the cluster."""
    return {name for intent in clusters.intents(cluster_id, SHRINK) for name in intent.detail.split()}


def finish_shrinks(cluster_id: str, *, cloud: Cloud, clusters: Clusters, clock: Clock) -> None:
    """Ask again for the end of instances whose shrink was cut off."""
    for intent in clusters.intents(cluster_id, SHRINK):
        if intent.outcome is None:
            cloud.terminate(intent.detail.split())
            clusters.end_intent(intent.intent_id, "asked for again", clock.now())


def ended_members(members: Sequence[Member], seen: Sequence[Instance], asked_at: datetime) -> list[Member]:
    """Return members with their ends: when EC2 says, else when they were asked for."""
    now = {each.instance_id: each for each in seen}
    return [
        replace(
            member,
            instance=now.get(member.instance.instance_id, member.instance),
            ended_at=_end(now.get(member.instance.instance_id)) or asked_at,
        )
        for member in members
    ]


def _end(instance: Instance | None) -> datetime | None:
    return None if instance is None else instance.ended_at


def _await_end(cluster: Cluster, ids: Sequence[str], *, cloud: Cloud, clock: Clock) -> list[Instance]:
    deadline = clock.monotonic() + SHRINK_TIMEOUT_S
    while True:
        seen = cloud.instances(cluster.cluster_id)
        left = [each.instance_id for each in seen if each.instance_id in ids and each.alive]
        if not left:
            return seen
        if clock.monotonic() > deadline:
            raise CloudError(f"{cluster.name}: still not ending: {', '.join(left)}", "run it again")
        clock.sleep(POLL_S / 4)
