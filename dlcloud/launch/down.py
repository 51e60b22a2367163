"""Terminate a cluster, or what is left of one that no store remembers, and verify that nothing is left."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from operator import not_

from dlcloud.cloud.compute.batch_queues import BATCH_KIND
from dlcloud.cloud.ec2 import Ec2Cloud
from dlcloud.cloud.network.security_groups import Ec2Network
from dlcloud.launch import managed as existing
from dlcloud.launch.managed import LAUNCH, UNSEEN, ManagedCluster, mark_ended
from dlcloud.model.clock import Clock, wait_until
from dlcloud.model.cluster import CLUSTER_TAG, ClusterState, Intent, Leftover, Member
from dlcloud.model.errors import CloudError
from dlcloud.model.events import Emit, Warned, stage
from dlcloud.model.instance import Instance
from dlcloud.store.clusters import BATCH, GROUP, PLACEMENT_GROUP, REFUSED, STORAGE_ROLE
from dlcloud.system.parallel import fan_out

TERMINATION_TIMEOUT_S = 600.0
FIRST_POLL_S, POLL_S = 0.125, 1.0


def terminate_cluster(managed: ManagedCluster, *, discard: bool = False) -> list[Member]:
    """Terminate every instance that carries the cluster's tag, then delete all else that does.

    An instance that the store knows as living, and that EC2 does not list at all, is an error: it may run on
    where these credentials do not reach. With `discard` it counts as terminated.

    An instance that takes longer than TERMINATION_TIMEOUT_S to shut down is billed no more; what it still
    uses is left to `dlcloud gc`, with a warning.

    Returns:
        The cluster's instances with the times at which they ended.

    Raises:
        CloudError: Something is left; the message names it. Running it again continues.
    """
    cluster, cloud, clusters = managed.cluster, managed.cloud, managed.store.clusters
    clusters.set_state(cluster.cluster_id, ClusterState.STOPPING)
    with stage(managed.emit, managed.clock, f"terminating the instances of {cluster.name}"):
        requested_at, is_late = managed.clock.now(), _appear_s(managed) > 0
        if clusters.intents(cluster.cluster_id, BATCH):
            # It would replace instances that are terminated.
            cloud.batch.delete(cluster.cluster_id)
        # What cannot wait for the end of the instances happens meanwhile.
        terminated, closed = fan_out(lambda step: step(managed), [_terminate_all, _close])
        if terminated.error is not None:
            raise terminated.error
        instances = terminated.value or {}
    # Billing ends when an instance enters shutting-down, which is when it was asked to.
    missing = set() if discard else managed.missing_ids(instances)
    _store_ends(managed, instances, requested_at, missing)
    if missing:
        name, ids = cluster.name, ", ".join(sorted(missing))
        raise CloudError(
            f"{name}: EC2 in {cluster.region} does not list {ids}, not even as terminated",
            f"look for it in the account; if it is gone for certain, dlcloud down {name} --discard",
        )
    with stage(managed.emit, managed.clock, f"deleting the security group of {cluster.name}"):
        if closed.error is not None:
            raise closed.error
        cloud.fleets.delete(_fleets(managed, instances.values()))
        if is_late:
            cloud.fleets.delete_templates(cluster.cluster_id)
        if slow := [name for name, instance in instances.items() if not instance.ended]:
            _warn_of_slow_ends(slow, emit=managed.emit)
        else:
            hint = f"dlcloud down {cluster.name}"
            _delete_groups(cluster.cluster_id, network=cloud.network, clock=managed.clock, hint=hint)
            if clusters.intents(cluster.cluster_id, PLACEMENT_GROUP):
                cloud.capacity.delete_placement_group(cluster.cluster_id)
    clusters.set_state(cluster.cluster_id, ClusterState.DOWN, managed.clock.now())
    return clusters.members(cluster.cluster_id)


def gc(leftovers: Sequence[Leftover], *, cloud: Ec2Cloud, clock: Clock, emit: Emit) -> None:
    """Remove leftovers of one region: first what could launch more, last what the others depend on.

    Raises:
        CloudError: Something is left; the message names it. Running it again continues.
    """

    def ids(kind: str) -> list[str]:
        return [leftover.resource_id for leftover in leftovers if leftover.kind == kind]

    _delete_launching(leftovers, cloud)
    instance_ids = ids("instance")
    with stage(emit, clock, f"terminating {len(instance_ids)} instance(s) in {cloud.region}"):
        cloud.instances.terminate(instance_ids)
        left = wait_until(
            lambda: [i for i in cloud.instances.find() if i.instance_id in instance_ids and not i.ended],
            not_,
            clock=clock,
            timeout_s=TERMINATION_TIMEOUT_S,
            poll_s=POLL_S,
            first_poll_s=FIRST_POLL_S,
        )
        if living := sorted(instance.instance_id for instance in left if instance.alive):
            raise CloudError(f"still not terminated: {', '.join(living)}", "dlcloud gc")
    if left:
        _warn_of_slow_ends([instance.instance_id for instance in left], emit=emit)
    slow = {instance.tags.get(CLUSTER_TAG, "") for instance in left}
    cluster_ids = sorted({leftover.cluster_id for leftover in leftovers})
    with stage(emit, clock, f"removing what belongs to {len(cluster_ids)} cluster(s) in {cloud.region}"):
        cloud.fleets.delete(ids("fleet"))
        cloud.leftovers.delete_volumes(ids("volume"))
        cloud.leftovers.delete_interfaces(ids("network-interface"))
        cloud.own_images.delete(ids("image"))
        cloud.own_images.delete_snapshots(ids("snapshot"))
        for leftover in leftovers:
            if leftover.kind == "placement-group" and leftover.cluster_id not in slow:
                cloud.capacity.delete_placement_group(leftover.cluster_id)
        for cluster_id in cluster_ids:
            cloud.fleets.delete_templates(cluster_id)
            if cluster_id not in slow:
                _delete_groups(cluster_id, network=cloud.network, clock=clock, hint="dlcloud gc")


def _delete_launching(leftovers: Sequence[Leftover], cloud: Ec2Cloud) -> None:
    """Delete what could launch more, or let others do it."""
    for cluster_id in {item.cluster_id for item in leftovers if item.kind == BATCH_KIND}:
        cloud.batch.delete(cluster_id)
    for leftover in leftovers:
        if leftover.kind == "iam-role":
            cloud.roles.delete(leftover.cluster_id)


def _close(managed: ManagedCluster) -> dict[str, Instance]:
    """Close SSH, and delete what could launch more; neither waits for an instance's end."""
    clusters = managed.store.clusters
    has_handed_over = clusters.last_hand_over(managed.cluster_id) is not None
    roles = clusters.intents(managed.cluster_id, STORAGE_ROLE)
    if has_handed_over or any(intent.outcome != REFUSED for intent in roles):
        managed.cloud.roles.delete(managed.cluster_id)
    _revoke_ssh(managed)
    managed.cloud.fleets.delete_templates(managed.cluster_id)
    return {}


