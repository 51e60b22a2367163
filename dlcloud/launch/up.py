"""Bring a cluster up: from a plan to connections that are proven to lead to its instances."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlcloud.core.cluster import Cluster, Member
from dlcloud.core.events import Emit, Notice, stage
from dlcloud.core.plan import Plan
from dlcloud.core.protocols import Clock, Cloud
from dlcloud.core.remote import Connection, Dial
from dlcloud.core.resize import decide
from dlcloud.launch.connect import wait_until_reachable
from dlcloud.launch.provision import Provisioner
from dlcloud.launch.shrink import shrink
from dlcloud.store.clusters import Clusters


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedMembers:
    """Instances that are up, and a connection to each, by instance id."""

    members: list[Member]
    connections: dict[str, Connection]


def bring_up(
    cluster: Cluster,
    plan: Plan,
    *,
    first_boot: Callable[[int], str],
    cloud: Cloud,
    clusters: Clusters,
    dial: Dial,
    clock: Clock,
    emit: Emit,
) -> ConnectedMembers:
    """Launch what the plan says, or what is missing of it, and connect to all of it.

    Whoever calls this takes the cluster down if it raises: by tag, so that nothing is missed.

    Raises:
        CapacityError, QuotaError, CloudError: The plan's minimum could not be had.
        UnreachableError, HostKeyError: An instance did not come up, or could not prove its host key.
    """
    first = plan.pools[0]
    with stage(emit, clock, f"launching {plan.max_count} {first.instance_type} ({first.market})"):
        group_id = cloud.create_security_group(cluster.cluster_id, cluster.tags)
        members = Provisioner(
            cluster=cluster,
            plan=plan,
            first_boot=first_boot,
            security_group_id=group_id,
            cloud=cloud,
            clusters=clusters,
            clock=clock,
            emit=emit,
        ).provision()
    # What a resize that was cut off has left too many.
    surplus = decide(members, plan.max_count, base=plan.on_demand_base, rounds=plan.rounds).end
    shrink(cluster, surplus, cloud=cloud, clusters=clusters, clock=clock, emit=emit)
    members = [member for member in members if member not in surplus]
    tell(members, emit)
    with stage(emit, clock, f"connecting to {len(members)} instance(s), proving their host keys"):
        members, connections = wait_until_reachable(
            cluster,
            members,
            group_id=group_id,
            cidr=plan.cidr,
            cloud=cloud,
            clusters=clusters,
            dial=dial,
            clock=clock,
        )
    return ConnectedMembers(members=members, connections=connections)


def tell(members: Sequence[Member], emit: Emit) -> None:
    """Tell what each instance is."""
    for member in members:
        told = f"{member.instance.instance_type} {member.instance.market} in {member.instance.zone}"
        emit(Notice(message=told, instance_id=member.instance.instance_id))
