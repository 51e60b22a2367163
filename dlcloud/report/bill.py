"""What a cluster has cost from launch to termination, in words."""

from collections.abc import Sequence
from decimal import Decimal

from dlcloud.core.cluster import Cluster, Member
from dlcloud.core.cost import billed_seconds, instance_usd, money, volume_usd


def cost_of_cluster(cluster: Cluster, members: Sequence[Member]) -> str:
    """Return in words what a cluster that is down has cost."""
    billed = [
        (member, billed_seconds(member.instance.launched_at, member.ended_at))
        for member in members
        if member.ended_at
    ]
    if not billed:
        return f"{cluster.name} is down; it had no instances"
    seconds = sum(each for _, each in billed)
    told = f"{cluster.name} is down: {seconds} s of {len(billed)} instance(s)"
    if any(member.hourly_usd is None for member, _ in billed):
        return f"{told}, at an unknown price"
    usd = Decimal(0)
    for member, each in billed:
        usd += instance_usd(member.hourly_usd or Decimal(0), each) + volume_usd(cluster.disk_gib, each)
    return f"{told}, which {'would have cost' if cluster.cloud == 'local' else 'cost about'} {money(usd)} USD"
