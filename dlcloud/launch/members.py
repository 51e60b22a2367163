"""Find what a cluster has: the tags tell what exists, the store what is about to end and what it costs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from dlcloud.core.attempts import LaunchAttempt
from dlcloud.core.cluster import Cluster, Member
from dlcloud.core.cost import committed_usd, price_of
from dlcloud.core.instance import Instance, Market, Price
from dlcloud.core.plan import ExistingCapacity
from dlcloud.core.protocols import Clock, Cloud
from dlcloud.core.recipe import Recipe
from dlcloud.launch.shrink import ended_members, finish_shrinks, terminating_ids
from dlcloud.store.clusters import Clusters

LAUNCH = "launch"
"""The name of the intent that precedes each request for instances."""

UNSEEN = "its answer was not seen"
"""The outcome of a request that was cut off and is not repeated: there may be a fleet that nobody knows."""

CONSISTENCY_WINDOW_S = 10.0
"""For so long EC2 may not yet tell of an instance whose launch was asked for; only then is looked twice."""


def list_members(
    cluster: Cluster, *, cloud: Cloud, clusters: Clusters, repeated: Collection[Instance] = ()
) -> list[Member]:
    """Return a cluster's living instances, touching nothing.

    Args:
        cluster: Which.
        cloud: Tells what carries its tag.
        clusters: Tells which of it was asked to end, and the prices.
        repeated: Instances that a repeated request told of; the lists may not know them yet.
    """
    listed = {each.instance_id: each for each in cloud.instances(cluster.cluster_id)}
    return _living(cluster, {each.instance_id: each for each in repeated} | listed, clusters)


def reconcile_members(
    cluster: Cluster,
    *,
    cloud: Cloud,
    clusters: Clusters,
    clock: Clock,
    repeated: Collection[Instance] = (),
) -> list[Member]:
    """Return a cluster's living instances; finish the ends that were cut off, remember those that came."""
    finish_shrinks(cluster.cluster_id, cloud=cloud, clusters=clusters, clock=clock)
    listed = {each.instance_id: each for each in cloud.instances(cluster.cluster_id)}
    gone = terminating_ids(cluster.cluster_id, clusters)
    ended = [
        member
        for member in clusters.members(cluster.cluster_id)
        if member.ended_at is None and _has_ended(member, listed, gone)
    ]
    if ended:
        clusters.put_members(cluster.cluster_id, ended_members(ended, list(listed.values()), clock.now()))
    return _living(cluster, {each.instance_id: each for each in repeated} | listed, clusters)


def wait_for_consistency(cluster: Cluster, *, clusters: Clusters, clock: Clock) -> None:
    """Give the lists the time to tell what came of requests whose answer was not seen.

    For a cluster that is to have no more instances; where it is to have more, they are repeated.
    """
    for intent in clusters.intents(cluster.cluster_id, LAUNCH):
        if intent.outcome is None:
            age = clock.now() - intent.begun_at
            clock.sleep(max(0.0, CONSISTENCY_WINDOW_S - age.total_seconds()))
            clusters.end_intent(intent.intent_id, UNSEEN, clock.now())


def existing_capacity(
    cluster: Cluster,
    recipe: Recipe,
    members: Sequence[Member],
    *,
    prices: Sequence[Price],
    clusters: Clusters,
) -> ExistingCapacity:
    """Return what a plan must know of the instances there are, with what they take of the budget.

    Args:
        cluster: Which.
        recipe: With its budget.
        members: Its living instances.
        prices: What is asked for instances now, for those that the store does not know.
        clusters: Tells those that ended, and after how long each ends itself.
    """
    every = {member.instance.instance_id: member for member in clusters.members(cluster.cluster_id)}
    every |= {member.instance.instance_id: member for member in members}
    committed = committed_usd(
        [_priced(member, prices) for member in every.values()],
        life_minutes=_lives(cluster.cluster_id, clusters),
        longest_minutes=int(recipe.budget.max_hours * 60),
        disk_gib=cluster.disk_gib,
    )
    fixed = sum(member.instance.market is Market.ON_DEMAND for member in members)
    return ExistingCapacity(count=len(members), on_demand=fixed, committed_usd=committed)


def _living(cluster: Cluster, seen: Mapping[str, Instance], clusters: Clusters) -> list[Member]:
    known = {member.instance.instance_id: member for member in clusters.members(cluster.cluster_id)}
    gone = terminating_ids(cluster.cluster_id, clusters)
    return [
        replace(known[name], instance=each)
        if name in known
        else Member(instance=each, hourly_usd=None, price_source="", price_as_of=None)
        for name, each in seen.items()
        if each.alive and name not in gone
    ]


def _has_ended(member: Member, listed: Mapping[str, Instance], gone: Collection[str]) -> bool:
    seen = listed.get(member.instance.instance_id)
    return member.instance.instance_id in gone or (seen is not None and not seen.alive)


def _priced(member: Member, prices: Sequence[Price]) -> Member:
    price = price_of(member.instance, prices)
    if member.hourly_usd is not None or price is None:
        return member
    return replace(member, hourly_usd=price.hourly_usd)


def _lives(cluster_id: str, clusters: Clusters) -> dict[str, int]:
    """Return after how many minutes each instance ends itself, as its launch said, by instance id."""
    return {
        word: life
        for intent in clusters.intents(cluster_id, LAUNCH)
        if (life := LaunchAttempt.from_text(intent.detail).life_minutes)
        for word in (intent.outcome or "").split()
        if word.startswith("i-")
    }
