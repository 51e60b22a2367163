"""A cluster's instances: which exist, what they take of the budget, and the end of some of them.

The tags say what exists; the store says what is about to end, and what it costs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from dlcloud.launch.managed import ManagedCluster
from dlcloud.model.cluster import Member
from dlcloud.model.errors import CloudError
from dlcloud.model.events import stage
from dlcloud.model.instance import Instance, Market, Price
from dlcloud.model.money import committed_usd, price_of
from dlcloud.model.wait import wait_until
from dlcloud.planning.attempts import LaunchAttempt
from dlcloud.planning.plan import ExistingCapacity
from dlcloud.recipe.recipe import Recipe
from dlcloud.store.clusters import Clusters

LAUNCH = "launch"
"""The intent that precedes each request for instances."""

UNSEEN = "its answer was not seen"
"""The outcome of a request that was cut off and is not repeated: it may have made an unknown fleet."""

SHRINK = "shrink"
"""The intent that precedes the end of instances; its `instance_ids` name them."""

CONSISTENCY_WINDOW_S = 30.0
"""For so long EC2 may not yet list an instance whose launch was requested."""

SHRINK_TIMEOUT_S = 120.0
SHRINK_POLL_S = 0.25


def list_members(managed: ManagedCluster) -> list[Member]:
    """Return the cluster's living instances; changes nothing."""
    return _join_living(managed, managed.describe_instances())


def reconcile_members(managed: ManagedCluster, *, repeated: Collection[Instance] = ()) -> list[Member]:
    """Return the cluster's living instances; finish the ends that were cut off, remember those that came.

    `repeated` are instances in the answer to a repeated launch request, which EC2 may not list yet.
    """
    clusters = managed.store.clusters
    _repeat_terminations(managed)
    listed = managed.describe_instances()
    terminating = terminating_ids(managed.cluster_id, clusters)
    ended = [
        member
        for member in clusters.members(managed.cluster_id)
        if member.ended_at is None and _has_ended(member, listed, terminating)
    ]
    if ended:
        clusters.put_members(managed.cluster_id, mark_ended(ended, listed, managed.clock.now()))
    return _join_living(managed, {instance.instance_id: instance for instance in repeated} | listed)


def unlisted_ids(managed: ManagedCluster, listed: Collection[str]) -> set[str]:
    """Return the ids of instances that were launched so lately that EC2's lists may not show them yet."""
    clusters, now = managed.store.clusters, managed.clock.now()
    launched = {
        name
        for intent in clusters.intents(managed.cluster_id, LAUNCH)
        if (now - intent.at).total_seconds() < CONSISTENCY_WINDOW_S
        for name in intent.instance_ids
    }
    return launched - set(listed)


def wait_for_consistency(managed: ManagedCluster) -> None:
    """Give EC2's lists the time to show the instances of requests whose answer was not seen.

    For a cluster that is to have no more instances; where it is to have more, the requests are repeated.
    """
    clusters, clock = managed.store.clusters, managed.clock
    for intent in clusters.intents(managed.cluster_id, LAUNCH):
        if intent.outcome is None:
            age = clock.now() - intent.begun_at
            clock.sleep(max(0.0, CONSISTENCY_WINDOW_S - age.total_seconds()))
            clusters.end_intent(intent.intent_id, UNSEEN, clock.now())


def terminate_members(managed: ManagedCluster, members: Sequence[Member]) -> list[Member]:
    """End these instances, and see that EC2 does; terminated is not waited for: shutting down is free.

    The store knows which before EC2 is asked: after a crash the next command counts them as gone, although
    EC2 may still list them as running.

    Returns:
        The instances with the times at which they ended.

    Raises:
        CloudError: EC2 still lists one as running; the message names it. Running it again goes on.
    """
    if not members:
        return []
    cluster, clock = managed.cluster, managed.clock
    ids = [member.instance.instance_id for member in members]
    with stage(managed.emit, clock, f"terminating {len(ids)} instance(s) of {cluster.name}"):
        intent_id = managed.store.clusters.begin_intent(cluster.cluster_id, SHRINK, "", clock.now(), ids)
        requested_at = clock.now()
        managed.cloud.instances.terminate(ids)
        listed = _wait_for_end(managed, ids)
        ended = mark_ended(members, listed, requested_at)
        managed.store.clusters.put_members(cluster.cluster_id, ended)
        managed.store.clusters.end_intent(intent_id, "ended", clock.now())
    return ended


def terminating_ids(cluster_id: str, clusters: Clusters) -> set[str]:
    """Return the ids of the instances that were ever asked to end by a shrink of the cluster."""
    return {name for intent in clusters.intents(cluster_id, SHRINK) for name in intent.instance_ids}


