"""Bring a cluster that is up to more instances while those it has go on."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from dlcloud.core.cluster import Cluster, Member
from dlcloud.core.errors import DlcloudError
from dlcloud.core.events import Emit, Warned, stage
from dlcloud.core.plan import Plan
from dlcloud.core.protocols import Clock, Cloud, Refusal
from dlcloud.core.remote import Connection, Dial
from dlcloud.launch.connect import wait_until_reachable
from dlcloud.launch.provision import Provisioner, refusal_lines
from dlcloud.launch.shrink import shrink
from dlcloud.launch.up import tell
from dlcloud.store.clusters import Clusters


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowResult:
    """What became of a cluster that was to grow; fewer than were asked for are no error here.

    Args:
        members: All its instances that can be used, those it had included.
        connections: To each of them that the caller had not reached before, by instance id.
        refusals: Each pool's answer that it gives none, or too few.
        lost: Why instances could not be reached; those that were launched here have been ended.
    """

    members: list[Member]
    connections: dict[str, Connection]
    refusals: tuple[Refusal, ...] = ()
    lost: Mapping[str, DlcloudError] = field(default_factory=dict)


def grow(
    cluster: Cluster,
    plan: Plan,
    *,
    first_boot: Callable[[int], str],
    cloud: Cloud,
    clusters: Clusters,
    dial: Dial,
    clock: Clock,
    emit: Emit,
    reached: Collection[str] = (),
) -> GrowResult:
    """Launch what is missing of the plan's instances, through the same failover as `up`, and connect to it.

    Args:
        cluster: Which; the caller is in charge of it.
        plan: How many instances in all (`max_count`), from which pools.
        first_boot: Returns what an instance does at first boot that ends itself after so many minutes.
        cloud: Where.
        clusters: Where intents and instances are remembered.
        dial: Connects.
        clock: For dates and timeouts.
        emit: Is told of stages, refusals and what is lost.
        reached: The instances, by id, that the caller works with already; they are left alone.

    Raises:
        CloudError: EC2 refused in another way than for want of capacity or quota. What was launched carries
            the cluster's tag, and the next `grow`, `up` or `down` finds it.
    """
    with stage(emit, clock, f"launching what {cluster.name} lacks of {plan.max_count} instance(s)"):
        group_id = cloud.create_security_group(cluster.cluster_id, cluster.tags)
        provisioner = Provisioner(
            cluster=cluster,
            plan=plan,
            first_boot=first_boot,
            security_group_id=group_id,
            cloud=cloud,
            clusters=clusters,
            clock=clock,
            emit=emit,
        )
        found = provisioner.found()
        old = {member.instance.instance_id for member in found}
        had = provisioner.fill(found)
        clusters.put_members(cluster.cluster_id, had.members)
    for line in refusal_lines(had.refusals):
        emit(Warned(message=line))
    new = [member for member in had.members if member.instance.instance_id not in reached]
    if not new:
        return GrowResult(members=had.members, connections={}, refusals=had.refusals)
    tell(new, emit)
    lost: dict[str, DlcloudError] = {}
    with stage(emit, clock, f"connecting to {len(new)} instance(s), proving their host keys"):
        there, connections = wait_until_reachable(
            cluster,
            new,
            group_id=group_id,
            cidr=plan.cidr,
            cloud=cloud,
            clusters=clusters,
            dial=dial,
            clock=clock,
            lose=lost.update,
        )
    useless = [member for member in new if member.instance.instance_id in lost.keys() - old]
    for name, error in lost.items():
        emit(Warned(message=f"is given up: {error.message}", instance_id=name))
    shrink(cluster, useless, cloud=cloud, clusters=clusters, clock=clock, emit=emit)
    known = [member for member in had.members if member.instance.instance_id in reached]
    return GrowResult(members=known + there, connections=connections, refusals=had.refusals, lost=lost)
