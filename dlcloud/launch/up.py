"""Bring a cluster up: from a plan to connections that are proven to lead to its instances."""

from collections.abc import Callable
from dataclasses import dataclass

from dlcloud.core.cluster import Cluster, Member
from dlcloud.core.events import Emit, Notice, stage
from dlcloud.core.plan import Plan
from dlcloud.core.ports import Clock, Cloud
from dlcloud.core.remote import Connection, Dial
from dlcloud.launch.provision import Provisioner
from dlcloud.launch.reach import await_addresses, connect
from dlcloud.ssh.fanout import fan_out
from dlcloud.store.clusters import Clusters


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Instances that are up, and a connection to each, by instance id."""

    members: list[Member]
    connections: dict[str, Connection]


def bring_up(
    cluster: Cluster,
    plan: Plan,
    *,
    user_data: str,
    cloud: Cloud,
    clusters: Clusters,
    dial: Dial,
    clock: Clock,
    emit: Emit,
) -> Reached:
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
            user_data=user_data,
            security_group_id=group_id,
            cloud=cloud,
            clusters=clusters,
            clock=clock,
            emit=emit,
        ).provision()
    for member in members:
        told = f"{member.instance.instance_type} {member.instance.market} in {member.instance.zone}"
        emit(Notice(message=told, instance_id=member.instance.instance_id))
    with stage(emit, clock, f"connecting to {len(members)} instance(s), proving their host keys"):
        # The group's rule and the addresses do not wait for each other: a round trip less.
        steps: list[Callable[[], list[Member] | None]] = [
            lambda: await_addresses(cluster, members, cloud=cloud, clusters=clusters, clock=clock),
            lambda: cloud.allow_ssh(group_id, plan.cidr),
        ]
        addressed, allowed = fan_out(lambda step: step(), steps)
        for outcome in (addressed, allowed):
            if outcome.error is not None:
                raise outcome.error
        members = addressed.value or []
        connections = connect(cluster, members, cloud=cloud, dial=dial, clock=clock)
    return Reached(members=members, connections=connections)
