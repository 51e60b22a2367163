"""Get the instances of a plan: round after round, each request under a token that makes it safe to repeat.

`Launcher.launch` and `grow` call `Provisioner.provision`. First it finds what earlier commands launched, and
repeats a request whose answer was never seen, word for word. Then it takes what is reserved, and asks one
market after another for what is missing; `planning.attempts` says for which zone and pools. Each request is
stored as an intent before it is sent, and its instances are stored before the intent ends: a command that is
killed at any point is completed by the next one, and nothing that runs is forgotten.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from dlcloud.launch.acquire import write_user_data
from dlcloud.launch.managed import LAUNCH, UNSEEN, ManagedCluster
from dlcloud.model.cluster import Member, client_token
from dlcloud.model.errors import CapacityError, CloudError, QuotaError
from dlcloud.model.events import Info, Warned
from dlcloud.model.instance import Instance, Market, is_burstable
from dlcloud.model.money import ZONE_TRAFFIC_USD_PER_GB
from dlcloud.planning.attempts import (
    EVERY_ZONE,
    LaunchAttempt,
    first_zone,
    has_pools,
    home_zone,
    next_attempt,
    next_zone,
    reserved_attempt,
)
from dlcloud.planning.launch_request import FleetRequest, LaunchRequest, LaunchResult, PoolRefusal
from dlcloud.planning.plan import Plan
from dlcloud.planning.reservations import MARGINAL_USD

REPEATABLE = timedelta(minutes=15)
"""How long a request without an answer is repeated under its token; long before EC2 could forget the token,
long after its lists have caught up."""


UNFULFILLABLE = "UnfulfillableCapacity"
NO_GROUP = "InvalidGroup.NotFound"
GROUP_PAUSES_S = (1.0, 2.0, 3.0, *[4.0] * 6)
"""Between requests on a security group that was created a moment ago: 30 s in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioned:
    """The living instances of a cluster, found or launched, and the refusals of more.

    `earlier_ids` are of those that earlier commands launched.
    """

    members: list[Member]
    refusals: tuple[PoolRefusal, ...] = ()
    earlier_ids: frozenset[str] = frozenset()


