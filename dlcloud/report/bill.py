"""The cost of a cluster from launch to termination, in words."""

from collections.abc import Sequence

from dlcloud.core.cluster import Cluster, Member
from dlcloud.core.cost import billed_seconds, member_usd, money, total_usd


def cost_of_cluster(cluster: Cluster, members: Sequence[Member]) -> str:
    """Return in words what a cluster that is down has cost."""
    ended = [(member, member.ended_at) for member in members if member.ended_at]
    if not ended:
        return f"{cluster.name} is down; it had no instances"
    seconds = sum(billed_seconds(member.instance.launched_at, ended_at) for member, ended_at in ended)
    summary = f"{cluster.name} is down: {seconds} s of {len(ended)} instance(s)"
    usd = total_usd(member_usd(member, cluster.disk_gib, ended_at) for member, ended_at in ended)
    if usd is None:
        return f"{summary}, at an unknown price"
    verb = "would have cost" if cluster.cloud == "local" else "cost about"
    return f"{summary}, which {verb} {money(usd)} USD"