def _revoke_ssh(managed: ManagedCluster) -> None:
    """Close SSH; EC2 may list the security group some seconds late, and what it lists is not overlooked."""
    intents = managed.store.clusters.intents(managed.cluster_id, GROUP)
    made = {intent.outcome for intent in intents if intent.outcome}
    wait_until(
        lambda: managed.cloud.network.revoke_ssh(managed.cluster_id),
        made.issubset,
        clock=managed.clock,
        timeout_s=_left_of_window(managed, intents),
        poll_s=POLL_S,
        first_poll_s=FIRST_POLL_S,
    )


def _fleets(managed: ManagedCluster, instances: Iterable[Instance]) -> list[str]:
    """Return the cluster's fleets: those whose answer was stored, and those that marked an instance.

    EC2 lists no instant fleets (EC2 API reference, DescribeFleets). Only where an answer was lost are they
    looked for by tag: a fleet that had no instance can be found in no other way.
    """
    intents = managed.store.clusters.intents(managed.cluster_id, LAUNCH)
    fleets = {intent.fleet_id for intent in intents} | {instance.fleet_id for instance in instances}
    if any(intent.outcome in {None, UNSEEN} for intent in intents):
        fleets.update(managed.cloud.fleets.find(managed.cluster_id))
    return sorted(filter(None, fleets))