class Provisioner:
    """Gets a plan's instances for one cluster."""

    def __init__(self, *, managed: ManagedCluster, plan: Plan, security_group_id: str) -> None:
        self.managed, self.plan, self.security_group_id = managed, plan, security_group_id
        self._templates: dict[tuple[str, int | None, bool], str] = {}
        self._withheld: dict[str, int] = {}

    def provision(self, *, minimum: int) -> Provisioned:
        """Request what the plan's instances lack, market by market; each round completes those before it.

        Raises:
            CapacityError: There are fewer than `minimum`; the message names each pool's refusal.
            QuotaError: As above, and account limits are all that stood in the way.
            CredentialsError, CloudError: As above, and a pool refused the request as denied or invalid.
        """
        members = self._find_earlier()
        earlier_ids = frozenset(member.instance.instance_id for member in members)
        refusals = self._request_reserved(members)
        for market in self.plan.rounds:
            refusals += self._request_round(market, members)
            if any(refusal.error.is_final for refusal in refusals):
                break  # another market would have the same fault, at a higher price
        provisioned = Provisioned(members=members, refusals=tuple(refusals), earlier_ids=earlier_ids)
        if len(members) < minimum:
            raise capacity_error(provisioned, minimum)
        self.managed.store.clusters.put_members(self.managed.cluster_id, members)
        for line in refusal_lines(refusals):
            self.managed.emit(Warned(message=line))
        return provisioned

    def _request_reserved(self, members: list[Member]) -> list[PoolRefusal]:
        """Request what the plan takes of reservations; what they refuse is not bought instead.

        The plan's price would not hold then: the next plan counts it.
        """
        refusals: list[PoolRefusal] = []
        for reserved in self.plan.reserved:
            missing = self.plan.max_count - len(members)
            if missing <= 0:
                break
            count = len(self.managed.store.clusters.intents(self.managed.cluster_id, LAUNCH))
            attempt = reserved_attempt(self.plan, reserved, missing=missing, attempt=count)
            launched = self._request(attempt)
            new = self._new_members(launched, members)
            members += new
            refusals += launched.refusals
            self._withheld[reserved.reservation_id] = attempt.count - len(new)
        return refusals

    def _count_missing(self, members: Sequence[Member]) -> int:
        """Return how many instances the markets are to give."""
        return self.plan.max_count - sum(self._withheld.values()) - len(members)

    def _request_round(self, market: Market, members: list[Member]) -> list[PoolRefusal]:
        """Request what the plan lacks from one market, add it to the members, and return the refusals."""
        refusals: list[PoolRefusal] = []
        pauses = iter(GROUP_PAUSES_S)
        zone: str | None = first_zone(self.plan, market, members)
        while zone is not None and (missing := self._count_missing(members)) > 0:
            if not has_pools(self.plan, market, on_demand=_on_demand(members)):
                break
            if self.plan.machine.placement_group and zone == EVERY_ZONE and members:
                break  # a group of nearby instances is in one zone
            if self.plan.one_zone and zone == EVERY_ZONE and members:
                self._announce_other_zones(home_zone(members), missing)
            attempt = self._next_attempt(members, market, zone=zone)
            # The answer of a fleet is final under its token, so that each request has its own.
            while _lacks_group(launched := self._request(attempt)) and (seconds := next(pauses, None)):
                self.managed.clock.sleep(seconds)
                attempt = self._next_attempt(members, market, zone=zone)
            refusals += launched.refusals
            new = self._new_members(launched, members)
            members += new
            if self.plan.one_zone:
                reasons = [refusal for refusal in launched.refusals if refusal.code != UNFULFILLABLE]
                zone = next_zone(zone, attempt, reasons, missing=missing, home=home_zone(members))
            else:  # what one pool gave in part is completed from all zones
                is_part = zone != EVERY_ZONE and attempt.single and 0 < len(new) < missing
                zone = EVERY_ZONE if is_part else None
        return refusals

    def _announce_other_zones(self, home: str, missing: int) -> None:
        traffic = f"traffic between zones costs {ZONE_TRAFFIC_USD_PER_GB} USD per GB"
        self.managed.emit(Info(message=f"{home} lacks {missing} instance(s), asking all zones: {traffic}"))

    def _find_earlier(self) -> list[Member]:
        """Return what earlier commands have launched; a new cluster has nothing.

        A request whose answer was never seen is repeated, word for word, under its token: EC2 answers with
        the same instances, also where its lists do not show them yet. An old one is not repeated: no token
        lives forever, and by then the lists show them.
        """
        clusters, clock = self.managed.store.clusters, self.managed.clock
        if not clusters.has_intents(self.managed.cluster_id):
            return []
        repeated: list[Instance] = []
        for intent in clusters.intents(self.managed.cluster_id, LAUNCH):
            if intent.outcome is None and clock.now() - intent.begun_at < REPEATABLE:
                attempt = LaunchAttempt.from_text(intent.detail)
                repeated += self._request(attempt, intent.intent_id).instances
            elif intent.outcome is None:
                clusters.end_intent(intent.intent_id, UNSEEN, clock.now())
        members = self.managed.reconcile(repeated=repeated)
        return [self._member(member.instance) if member.hourly_usd is None else member for member in members]

    def _next_attempt(self, members: Sequence[Member], market: Market, *, zone: str) -> LaunchAttempt:
        number = len(self.managed.store.clusters.intents(self.managed.cluster_id, LAUNCH))
        missing = self._count_missing(members)
        return next_attempt(
            self.plan, market, missing=missing, on_demand=_on_demand(members), attempt=number, zone=zone
        )

    def _new_members(self, launched: LaunchResult, members: Sequence[Member]) -> list[Member]:
        ids = {member.instance.instance_id for member in members}
        return [self._member(i) for i in launched.instances if i.alive and i.instance_id not in ids]

    def _request(self, attempt: LaunchAttempt, intent_id: int | None = None) -> LaunchResult:
        """Make one request, its intent stored before it; a pool's refusal is an answer, not an error."""
        managed, clusters = self.managed, self.managed.store.clusters
        request = self._launch_request(attempt)
        if intent_id is None:
            now = managed.clock.now()
            intent_id = clusters.begin_launch(managed.cluster_id, LAUNCH, attempt.to_text(), now)
        if intent_id is None:
            name = managed.cluster.name
            raise CloudError(
                f"{name} is being terminated: nothing more is launched", f"dlcloud status {name}"
            )
        try:
            if attempt.single:
                launched = LaunchResult(
                    instances=_in_reservation(managed.cloud.instances.launch(request), attempt)
                )
            else:
                launched = managed.cloud.fleets.launch(self._fleet_request(attempt, request))
        except (CapacityError, QuotaError) as error:
            zone = attempt.pools[0][1]
            launched = LaunchResult(
                instances=(), refusals=(PoolRefusal(pool=_pool_name(attempt), zone=zone, error=error),)
            )
        except CloudError as error:
            if error.answered:
                clusters.end_intent(intent_id, type(error).__name__, managed.clock.now())
            raise
        # Before the intent ends: EC2's lists may not show them yet.
        clusters.put_members(managed.cluster_id, [self._member(instance) for instance in launched.instances])
        ids = [instance.instance_id for instance in launched.instances]
        clusters.end_launch(intent_id, launched.fleet_id or "", ids, managed.clock.now())
        return launched

    def _template(self, attempt: LaunchAttempt, request: LaunchRequest, *, burstable: bool) -> str:
        """Return the launch template of a fleet's types that are burstable, or that are not; empty for none.

        Rounds that differ only in their market share one.
        """
        name = next((name for name, _ in attempt.pools if is_burstable(name) is burstable), None)
        if name is None:
            return ""
        key = (attempt.image.image_id, attempt.life_minutes, burstable)
        if key not in self._templates:
            of_types = replace(request, instance_type=name)
            self._templates[key] = self.managed.cloud.fleets.create_template(of_types)
        return self._templates[key]

    def _fleet_request(self, attempt: LaunchAttempt, request: LaunchRequest) -> FleetRequest:
        return FleetRequest(
            template=self._template(attempt, request, burstable=False),
            burstable_template=self._template(attempt, request, burstable=True),
            pools=attempt.pools,
            spot_count=attempt.spot_count,
            on_demand_count=attempt.on_demand_count,
            client_token=request.client_token,
            tags=self.managed.cluster.tags,
            requested_at=self.managed.clock.now(),
            max_hourly_usd=attempt.max_hourly_usd,
            single_zone=attempt.single_zone,
            subnets=request.machine.network.subnets,
        )

    def _launch_request(self, attempt: LaunchAttempt) -> LaunchRequest:
        name, zone = attempt.pools[0]
        cluster = self.managed.cluster
        user_data = write_user_data(
            cluster,
            life_minutes=attempt.life_minutes or self.plan.life_minutes,
            idle_minutes=self.plan.idle_minutes,
            paths=self.managed.store.paths,
        )
        return LaunchRequest(
            # A request that is repeated after a crash names the image of then.
            machine=replace(self.plan.machine, image=attempt.image),
            instance_type=name,
            zone=zone,
            market=attempt.market,
            min_count=1,
            max_count=attempt.count,
            security_group_id=self.security_group_id,
            user_data=user_data,
            client_token=client_token(cluster, attempt.to_text()),
            tags=cluster.tags,
            max_hourly_usd=attempt.max_hourly_usd.get(name),
            reservation_id=attempt.reservation_id,
            in_block=attempt.in_block,
        )

    def _member(self, instance: Instance) -> Member:
        if instance.reservation_id and self.plan.machine.outside_reservations:
            return Member(
                instance=instance,
                hourly_usd=MARGINAL_USD,
                price_source=f"marginal: {instance.reservation_id} is paid for anyway",
            )
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