def mark_ended(
    members: Sequence[Member], listed: Mapping[str, Instance], requested_at: datetime
) -> list[Member]:
    """Return members with their ends: the time that EC2 states, else the time of the request."""
    ended = []
    for member in members:
        instance = listed.get(member.instance.instance_id, member.instance)
        end = instance.ended_at if member.instance.instance_id in listed else None
        interrupted = member.interrupted or instance.interrupted
        ended.append(
            replace(member, instance=instance, ended_at=end or requested_at, interrupted=interrupted)
        )
    return ended


def existing_capacity(
    managed: ManagedCluster, recipe: Recipe, members: Sequence[Member], prices: Sequence[Price]
) -> ExistingCapacity:
    """Return the number of instances that exist, and what they and the ended ones take of the budget.

    Args:
        managed: The cluster.
        recipe: With its budget.
        members: The cluster's living instances.
        prices: Of now, for the instances whose price the store does not know.
    """
    stored = managed.store.clusters.members(managed.cluster_id)
    every = {member.instance.instance_id: member for member in [*stored, *members]}
    committed = committed_usd(
        [_with_price(member, prices) for member in every.values()],
        life_minutes=life_minutes(managed.cluster_id, managed.store.clusters),
        longest_minutes=int(recipe.budget.max_hours * 60),
        disk_gib=managed.cluster.disk_gib,
    )
    on_demand = sum(member.instance.market is Market.ON_DEMAND for member in members)
    reserved = sum(bool(member.instance.reservation_id) for member in members)
    return ExistingCapacity(
        count=len(members),
        on_demand=on_demand,
        reserved=reserved if recipe.instances.uses_reservations else 0,
        committed_usd=committed,
    )


def life_minutes(cluster_id: str, clusters: Clusters) -> dict[str, int]:
    """Return after how many minutes each instance ends itself, as its launch said, by instance id."""
    return {
        name: life
        for intent in clusters.intents(cluster_id, LAUNCH)
        if (life := LaunchAttempt.from_text(intent.detail).life_minutes)
        for name in intent.instance_ids
    }


def _repeat_terminations(managed: ManagedCluster) -> None:
    """Ask again for the end of instances whose shrink was cut off."""
    clusters = managed.store.clusters
    for intent in clusters.intents(managed.cluster_id, SHRINK):
        if intent.outcome is None:
            managed.cloud.instances.terminate(list(intent.instance_ids))
            clusters.end_intent(intent.intent_id, "asked for again", managed.clock.now())


def _join_living(managed: ManagedCluster, listed: Mapping[str, Instance]) -> list[Member]:
    """Join what EC2 lists with the prices that the store knows, without what has ended or is to end."""
    clusters = managed.store.clusters
    stored = {member.instance.instance_id: member for member in clusters.members(managed.cluster_id)}
    terminating = terminating_ids(managed.cluster_id, clusters)
    late = {name: stored[name].instance for name in unlisted_ids(managed, listed) if name in stored}
    return [
        replace(stored.get(name) or Member(instance=instance), instance=instance)
        for name, instance in {**listed, **late}.items()
        if instance.alive and name not in terminating
    ]


def _has_ended(member: Member, listed: Mapping[str, Instance], terminating: Collection[str]) -> bool:
    instance = listed.get(member.instance.instance_id)
    return member.instance.instance_id in terminating or (instance is not None and not instance.alive)


def _wait_for_end(managed: ManagedCluster, ids: Sequence[str]) -> dict[str, Instance]:
    """Return all that EC2 lists of the cluster once it lists none of these instances as alive."""
    unseen = set(ids)

    def living(listed: Mapping[str, Instance]) -> list[str]:
        return [name for name in listed if name in ids and listed[name].alive]

    def terminate_late() -> dict[str, Instance]:
        """Ask once more for the end of those that are listed as alive: EC2 may not have known them before."""
        listed = managed.describe_instances()
        if late := unseen.intersection(living(listed)):
            managed.cloud.instances.terminate(sorted(late))
        unseen.difference_update(listed)
        return listed

    listed = wait_until(
        terminate_late,
        lambda listed: not living(listed) and not unlisted_ids(managed, listed).intersection(ids),
        clock=managed.clock,
        timeout_s=SHRINK_TIMEOUT_S,
        poll_s=SHRINK_POLL_S,
    )
    if left := living(listed):
        raise CloudError(f"{managed.cluster.name}: still not terminated: {', '.join(left)}", "run it again")
    return listed


def _with_price(member: Member, prices: Sequence[Price]) -> Member:
    price = price_of(member.instance, prices)
    if member.hourly_usd is not None or price is None:
        return member
    return replace(member, hourly_usd=price.hourly_usd)
