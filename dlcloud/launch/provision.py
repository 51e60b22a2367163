"""Get a plan's instances: pool after pool, each request under a token that makes a repeated one harmless."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlcloud.core.cluster import Cluster, Member, client_token
from dlcloud.core.errors import CapacityError, CloudError, QuotaError
from dlcloud.core.events import Emit, Warned
from dlcloud.core.instance import Instance
from dlcloud.core.plan import Plan, Pool
from dlcloud.core.ports import Clock, Cloud, LaunchRequest
from dlcloud.ssh.fanout import fan_out
from dlcloud.store.clusters import Clusters

LAUNCH = "launch"
"""The name of the intent that precedes each request for instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioner:
    """Gets the instances of one cluster.

    Args:
        cluster: Whose instances.
        plan: Which, how many, from which pools.
        user_data: What they do at first boot.
        cloud: Where.
        clusters: Where intents and instances are remembered.
        clock: For the dates of intents.
        emit: Is told of each refusal.
    """

    cluster: Cluster
    plan: Plan
    user_data: str
    cloud: Cloud
    clusters: Clusters
    clock: Clock
    emit: Emit

    def provision(self) -> list[Member]:
        """Return the instances, launched or found.

        Raises:
            CapacityError: Fewer than the plan's minimum could be had; the message tells each pool's refusal.
            QuotaError: As above, and account limits were all that stood in the way.
        """
        found = self._found()
        group_id = self.cloud.create_security_group(self.cluster.cluster_id, self.cluster.tags)
        # The group's rule and the first request do not wait for each other: a round trip less.
        steps: list[Callable[[], list[Member] | None]] = [
            lambda: self._fill(found, group_id),
            lambda: self.cloud.allow_ssh(group_id, self.plan.cidr),
        ]
        filled, allowed = fan_out(lambda step: step(), steps)
        for outcome in (filled, allowed):
            if outcome.error is not None:
                raise outcome.error
        members = filled.value or []
        self.clusters.put_members(self.cluster.cluster_id, members)
        return members

    def _found(self) -> list[Member]:
        """Return what an earlier, unfinished `up` of this cluster has launched; a new cluster has nothing."""
        if not self.clusters.known_to_cloud(self.cluster.cluster_id):
            return []
        alive = [instance for instance in self.cloud.instances(self.cluster.cluster_id) if instance.alive]
        return [self._member(instance, self._pool_of(instance)) for instance in alive]

    def _fill(self, members: list[Member], group_id: str) -> list[Member]:
        refusals: list[CloudError] = []
        for pool in self.plan.pools:
            missing = self.plan.max_count - len(members)
            if missing <= 0:
                break
            try:
                launched = self._launch(pool, group_id, missing)
            except (CapacityError, QuotaError) as error:
                refusals.append(error)
                self.emit(Warned(message=error.message))
                continue
            new = {instance.instance_id: instance for instance in launched if instance.alive}
            known = {member.instance.instance_id for member in members}
            members += [self._member(each, pool) for each in new.values() if each.instance_id not in known]
        if len(members) < self.plan.min_count:
            raise _no_capacity(self.plan, len(members), refusals)
        return members

    def _launch(self, pool: Pool, group_id: str, count: int) -> list[Instance]:
        """Make one request, its intent stored before it.

        The token counts the requests of this cluster whose end is known, so that one interrupted by a crash
        is repeated under the same token, which gives the same instances, and a later one gets its own.
        """
        attempt = self.clusters.ended_intents(self.cluster.cluster_id, LAUNCH)
        request = LaunchRequest(
            instance_type=pool.instance_type,
            zone=pool.zone,
            market=pool.market,
            min_count=1,
            max_count=count,
            image=self.plan.image,
            disk_gib=self.plan.disk_gib,
            security_group_id=group_id,
            user_data=self.user_data,
            client_token=client_token(
                self.cluster, pool.instance_type, pool.zone, pool.market, count, attempt
            ),
            tags=self.cluster.tags,
        )
        detail = f"{count} {pool.instance_type} {pool.market} {pool.zone}".strip()
        intent = self.clusters.begin_intent(self.cluster.cluster_id, LAUNCH, detail, self.clock.now())
        try:
            launched = self.cloud.launch(request)
        except (CapacityError, QuotaError) as error:
            self.clusters.end_intent(intent, type(error).__name__, self.clock.now())
            raise
        self.clusters.end_intent(intent, ", ".join(each.instance_id for each in launched), self.clock.now())
        return launched

    def _pool_of(self, instance: Instance) -> Pool | None:
        same = [
            pool
            for pool in self.plan.pools
            if pool.instance_type == instance.instance_type and pool.market is instance.market
        ]
        return same[0] if same else None

    def _member(self, instance: Instance, pool: Pool | None) -> Member:
        price = pool.price if pool else None
        return Member(
            instance=instance,
            hourly_usd=price.hourly_usd if price else None,
            price_source=price.source if price else "",
            price_as_of=price.as_of if price else None,
        )


def _no_capacity(plan: Plan, had: int, refusals: Sequence[CloudError]) -> CloudError:
    told = "\n".join(f"  {refusal.message}" for refusal in refusals)
    message = f"{had} of at least {plan.min_count} instance(s) could be had:\n{told}"
    only_quota = bool(refusals) and all(isinstance(refusal, QuotaError) for refusal in refusals)
    kind = QuotaError if only_quota else CapacityError
    hint = "add types, zones or market: spot-then-on-demand to the recipe, or try another region"
    return kind(message, refusals[0].hint if only_quota else hint)