def _in_reservation(instances: Sequence[Instance], attempt: LaunchAttempt) -> tuple[Instance, ...]:
    """Return new instances with the reservation that they were launched into."""
    name = attempt.reservation_id
    return tuple(replace(instance, reservation_id=name) if name else instance for instance in instances)


def _pool_name(attempt: LaunchAttempt) -> str:
    name = attempt.pools[0][0]
    return f"{name} {attempt.reservation_id or attempt.market}"


def _on_demand(members: Sequence[Member]) -> int:
    return sum(member.instance.market is Market.ON_DEMAND for member in members)


def _lacks_group(launched: LaunchResult) -> bool:
    """True if no pool knows the security group yet, which was created a moment ago."""
    codes = {refusal.code for refusal in launched.refusals}
    return not launched.instances and codes - {UNFULFILLABLE} == {NO_GROUP}


def capacity_error(provisioned: Provisioned, minimum: int) -> CloudError:
    """Return the error for too few instances, with each pool's refusal.

    A denial or an invalid request is reported as that, whatever other pools lacked.
    """
    # EC2 adds UnfulfillableCapacity to the errors that tell why.
    refusals = [refusal for refusal in provisioned.refusals if refusal.code != UNFULFILLABLE]
    lines = "\n".join(f"  {line}" for line in refusal_lines(provisioned.refusals))
    message = f"launched {len(provisioned.members)} instance(s), minimum is {minimum}:\n{lines}"
    final = [refusal.error for refusal in refusals if refusal.error.is_final]
    if final:
        error = type(final[0])(message, final[0].hint)
        error.is_final = True
        return error
    if refusals and all(isinstance(refusal.error, QuotaError) for refusal in refusals):
        return QuotaError(message, refusals[0].error.hint)
    hint = "add types, zones or market: spot-then-on-demand to the recipe, or try another region"
    lacking = [refusal.error for refusal in refusals if isinstance(refusal.error, CapacityError)]
    special = {error.hint for error in lacking} - {"", CapacityError.USUAL_HINT}
    return CapacityError(message, special.pop() if len(special) == 1 else hint)


def refusal_lines(refusals: Sequence[PoolRefusal]) -> list[str]:
    """Return a line for each refused pool, its zones together; the first of each code has EC2's message."""
    pools: dict[tuple[str, str], list[PoolRefusal]] = {}
    for refusal in refusals:
        pools.setdefault((refusal.pool, refusal.code or refusal.error.message), []).append(refusal)
    lines, shown = [], set()
    for (pool, code), same in pools.items():
        zones = ", ".join(sorted({refusal.zone for refusal in same}))
        message = same[0].error.message.removeprefix(f"{pool} in {same[0].zone}: ")
        lines.append(f"{pool} in {zones}: {code if code in shown else message}")
        shown.add(code)
    return lines