def _terminate_all(managed: ManagedCluster) -> dict[str, Instance]:
    clock, started = managed.clock, managed.clock.monotonic()
    appear_s = _appear_s(managed)
    requested: set[str] = set()

    def terminate_living() -> dict[str, Instance]:
        listed = managed.describe_instances()
        living = [name for name, instance in listed.items() if instance.alive and name not in requested]
        managed.cloud.instances.terminate(living)
        requested.update(living)
        return listed

    listed = wait_until(
        terminate_living,
        lambda listed: (
            all(instance.ended for instance in listed.values())
            and not managed.unlisted_ids(listed)
            and clock.monotonic() - started >= appear_s
        ),
        clock=clock,
        timeout_s=TERMINATION_TIMEOUT_S,
        poll_s=POLL_S,
        first_poll_s=FIRST_POLL_S,
    )
    if left := [f"{name} ({instance.state})" for name, instance in listed.items() if instance.alive]:
        name = managed.cluster.name
        raise CloudError(f"{name}: still not terminated: {', '.join(left)}", f"dlcloud down {name}")
    return listed


def _warn_of_slow_ends(instance_ids: Sequence[str], *, emit: Emit) -> None:
    """Metal types and Trainium took up to 20 minutes. Source: packer-plugin-amazon, issue 682."""
    message = (
        f"{', '.join(sorted(instance_ids))}: still shutting down, which is not billed; dlcloud gc, in some "
        "minutes, removes the security group, and the placement group, that are in use until then"
    )
    emit(Warned(message=message))


def _appear_s(managed: ManagedCluster) -> float:
    """Return for how long something may yet appear, of a request whose answer is not known."""
    clusters, cluster_id = managed.store.clusters, managed.cluster_id
    intents = [*clusters.intents(cluster_id, LAUNCH), *clusters.intents(cluster_id, GROUP)]
    return _left_of_window(managed, [intent for intent in intents if intent.outcome is None])


def _left_of_window(managed: ManagedCluster, intents: Sequence[Intent]) -> float:
    """Return for how many seconds EC2's lists may still lack what the newest of some intents gave."""
    begun = [intent.begun_at for intent in intents]
    if not begun:
        return 0.0
    return max(0.0, existing.CONSISTENCY_WINDOW_S - (managed.clock.now() - max(begun)).total_seconds())


def _store_ends(
    managed: ManagedCluster, listed: Mapping[str, Instance], requested_at: datetime, missing: Collection[str]
) -> None:
    clusters = managed.store.clusters
    members = {member.instance.instance_id: member for member in clusters.members(managed.cluster_id)}
    for name, instance in listed.items():
        members.setdefault(name, Member(instance=instance))
    for name in missing:
        members.pop(name)
    clusters.put_members(managed.cluster_id, mark_ended(list(members.values()), listed, requested_at))


def _delete_groups(cluster_id: str, *, network: Ec2Network, clock: Clock, hint: str) -> None:
    left = wait_until(
        lambda: network.delete_groups(cluster_id),
        not_,
        clock=clock,
        timeout_s=TERMINATION_TIMEOUT_S,
        poll_s=POLL_S,
        first_poll_s=FIRST_POLL_S,
    )
    if left:
        raise CloudError(f"security group {', '.join(left)} is still in use", hint)
