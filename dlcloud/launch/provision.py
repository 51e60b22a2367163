"""Get a plan's instances: round after round, each request under a token that makes it safe to repeat."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from dlcloud.core.attempts import LaunchAttempt, next_attempt
from dlcloud.core.cluster import Cluster, Member, client_token
from dlcloud.core.errors import CapacityError, CloudError, QuotaError
from dlcloud.core.events import Emit, Warned
from dlcloud.core.instance import Instance, Market
from dlcloud.core.plan import Plan
from dlcloud.core.protocols import Clock, Cloud, FleetRequest, LaunchRequest, LaunchResult, Refusal
from dlcloud.launch.members import LAUNCH, UNSEEN, reconcile_members
from dlcloud.store.clusters import Clusters

REPEATABLE = timedelta(minutes=15)
"""How long a request without an answer is repeated under its token; long before EC2 could forget the token,
long after its lists have caught up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioned:
    """The living instances of a cluster, found or launched, and what refused more of them."""

    members: list[Member]
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioner:
    """Gets the instances of one cluster.

    Args:
        cluster: Whose instances.
        plan: Which, how many, from which pools.
        first_boot: Returns what an instance does at first boot that ends itself after so many minutes.
        security_group_id: What guards them.
        cloud: Where.
        clusters: Where intents and instances are remembered.
        clock: For the dates of intents.
        emit: Is told of each refusal.
    """

    cluster: Cluster
    plan: Plan
    first_boot: Callable[[int], str]
    security_group_id: str
    cloud: Cloud
    clusters: Clusters
    clock: Clock
    emit: Emit
    _templates: dict[tuple[str, int], str] = field(default_factory=dict)

    def provision(self) -> list[Member]:
        """Return the instances, launched or found.

        Raises:
            CapacityError: Fewer than the plan's minimum could be had; the message tells each pool's refusal.
            QuotaError: As above, and account limits were all that stood in the way.
        """
        had = self.fill(self.found())
        if len(had.members) < self.plan.min_count:
            raise no_capacity(had, self.plan.min_count)
        self.clusters.put_members(self.cluster.cluster_id, had.members)
        for line in refusal_lines(had.refusals):
            self.emit(Warned(message=line))
        return had.members

    def found(self) -> list[Member]:
        """Return what commands before this one have launched; a new cluster has nothing.

        A request whose answer was never seen is repeated, word for word, under its token: EC2 answers with
        the same instances, also where its lists do not tell of them yet. An old one is not repeated: no token
        lives for ever, and by then the lists tell.
        """
        if not self.clusters.known_to_cloud(self.cluster.cluster_id):
            return []
        repeated: list[Instance] = []
        for intent in self.clusters.intents(self.cluster.cluster_id, LAUNCH):
            if intent.outcome is None and self.clock.now() - intent.begun_at < REPEATABLE:
                repeated += self._carry_out(
                    LaunchAttempt.from_text(intent.detail), intent.intent_id
                ).instances
            elif intent.outcome is None:
                self.clusters.end_intent(intent.intent_id, UNSEEN, self.clock.now())
        members = reconcile_members(
            self.cluster, cloud=self.cloud, clusters=self.clusters, clock=self.clock, repeated=repeated
        )
        return [self._member(member.instance) if member.hourly_usd is None else member for member in members]

    def fill(self, members: list[Member]) -> Provisioned:
        """Ask round after round until there is enough; each completes what was had before it."""
        refusals: list[Refusal] = []
        for market in self.plan.rounds:
            partial = self._round(members, market, refusals)
            if partial:
                self._round(members, market, refusals, spread=True)
        return Provisioned(members=members, refusals=tuple(refusals))

    def _round(
        self,
        members: list[Member],
        market: Market,
        refusals: list[Refusal],
        *,
        spread: bool = False,
    ) -> bool:
        """Add to members and refusals what one request gives; tell whether one pool gave a part of it."""
        missing = self.plan.max_count - len(members)
        if missing <= 0:
            return False
        fixed = [each for each in members if each.instance.market is Market.ON_DEMAND]
        attempt = len(self.clusters.intents(self.cluster.cluster_id, LAUNCH))
        ask = next_attempt(
            self.plan, market, missing=missing, on_demand=len(fixed), attempt=attempt, spread=spread
        )
        launched = self._carry_out(ask)
        refusals += launched.refusals
        known = {member.instance.instance_id for member in members}
        new = [each for each in launched.instances if each.alive and each.instance_id not in known]
        members += [self._member(each) for each in new]
        return ask.single and 0 < len(new) < missing

    def _carry_out(self, ask: LaunchAttempt, intent_id: int | None = None) -> LaunchResult:
        """Make one request, its intent stored before it; what refuses it is an answer, not an error."""
        request = self._request(ask)
        template = "" if ask.single else self._template(ask, request)
        if intent_id is None:
            intent_id = self.clusters.begin_intent(
                self.cluster.cluster_id, LAUNCH, ask.to_text(), self.clock.now()
            )
        try:
            launched = self._launch(ask, request, template)
        except (CapacityError, QuotaError) as error:
            name, zone = ask.pools[0]
            launched = LaunchResult(
                instances=(), refusals=(Refusal(pool=f"{name} {ask.market}", zone=zone, error=error),)
            )
        except CloudError as error:
            if error.answered:
                self.clusters.end_intent(intent_id, type(error).__name__, self.clock.now())
            raise
        told = [launched.fleet_id, *(each.instance_id for each in launched.instances)]
        self.clusters.end_intent(intent_id, " ".join(filter(None, told)) or "refused", self.clock.now())
        return launched

    def _template(self, ask: LaunchAttempt, request: LaunchRequest) -> str:
        """Return the launch template of a fleet; rounds that differ only in their market share one."""
        key = (ask.image.image_id, ask.life_minutes)
        if key not in self._templates:
            self._templates[key] = self.cloud.create_launch_template(request)
        return self._templates[key]

    def _launch(self, ask: LaunchAttempt, request: LaunchRequest, template: str) -> LaunchResult:
        if ask.single:
            return LaunchResult(instances=tuple(self.cloud.launch(request)))
        return self.cloud.launch_fleet(
            FleetRequest(
                template=template,
                pools=ask.pools,
                spot_count=ask.spot_count,
                on_demand_count=ask.on_demand_count,
                client_token=request.client_token,
                tags=self.cluster.tags,
                requested_at=self.clock.now(),
                max_usd=ask.max_usd,
            )
        )

    def _request(self, ask: LaunchAttempt) -> LaunchRequest:
        name, zone = ask.pools[0]
        return LaunchRequest(
            instance_type=name,
            zone=zone,
            market=ask.market,
            min_count=1,
            max_count=ask.count,
            image=ask.image,
            disk_gib=self.plan.disk_gib,
            security_group_id=self.security_group_id,
            user_data=self.first_boot(ask.life_minutes or self.plan.life_minutes),
            client_token=client_token(self.cluster, ask.to_text()),
            tags=self.cluster.tags,
            max_usd=ask.max_usd.get(name),
        )

    def _member(self, instance: Instance) -> Member:
        pools = [
            pool
            for pool in self.plan.pools
            if pool.instance_type == instance.instance_type and pool.market is instance.market
        ]
        price = next((pool.price_in(instance.zone) for pool in pools), None)
        return Member(
            instance=instance,
            hourly_usd=price.hourly_usd if price else None,
            price_source=price.source if price else "",
            price_as_of=price.as_of if price else None,
        )


def no_capacity(had: Provisioned, least: int) -> CloudError:
    """Return the error that says that too few could be had, with each pool's refusal."""
    refusals = had.refusals
    told = "\n".join(f"  {line}" for line in refusal_lines(refusals))
    message = f"{len(had.members)} of at least {least} instance(s) could be had:\n{told}"
    only_quota = bool(refusals) and all(isinstance(refusal.error, QuotaError) for refusal in refusals)
    kind = QuotaError if only_quota else CapacityError
    hint = "add types, zones or market: spot-then-on-demand to the recipe, or try another region"
    return kind(message, refusals[0].error.hint if only_quota else hint)


def refusal_lines(refusals: Sequence[Refusal]) -> list[str]:
    """Return a line for each refusal; pools that differ only in their zone share one."""
    pools: dict[tuple[str, str], list[Refusal]] = {}
    for refusal in refusals:
        pools.setdefault((refusal.pool, refusal.code or refusal.error.message), []).append(refusal)
    return [
        f"{pool} in {', '.join(sorted(each.zone for each in same))}: {code}"
        if len(same) > 1
        else same[0].error.message
        for (pool, code), same in pools.items()
    ]
