"""One cluster and what it takes to work on it: its instances, the termination of some, what may be left.

EC2's tags say what exists; the store says what is about to terminate, and what it costs. All that works on a
cluster gets a `ManagedCluster`; `launcher.Launcher` is one that can also plan, launch, grow and destroy.

What must never happen: that an instance is forgotten because EC2 does not list it yet, or counted after it
was asked to terminate. Intents are stored before EC2 is asked, so that the next command completes what a
killed one began.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from math import inf
from typing import TYPE_CHECKING

from dlcloud.model.clock import Clock, wait_until
from dlcloud.model.cluster import Cluster, ClusterState, Intent, Member
from dlcloud.model.errors import CloudError
from dlcloud.model.events import Emit, stage
from dlcloud.model.instance import Instance, Market, Price
from dlcloud.model.money import committed_usd, hourly_price, instance_usd, money, price_of, total_usd
from dlcloud.model.remote import Connection, Dial, ResultsLeft
from dlcloud.planning.attempts import LaunchAttempt
from dlcloud.planning.plan import ExistingCapacity
from dlcloud.recipe.recipe import Recipe
from dlcloud.store.home import Store

if TYPE_CHECKING:
    from dlcloud.cloud.ec2 import Ec2Cloud

LAUNCH = "launch"
"""The intent that precedes each request for instances."""

UNSEEN = "its answer was not seen"
"""The outcome of a request that was cut off and is not repeated: it may have made an unknown fleet."""

SHRINK = "shrink"
"""The intent that precedes the end of instances; its `instance_ids` name them."""

CONSISTENCY_WINDOW_S = 30.0
"""How long EC2 may not yet list an instance whose launch was requested."""

LISTED_S = 3600.0
"""For about so long EC2 lists an instance that has terminated."""

SHRINK_TIMEOUT_S = 120.0
SHRINK_POLL_S = 0.25

NOTHING_UP = "no instance is up, but its security group may be left, at no cost"


@dataclass(slots=True, kw_only=True, eq=False)
class ManagedCluster:
    """One cluster and what it takes to work on it.

    Args:
        cluster: As the store remembers it.
        cloud: EC2 in the cluster's region.
        store: Where intents, instances and runs are remembered, and the keys lie.
        dialer: Connects to the cluster's instances.
        clock: For dates and timeouts.
        emit: Takes the events of all flows.
        results_left: What was not downloaded of the results on an instance, by its id.
    """

    cluster: Cluster
    cloud: "Ec2Cloud"
    store: Store
    dialer: Dial
    clock: Clock
    emit: Emit
    results_left: dict[str, ResultsLeft] = field(default_factory=dict)

    @property
    def cluster_id(self) -> str:
        return self.cluster.cluster_id

    def describe_instances(self) -> dict[str, Instance]:
        """Return every instance that carries the cluster's tag, by its id: one call of EC2."""
        return {instance.instance_id: instance for instance in self.cloud.instances.find(self.cluster_id)}

    def mark_ready(self) -> None:
        """Store that no command works on the cluster, which stays up."""
        self.store.clusters.set_state(self.cluster_id, ClusterState.READY)

    def set_disk(self, disk_gib: int) -> None:
        """Remember the size of the volumes as launched, which every price counts."""
        self.store.clusters.set_disk(self.cluster_id, disk_gib)
        self.cluster = replace(self.cluster, disk_gib=disk_gib)

    def is_ending(self) -> bool:
        """True once its termination has begun, by this command or another."""
        stored = self.store.clusters.find(self.cluster_id)
        return stored is not None and stored.state in {ClusterState.STOPPING, ClusterState.DOWN}

    def connect(self, instance: Instance, wait_s: float = 0.0) -> Connection:
        """Return a connection to an instance.

        Raises:
            UnreachableError, HostKeyError: The instance accepted none within `wait_s`.
        """
        return self.dialer.dial(instance.endpoint(self.cluster.user), wait_s=wait_s)

    def members(self) -> list[Member]:
        """Return the cluster's living instances; changes nothing."""
        return self._join_living(self.describe_instances())

    def reconcile(self, *, consistent: bool = False, repeated: Collection[Instance] = ()) -> list[Member]:
        """Return the living instances; finish terminations that were cut off, remember instances that came.

        Args:
            consistent: First give EC2's lists the time to show what requests without an answer launched,
                for a cluster that is to have no more instances.
            repeated: Instances in the answer to a repeated launch request, which EC2 may not list yet.
        """
        if consistent:
            self._wait_for_consistency()
        clusters = self.store.clusters
        self._repeat_terminations()
        listed = self.describe_instances()
        terminating = self._terminating_ids()
        ended = [
            member
            for member in clusters.members(self.cluster_id)
            if member.ended_at is None and _has_ended(member, listed, terminating)
        ]
        if ended:
            clusters.put_members(self.cluster_id, mark_ended(ended, listed, self.clock.now()))
        return self._join_living({instance.instance_id: instance for instance in repeated} | listed)

    def missing_ids(self, listed: Collection[str]) -> set[str]:
        """Return the instances that should be there and that EC2 does not list at all.

        EC2 lists an instance for about an hour after it terminated (EC2 user guide, "Terminate Amazon EC2
        instances"). So one is not missing if its own time was over by then, if it is a spot instance that EC2
        may have taken back that long ago, or if a shrink terminated it. The local EC2 knows only what began
        after its own start.
        """
        began_at, lives, missing = self.cloud.began_at, self._life_minutes(), set()
        for member in self.store.clusters.members(self.cluster_id):
            instance, name = member.instance, member.instance.instance_id
            life_s = 0.0 if instance.market is Market.SPOT else 60.0 * lives.get(name, inf)
            is_over = (self.clock.now() - instance.launched_at).total_seconds() > life_s + LISTED_S
            is_forgotten = began_at is not None and instance.launched_at < began_at
            if member.ended_at is None and name not in listed and not (is_over or is_forgotten):
                missing.add(name)
        return missing - self._terminating_ids()

    def shrink(self, members: Sequence[Member]) -> list[Member]:
        """End these instances, and see that EC2 does; terminated is not waited for: shutting down is free.

        The store knows which before EC2 is asked: after a crash the next command counts them as gone,
        although EC2 may still list them as running.

        Returns:
            The instances with the times at which they ended.

        Raises:
            CloudError: EC2 still lists one as running; the message names it. Running it again continues.
        """
        if not members:
            return []
        cluster, clock = self.cluster, self.clock
        ids = [member.instance.instance_id for member in members]
        with stage(self.emit, clock, f"terminating {len(ids)} instance(s) of {cluster.name}"):
            intent_id = self.store.clusters.begin_intent(cluster.cluster_id, SHRINK, "", clock.now(), ids)
            requested_at = clock.now()
            self.cloud.instances.terminate(ids)
            listed = self._wait_for_end(ids)
            ended = mark_ended(members, listed, requested_at)
            self.store.clusters.put_members(cluster.cluster_id, ended)
            self.store.clusters.end_intent(intent_id, "ended", clock.now())
        return ended

    def existing_capacity(
        self, recipe: Recipe, members: Sequence[Member], prices: Sequence[Price]
    ) -> ExistingCapacity:
        """Return the number of instances that exist, and what they and the ended ones take of the budget.

        Args:
            recipe: With its budget.
            members: The cluster's living instances.
            prices: Of now, for the instances whose price the store does not know.
        """
        stored = self.store.clusters.members(self.cluster_id)
        every = {member.instance.instance_id: member for member in [*stored, *members]}
        committed = committed_usd(
            [_with_price(member, prices) for member in every.values()],
            life_minutes=self._life_minutes(),
            longest_minutes=int(recipe.budget.max_hours * 60),
            disk_gib=self.cluster.disk_gib,
        )
        on_demand = sum(member.instance.market is Market.ON_DEMAND for member in members)
        reserved = sum(bool(member.instance.reservation_id) for member in members)
        return ExistingCapacity(
            count=len(members),
            on_demand=on_demand,
            reserved=reserved if recipe.instances.uses_reservations else 0,
            committed_usd=committed,
        )

    def remainder(self, keeping: Collection[str] = ()) -> "Remainder":
        """Return what of a cluster may still be up, without the instances that are to stay.

        Instances without a known end count, and those of a request whose answer was lost. EC2 is not asked:
        it does not answer, or refuses. Prices are those of the plan, and of on-demand instances for lost
        requests.
        """
        clusters, cluster_id = self.store.clusters, self.cluster_id
        living = [member for member in clusters.members(cluster_id) if member.ended_at is None]
        members = [member for member in living if member.instance.instance_id not in keeping]
        lost = [intent for intent in clusters.intents(cluster_id, LAUNCH) if intent.outcome is None]
        requests = [LaunchAttempt.from_text(intent.detail) for intent in lost]
        has_any = bool(members or requests)
        usd = [*(member.hourly_usd for member in members), *self._most_usd(requests)]
        lives = self._life_minutes() if has_any else {}
        return Remainder(
            count=len(members),
            requested=sum(request.count for request in requests),
            hourly_usd=total_usd(usd),
            ends_at=_latest_end(members, lives, zip(lost, requests, strict=True)) if has_any else None,
        )

    def unlisted_ids(self, listed: Collection[str]) -> set[str]:
        """Return the ids of instances that were launched so lately that EC2's lists may not show them yet."""
        clusters, now = self.store.clusters, self.clock.now()
        launched = {
            name
            for intent in clusters.intents(self.cluster_id, LAUNCH)
            if (now - intent.at).total_seconds() < CONSISTENCY_WINDOW_S
            for name in intent.instance_ids
        }
        return launched - set(listed)

    def _wait_for_consistency(self) -> None:
        """Give EC2's lists the time to show the instances of requests whose answer was not seen.

        For a cluster that is to have no more instances; where it is to have more, the requests are repeated.
        """
        clusters, clock = self.store.clusters, self.clock
        for intent in clusters.intents(self.cluster_id, LAUNCH):
            if intent.outcome is None:
                age = clock.now() - intent.begun_at
                clock.sleep(max(0.0, CONSISTENCY_WINDOW_S - age.total_seconds()))
                clusters.end_intent(intent.intent_id, UNSEEN, clock.now())

    def _repeat_terminations(self) -> None:
        """Ask again for the end of instances whose shrink was cut off."""
        clusters = self.store.clusters
        for intent in clusters.intents(self.cluster_id, SHRINK):
            if intent.outcome is None:
                self.cloud.instances.terminate(list(intent.instance_ids))
                clusters.end_intent(intent.intent_id, "asked for again", self.clock.now())

    def _join_living(self, listed: Mapping[str, Instance]) -> list[Member]:
        """Join what EC2 lists with the prices that the store knows, without what has ended or is to end."""
        clusters = self.store.clusters
        stored = {member.instance.instance_id: member for member in clusters.members(self.cluster_id)}
        terminating = self._terminating_ids()
        late = {name: stored[name].instance for name in self.unlisted_ids(listed) if name in stored}
        return [
            replace(stored.get(name) or Member(instance=instance), instance=instance)
            for name, instance in {**listed, **late}.items()
            if instance.alive and name not in terminating
        ]

    def _wait_for_end(self, ids: Sequence[str]) -> dict[str, Instance]:
        """Return all that EC2 lists of the cluster once it lists none of these instances as alive."""
        unseen = set(ids)

        def living(listed: Mapping[str, Instance]) -> list[str]:
            return [name for name in listed if name in ids and listed[name].alive]

        def terminate_late() -> dict[str, Instance]:
            """Ask once more for those that are listed as alive: EC2 may not have known them before."""
            listed = self.describe_instances()
            if late := unseen.intersection(living(listed)):
                self.cloud.instances.terminate(sorted(late))
            unseen.difference_update(listed)
            return listed

        listed = wait_until(
            terminate_late,
            lambda listed: not living(listed) and not self.unlisted_ids(listed).intersection(ids),
            clock=self.clock,
            timeout_s=SHRINK_TIMEOUT_S,
            poll_s=SHRINK_POLL_S,
        )
        if left := living(listed):
            raise CloudError(f"{self.cluster.name}: still not terminated: {', '.join(left)}", "run it again")
        return listed

    def _terminating_ids(self) -> set[str]:
        """Return the ids of the instances that were ever asked to terminate by a shrink of the cluster."""
        intents = self.store.clusters.intents(self.cluster_id, SHRINK)
        return {name for intent in intents for name in intent.instance_ids}

    def _life_minutes(self) -> dict[str, int]:
        """Return after how many minutes each instance terminates itself, by instance id."""
        return {
            name: life
            for intent in self.store.clusters.intents(self.cluster_id, LAUNCH)
            if (life := LaunchAttempt.from_text(intent.detail).life_minutes)
            for name in intent.instance_ids
        }

    def _most_usd(self, requests: Sequence[LaunchAttempt]) -> list[Decimal | None]:
        """Return the most that an hour of each request costs; None at an unknown price.

        Source: EC2 user guide, "Spot Instances": the maximum price defaults to the on-demand price.
        """
        types = sorted({name for request in requests for name, _ in request.pools})
        prices: list[Price] = []
        with suppress(CloudError):
            prices = self.cloud.prices.find(types, [Market.ON_DEMAND]) if types else []
        by_type = {price.instance_type: price.hourly_usd for price in prices}
        most: list[Decimal | None] = []
        for request in requests:
            usd = [by_type[name] for name, _ in request.pools if name in by_type]
            most.append(max(usd) * request.count if len(usd) == len(request.pools) else None)
        return most


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """What may still be up.

    Args:
        count: Instances without a known end.
        requested: Instances of launches whose answer was lost.
        hourly_usd: The price of an hour of all; None if it is unknown.
        ends_at: When the last one terminates itself; None if that is unknown.
    """

    count: int
    requested: int
    hourly_usd: Decimal | None
    ends_at: datetime | None

    def describe(self) -> str:
        """Return what may still be up, the price of an hour of it, and when it terminates itself."""
        counts = [f"{self.count} instance(s)"] if self.count else []
        if self.requested:
            counts.append(f"up to {self.requested} of a launch without an answer")
        if not counts:
            return NOTHING_UP
        until = ""
        if self.ends_at is not None:
            until = f" until they terminate themselves, at {self.ends_at:%Y-%m-%d %H:%M} UTC at the latest"
        return f"{' and '.join(counts)} may still be up {self._price()}{until}"

    def describe_leaving(self, now: datetime) -> str:
        """Return what leaving means: "to leave them until they terminate themselves at 14:05 UTC, …"."""
        if not self.count and not self.requested:
            return "to leave its security group, at no cost"
        if self.ends_at is None:
            return f"to leave them up {self._price()}"
        day = "" if self.ends_at.date() == now.date() else f"{self.ends_at:%Y-%m-%d} "
        seconds = max(0.0, (self.ends_at - now).total_seconds())
        usd = None if self.hourly_usd is None else instance_usd(self.hourly_usd, seconds)
        most = "at an unknown price" if usd is None else f"{money(usd)} USD at most"
        return f"to leave them until they terminate themselves at {day}{self.ends_at:%H:%M} UTC, {most}"

    def _price(self) -> str:
        return hourly_price([self.hourly_usd])


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


def _has_ended(member: Member, listed: Mapping[str, Instance], terminating: Collection[str]) -> bool:
    instance = listed.get(member.instance.instance_id)
    return member.instance.instance_id in terminating or (instance is not None and not instance.alive)


def _with_price(member: Member, prices: Sequence[Price]) -> Member:
    price = price_of(member.instance, prices)
    if member.hourly_usd is not None or price is None:
        return member
    return replace(member, hourly_usd=price.hourly_usd)


def _latest_end(
    members: Sequence[Member], minutes: dict[str, int], requests: Iterable[tuple[Intent, LaunchAttempt]]
) -> datetime | None:
    """Return when the last one terminates itself; None where that is not known of one."""
    lives = [(m.instance.launched_at, minutes.get(m.instance.instance_id, 0)) for m in members]
    lives += [(intent.begun_at, request.life_minutes) for intent, request in requests]
    if not all(life for _, life in lives):
        return None
    return max(began + timedelta(minutes=life) for began, life in lives)
