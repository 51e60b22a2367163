"""Take a cluster down, and verify that nothing of it is left that costs money."""

import re
from collections.abc import Callable, Iterable
from datetime import datetime

from dlcloud.core.cluster import Cluster, ClusterState, Member
from dlcloud.core.errors import CloudError
from dlcloud.core.events import Emit, stage
from dlcloud.core.instance import Instance, InstanceState
from dlcloud.core.protocols import Clock, Cloud
from dlcloud.launch import members as living
from dlcloud.launch.members import LAUNCH, UNSEEN
from dlcloud.launch.shrink import ended_members
from dlcloud.store.clusters import Clusters
from dlcloud.system.parallel import fan_out

TERMINATION_TIMEOUT_S = 600.0
POLL_S = 1.0
FLEET = re.compile(r"\bfleet-[0-9a-f-]+")


def take_down(
    cluster: Cluster, *, cloud: Cloud, clusters: Clusters, clock: Clock, emit: Emit
) -> list[Member]:
    """Terminate every instance that carries the cluster's tag, then delete all else that does.

    Returns:
        The cluster's instances with the times at which they ended.

    Raises:
        CloudError: Something is left; the message names it. Running it again goes on.
    """
    clusters.set_state(cluster.cluster_id, ClusterState.STOPPING)
    with stage(emit, clock, f"terminating the instances of {cluster.name}"):
        ended_at = clock.now()
        steps: list[Callable[[], list[Instance]]] = [
            lambda: _terminate_all(cluster, cloud=cloud, clusters=clusters, clock=clock),
            lambda: _close(cluster, cloud=cloud, clusters=clusters),
        ]
        terminated, closed = fan_out(lambda step: step(), steps)
        if terminated.error is not None:
            raise terminated.error
        instances = terminated.value or []
    # Billing ends when an instance enters shutting-down, which is when it was asked to.
    _remember_ends(cluster, instances, clusters=clusters, ended_at=ended_at)
    with stage(emit, clock, f"deleting the security group of {cluster.name}"):
        if closed.error is not None:
            raise closed.error
        cloud.delete_fleets(_fleets(cluster, instances, cloud, clusters))
        _delete_groups(cluster, cloud=cloud, clock=clock)
    clusters.set_state(cluster.cluster_id, ClusterState.DOWN, clock.now())
    return clusters.members(cluster.cluster_id)


def _close(cluster: Cluster, *, cloud: Cloud, clusters: Clusters) -> list[Instance]:
    """Let nobody in any more, and drop what could launch more; neither waits for an instance's end."""
    if clusters.hand_over(cluster.cluster_id) is not None:
        cloud.delete_control_role(cluster.cluster_id)
    cloud.revoke_ssh(cluster.cluster_id)
    cloud.delete_launch_templates(cluster.cluster_id)
    return []


def _fleets(cluster: Cluster, instances: Iterable[Instance], cloud: Cloud, clusters: Clusters) -> list[str]:
    """Return the cluster's fleets: those whose answer was stored, and those that marked an instance.

    EC2 lists no instant fleets (EC2 API reference, DescribeFleets). Only where an answer was lost is looked
    for them by tag: a fleet that had no instance is known in no other way.
    """
    intents = clusters.intents(cluster.cluster_id, LAUNCH)
    told = [intent.outcome or "" for intent in intents]
    told += [instance.fleet_id for instance in instances]
    if any(intent.outcome in {None, UNSEEN} for intent in intents):
        told += cloud.fleets(cluster.cluster_id)
    return sorted({fleet for text in told for fleet in FLEET.findall(text)})


def _terminate_all(cluster: Cluster, *, cloud: Cloud, clusters: Clusters, clock: Clock) -> list[Instance]:
    started = clock.monotonic()
    unsure_s = _unsure_s(cluster, clusters, clock)
    asked: set[str] = set()
    while True:
        instances = cloud.instances(cluster.cluster_id)
        alive = [each.instance_id for each in instances if each.alive and each.instance_id not in asked]
        cloud.terminate(alive)
        asked |= set(alive)
        left = [each for each in instances if each.state is not InstanceState.TERMINATED]
        waited = clock.monotonic() - started
        if not left and waited >= unsure_s:
            return instances
        if waited > TERMINATION_TIMEOUT_S:
            told = ", ".join(f"{each.instance_id} ({each.state})" for each in left)
            raise CloudError(f"{cluster.name}: still not terminated: {told}", f"dlcloud down {cluster.name}")
        clock.sleep(POLL_S if not alive else POLL_S / 4)


def _unsure_s(cluster: Cluster, clusters: Clusters, clock: Clock) -> float:
    """Return for how long an instance may yet appear, of a launch whose answer is not known."""
    begun = [
        intent.begun_at for intent in clusters.intents(cluster.cluster_id, LAUNCH) if intent.outcome is None
    ]
    if not begun:
        return 0.0
    return max(0.0, living.CONSISTENCY_WINDOW_S - (clock.now() - max(begun)).total_seconds())


def _remember_ends(
    cluster: Cluster, instances: Iterable[Instance], *, clusters: Clusters, ended_at: datetime
) -> None:
    known = {member.instance.instance_id: member for member in clusters.members(cluster.cluster_id)}
    for each in instances:
        unpriced = Member(instance=each, hourly_usd=None, price_source="", price_as_of=None)
        known.setdefault(each.instance_id, unpriced)
    clusters.put_members(cluster.cluster_id, ended_members(list(known.values()), list(instances), ended_at))


def _delete_groups(cluster: Cluster, *, cloud: Cloud, clock: Clock) -> None:
    deadline = clock.monotonic() + TERMINATION_TIMEOUT_S
    while left := cloud.delete_security_groups(cluster.cluster_id):
        if clock.monotonic() > deadline:
            raise CloudError(
                f"{cluster.name}: security group {', '.join(left)} is still in use",
                f"dlcloud down {cluster.name}",
            )
        clock.sleep(POLL_S)
