"""What will be launched, and why: the plan of `up`, `resize` and each replacement, with its price.

`launch.preflight` asks for the facts, `make_plan` decides, `launch.provision` carries the plan out, and
`--dry-run` prints it. In this order: the network that instances can be reached in; the pools that the Region
offers, market by market; whether the types suit image, workload, placement group and EFA; what reservations
give; which pools the account's limits leave; how long the budget lets each instance live. Every decision
adds its reason, and every refusal is raised here, before anything exists that costs money. The plan states
the most that the launch can cost, or that a price is unknown; it never guesses one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal

from dlcloud.model.account import AccountPlan
from dlcloud.model.errors import BudgetError, CapacityError, QuotaError
from dlcloud.model.instance import Image, InstanceType, Market, Price, is_burstable
from dlcloud.model.money import SECONDS_PER_HOUR, cost_of_seconds, exact, rounded
from dlcloud.planning.fit import KnownType, check_types, describe, successors
from dlcloud.planning.launch_request import MachineSpec
from dlcloud.planning.networks import (
    FoundNetwork,
    PlannedNetwork,
    Subnet,
    as_reachable,
    best_zones,
    default_network,
    describe_network,
    describe_unfit,
    plan_network,
    refuse_network,
    usable_subnets,
    zones_to_ask,
)
from dlcloud.planning.placement import check_placement, fabric_interfaces
from dlcloud.planning.quotas import CallerIdentity, Quota, Shortage, find_shortage, least_remedy, quota_key
from dlcloud.planning.reservations import MARGINAL_USD, CapacityReservation, ReservedCapacity, take_reserved
from dlcloud.recipe.deadline import Deadline, describe_deadline
from dlcloud.recipe.recipe import Recipe, describe_workload

QuotaPlace = tuple[str, str]
"""A quota by its Region and its code: each Region has its own."""
MINUTES_PER_HOUR = 60
SPOT_HEADROOM = Decimal("1.2")
"""Under a budget in dollars, spot is given up where it costs so much more than it did at the launch."""
SHORTEST_MINUTES = {"aws": 15, "local": 5}
"""The shortest life and the shortest idle time of an instance, by cloud: on AWS its boot and its set-up, in
which downloads hardly use the processor, may take most of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPool:
    """Capacity that a request can draw from; `zone` empty: any of `zones`, or whichever offers the type.

    `price` is the lowest over the zones, `zone_prices` are those of each zone where they differ (spot), and
    `ceiling_usd` is the most that an hour can cost; None if unknown.
    """

    instance_type: str
    market: Market
    zone: str
    price: Price | None
    zones: tuple[str, ...] = ()
    zone_prices: tuple[Price, ...] = ()
    ceiling_usd: Decimal | None = None

    def price_in(self, zone: str) -> Price | None:
        """Return the price of an instance of this pool in a zone."""
        return next((price for price in self.zone_prices if price.zone == zone), self.price)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionOffer:
    """What the job costs in one Region at most, by its first pool; or why the Region refuses it."""

    region: str
    instance_type: str = ""
    price: Price | None = None
    traffic_usd: Decimal = Decimal(0)
    """To read the recipe's data from a bucket in another Region."""
    job_usd: Decimal | None = None
    """With disks, addresses and traffic; None if the price is unknown."""
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The actions of `up`; `--dry-run` prints the same plan."""

    name: str
    cloud: str
    region: str
    account: str
    pools: tuple[CapacityPool, ...]
    min_count: int
    max_count: int
    machine: MachineSpec
    """What every instance is like, as EC2 is asked for it."""
    cidrs: tuple[str, ...]
    workload: str
    life_minutes: int
    hourly_usd: Decimal | None
    worst_case_usd: Decimal | None
    reasons: tuple[str, ...]
    keep: bool
    rounds: tuple[Market, ...]
    """The markets in the order in which they are asked; each round completes what those before it gave."""
    on_demand_base: int = 0
    idle_minutes: int | None = None
    max_usd: Decimal | None = None
    max_usd_per_hour: Decimal | None = None
    names_cidrs: bool = False
    """The user named the networks; they stay where this machine's address changes."""
    one_zone: bool = False
    """The instances share one zone, as far as it has capacity."""
    reserved: tuple[ReservedCapacity, ...] = ()
    """What is taken of reservations, before every market; a shortfall is not bought instead."""
    traffic_usd: Decimal = Decimal(0)
    """Of data in a bucket of another Region."""
    regions: tuple[RegionOffer, ...] = ()
    """The offers of all Regions that the recipe names, the cheapest first; empty if it names one."""
    quota_needs: Mapping[str, tuple[Quota, int]] = field(default_factory=dict)
    """By the code of each quota that a pool counts against: the quota, and the most vCPUs taken of it."""

    @property
    def needs_by_place(self) -> dict[QuotaPlace, tuple[Quota, int]]:
        """The quotas of `quota_needs` by Region and code."""
        return {(self.region, code): need for code, need in self.quota_needs.items()}

    @property
    def holds_spot_price(self) -> bool:
        """True if a request for spot names the most that it pays."""
        return self.max_usd is not None or self.max_usd_per_hour is not None

    @property
    def reserved_count(self) -> int:
        """How many instances are taken of reservations."""
        return sum(one.count for one in self.reserved)

    @property
    def rehearsal(self) -> bool:
        """True if instance types are only rehearsed, on this machine."""
        return self.cloud == "local"

    def shortened(self, seconds: float) -> "Plan | None":
        """Return the plan for instances that live so much less; None if that is too little to be of use."""
        minutes = int(self.life_minutes - seconds / 60)
        return replace(self, life_minutes=minutes) if minutes >= SHORTEST_MINUTES[self.cloud] else None

    def without(self, instance_type: str, market: Market, zone: str) -> "Plan | None":
        """Return the plan without a capacity pool; None if no other is left."""
        pools = []
        for pool in self.pools:
            if (pool.instance_type, pool.market) == (instance_type, market):
                zones = tuple(one for one in pool.zones if one != zone)
                if pool.zone == zone or not zones:
                    continue
                pool = replace(pool, zones=zones)  # noqa: PLW2901  the rest of it
            pools.append(pool)
        return replace(self, pools=tuple(pools)) if pools else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightFacts:
    """What preflight found. `zones` and `hardware` are by instance type; an absent type is not offered."""

    identity: CallerIdentity
    cidrs: tuple[str, ...]
    """The networks that may reach the instances."""
    zones: Mapping[str, tuple[str, ...]]
    hardware: Mapping[str, InstanceType]
    image: Image
    prices: Sequence[Price]
    known_types: Callable[[], Sequence[KnownType]] = tuple
    quotas: Mapping[tuple[str, Market], Quota] = field(default_factory=dict)
    subnets: Mapping[str, Subnet] | None = None
    """The default subnets by zone; None if unknown."""
    network: FoundNetwork | None = None
    """What the recipe's network is; None where it names none."""
    account_plan: AccountPlan | None = None
    """AWS's plan of the account; None if unknown."""
    scores: Mapping[str, int] = field(default_factory=dict)
    """EC2's spot placement score, 1 to 10, by zone."""
    notes: tuple[str, ...] = ()
    """What is unknown, and why."""
    names_cidrs: bool = False
    """The networks were named, not looked up."""
    reservations: Sequence[CapacityReservation] = ()
    """The account's reservations, where the recipe uses some."""
    asked_at: datetime | None = None
    """When they were asked for."""
    session_ends_at: datetime | None = None
    """When the caller's login ends, where nothing renews it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingCapacity:
    """The instances that the cluster has already, and how many of them are on-demand, and reserved.

    `committed_usd` is their cost so far and until their timers end them; None at an unknown price.
    """

    count: int = 0
    on_demand: int = 0
    reserved: int = 0
    committed_usd: Decimal | None = Decimal(0)


NO_CAPACITY = ExistingCapacity()


def make_plan(recipe: Recipe, facts: PreflightFacts, present: ExistingCapacity = NO_CAPACITY) -> Plan:
    """Decide which pools to try in which order, for how long at most, and what that costs.

    Args:
        recipe: All that is to run.
        facts: What preflight found.
        present: The part of it that runs already; quota and budget need only hold the rest.

    Raises:
        CapacityError: The region offers none of the recipe's types.
        QuotaError: The account's limits leave no pool.
        BudgetError: The budget does not buy enough time.
        CloudError: The region has no default subnet, or a type does not suit the image or the workload.
    """
    return _Planner(recipe, facts, present).plan()


class _Planner:
    """Collects the reasons of one plan while it is decided."""

    def __init__(self, recipe: Recipe, facts: PreflightFacts, present: ExistingCapacity) -> None:
        self._recipe = recipe
        self._facts = facts
        self._present = present
        self._reasons = list(facts.notes)
        self._subnets = facts.subnets
        self._machine = MachineSpec.for_recipe(recipe.instances, facts.image)
        self._missing = max(0, recipe.instances.maximum - present.count)
        self._reserved: tuple[ReservedCapacity, ...] = ()

    @property
    def _paid(self) -> int:
        """How many instances are to be launched outside of reservations."""
        return self._missing - sum(one.count for one in self._reserved)

    @property
    def _billed(self) -> int:
        """How many instances of the cluster are billed by themselves: those outside of reservations."""
        return self._recipe.instances.maximum - self._present.reserved - self._missing + self._paid

    @property
    def _min_count(self) -> int:
        instances = self._recipe.instances
        return instances.minimum if self._recipe.deadline is None else instances.on_demand_base

    @property
    def _is_in_one_zone(self) -> bool:
        """True if the instances talk to each other, which costs time and money between zones."""
        instances, workload = self._recipe.instances, self._recipe.workload
        talks = workload.elastic is not None or self._recipe.is_one_job
        may_spread = instances.spread_zones or self._recipe.deadline is not None
        return bool(instances.placement_group) or (talks and not may_spread)

    def plan(self) -> Plan:
        recipe, facts = self._recipe, self._facts
        network = self._choose_network()
        pools = self._offered_pools()
        if not pools:
            raise CapacityError(
                "\n".join(self._reasons), "dlcloud schema explains instances.types; change the recipe's types"
            )
        offered = list(dict.fromkeys(pool.instance_type for pool in pools))
        self._reasons += check_types(recipe, offered, facts.hardware, facts.image, facts.known_types)
        self._reasons += check_placement(recipe.instances, offered, facts.hardware)
        interfaces, notes = fabric_interfaces(
            recipe.instances, offered, facts.hardware, is_public=network.has_public_address
        )
        self._reasons += notes
        self._reserved, notes = take_reserved(
            recipe,
            facts.reservations,
            facts.prices,
            asked_at=facts.asked_at,
            offered=offered,
            zones=tuple(self._subnets or ()),
            most=self._missing,
            strict=not self._present.count,
        )
        self._reasons += notes
        pools = self._within_limits(pools)
        if facts.network is None:
            network = default_network({zone for pool in pools for zone in pool.zones}, self._subnets)
        if slowed := [name for name in offered if is_burstable(name)]:
            self._reasons.append(
                f"{', '.join(slowed)}: EC2 slows it down once its CPU credits are spent, and bills no more"
            )
        self._describe_disk()
        self._describe_scores()
        ceiling = _highest_ceiling(pools)
        life_minutes = self._life_minutes(ceiling)
        self._reasons += self._machine.notes(recipe.region, recipe.instances.markets)
        self._describe_owner()
        self._describe_session(life_minutes)
        if recipe.deadline is not None:
            self._reasons += self._describe_deadline(recipe.deadline)
        return Plan(
            name=recipe.name,
            cloud=recipe.cloud,
            region=recipe.region,
            account=facts.identity.account,
            pools=pools,
            min_count=self._min_count,
            max_count=recipe.instances.maximum,
            machine=replace(self._machine, network=network, interfaces=interfaces),
            cidrs=facts.cidrs,
            names_cidrs=facts.names_cidrs,
            workload=describe_workload(recipe),
            life_minutes=life_minutes,
            hourly_usd=None if ceiling is None else ceiling * self._billed,
            worst_case_usd=self._worst_case(ceiling, life_minutes),
            reasons=tuple(self._reasons),
            keep=recipe.keep.instances,
            # With a deadline, its policy says when on-demand instances are launched beyond the base.
            rounds=recipe.instances.rounds if recipe.deadline is None else (Market.SPOT,),
            on_demand_base=recipe.instances.on_demand_base,
            idle_minutes=recipe.budget.idle_minutes,
            max_usd=recipe.budget.max_usd,
            max_usd_per_hour=recipe.instances.max_usd_per_hour,
            one_zone=self._is_in_one_zone,
            reserved=self._reserved,
            quota_needs=self._quota_needs(pools),
        )

    def _quota_needs(self, pools: Sequence[CapacityPool]) -> dict[str, tuple[Quota, int]]:
        needs: dict[str, tuple[Quota, int]] = {}
        for pool in pools:
            hardware = self._facts.hardware.get(pool.instance_type)
            key = quota_key(pool.instance_type, pool.market)
            quota = self._facts.quotas.get(key) if key else None
            if hardware is not None and quota is not None:
                vcpus = min(quota.left, hardware.vcpus * self._paid)
                needs[quota.code] = quota, max(vcpus, needs.get(quota.code, (quota, 0))[1])
        return needs

    def _describe_owner(self) -> None:
        recipe = self._recipe
        if recipe.tags:
            tags = ", ".join(f"{key}={value}" for key, value in sorted(recipe.tags.items()))
            self._reasons.append(f"everything is tagged {tags}")
        if recipe.permissions_boundary:
            self._reasons.append(f"roles have the permissions boundary {recipe.permissions_boundary}")

    def _describe_session(self, life_minutes: int) -> None:
        """Note a login that ends before the instances do: nothing could terminate them in between."""
        asked_at, ends_at = self._facts.asked_at, self._facts.session_ends_at
        if asked_at is None or ends_at is None or asked_at + timedelta(minutes=life_minutes) <= ends_at:
            return
        minutes = max(0, int((ends_at - asked_at).total_seconds() // 60))
        self._reasons.append(
            f"your login ends in {minutes} minutes, at {ends_at:%H:%M} UTC: after that dlcloud cannot "
            f"terminate instances, and they terminate themselves after {life_minutes} minutes. Log in "
            "first, lower budget.max_hours, or use --detach"
        )

    def _describe_disk(self) -> None:
        asked, machine = self._recipe.instances.disk_gib, self._machine
        if machine.disk_gib > asked:
            self._reasons.append(
                f"disks have {machine.disk_gib} GiB instead of {asked}: "
                f"image {machine.image.image_id} has a root snapshot of that size"
            )

    def _describe_scores(self) -> None:
        placement = self._facts.scores
        if Market.SPOT in self._recipe.instances.markets and placement:
            scores = ", ".join(f"{zone} {score}" for zone, score in sorted(placement.items()))
            self._reasons.append(f"spot placement score (10 is best): {scores}")

    def _choose_network(self) -> PlannedNetwork:
        """Return the recipe's network; without one, judge the subnets of the default VPC."""
        recipe, resolved = self._recipe, self._facts.network
        if recipe.network is None or resolved is None:
            refuse_network(recipe.region, self._subnets, named=recipe.instances.zones)
            self._reasons += describe_unfit(self._subnets)
            return PlannedNetwork()
        instances = recipe.instances
        subnets = usable_subnets(recipe.network, resolved, instances.zones)
        self._reasons += describe_network(
            recipe.network, subnets, count=instances.maximum, profile=instances.profile
        )
        self._subnets = as_reachable(subnets)
        return plan_network(recipe.network, resolved, subnets)

    def _zones_to_ask(self, name: str) -> tuple[str, ...]:
        """Return the zones to ask for a type: with a network, those of its subnets."""
        zones, named = self._facts.zones[name], self._recipe.instances.zones
        if self._facts.network is None:
            return zones_to_ask(zones, self._subnets, named=named)
        chosen = tuple(zone for zone in zones if zone in (self._subnets or {}))
        if not chosen:
            self._reasons.append(f"{name} is left out: no subnet of the network is in {', '.join(zones)}")
        return chosen

    def _offered_pools(self) -> tuple[CapacityPool, ...]:
        """List the pools market by market, type by type; record why a type is left out."""
        instances = self._recipe.instances
        offered = [name for name in instances.types if self._is_offered(name)]
        pools = []
        for market in instances.markets:
            for name in offered:
                if not self._is_sold(name, market):
                    continue
                if not self._prices(name, market):
                    self._reasons.append(
                        f"no price is known for {name} {market} in {self._recipe.region}: costs stay unknown"
                    )
                zones = self._zones_to_ask(name)
                pools += [pool for zone in zones if self._is_cheap(pool := self._pool(name, market, zone))]
        return tuple(pools)

    def _is_cheap(self, pool: CapacityPool) -> bool:
        """True if `max_usd_per_hour` admits a pool; on spot, the request holds it at later prices too."""
        cap = self._recipe.instances.max_usd_per_hour
        if cap is None or (pool.price is not None and pool.price.hourly_usd <= cap):
            return True
        price = "an unknown price" if pool.price is None else f"{exact(pool.price.hourly_usd)} USD an hour"
        place = f" in {pool.zone}" if pool.zone else ""
        self._reasons.append(
            f"{pool.instance_type} {pool.market}{place} is left out: {price}, and max_usd_per_hour is {cap:f}"
        )
        return False

    def _is_offered(self, name: str) -> bool:
        zones, hardware = self._facts.zones.get(name, ()), self._facts.hardware.get(name)
        if not zones:
            offer = "AWS has retired it" if hardware and hardware.retired else ""
            offer = offer or f"{self._recipe.region} does not offer it"
            is_written = not self._recipe.instances.chosen_for  # requirements chose the nearest themselves
            others = self._facts.known_types() if is_written else []
            near = ", ".join(describe(successor) for successor in successors(name, others))
            self._reasons.append(f"{name} is left out: {offer}{f'; nearest: {near}' if near else ''}")
            return False
        asked = set(self._recipe.instances.zones)
        if asked and not asked & set(zones):
            self._reasons.append(
                f"{name} is left out: none of {', '.join(sorted(asked))} offers it ({', '.join(zones)} do)"
            )
            return False
        return True

    def _is_sold(self, name: str, market: Market) -> bool:
        hardware = self._facts.hardware.get(name)
        if hardware is None or market in hardware.markets:
            return True
        self._reasons.append(f"{name} {market} is left out: EC2 does not sell it so")
        return False

    def _prices(self, name: str, market: Market) -> list[Price]:
        return [
            price for price in self._facts.prices if (price.instance_type, price.market) == (name, market)
        ]

    def _pool(self, name: str, market: Market, zone: str) -> CapacityPool:
        prices = [price for price in self._prices(name, market) if zone in {"", price.zone} or not price.zone]
        return CapacityPool(
            instance_type=name,
            market=market,
            zone=zone,
            price=min(prices, key=lambda price: price.hourly_usd, default=None),
            zones=(zone,) if zone else best_zones(self._facts.zones[name], self._subnets),
            zone_prices=tuple(price for price in prices if price.zone),
            ceiling_usd=self._ceiling(name, market, prices),
        )

    def _ceiling(self, name: str, market: Market, prices: Sequence[Price]) -> Decimal | None:
        """Return the most that an hour can cost. A spot price moves, but never above what the request allows.

        Source: EC2 user guide, "Spot Instances": the maximum price defaults to the on-demand price.
        """
        highest = max((price.hourly_usd for price in prices), default=None)
        if market is Market.ON_DEMAND or highest is None:
            return highest
        limits = [price.hourly_usd for price in self._prices(name, Market.ON_DEMAND)]
        if self._recipe.budget.max_usd is not None:
            limits.append(highest * SPOT_HEADROOM)
        if (cap := self._recipe.instances.max_usd_per_hour) is not None:
            limits.append(cap)
        return min(limits, default=highest)

    def _within_limits(self, pools: Sequence[CapacityPool]) -> tuple[CapacityPool, ...]:
        """Leave out the pools that the account's limits or its Free plan forbid; EC2 would only refuse them.

        Raises:
            QuotaError: No pool is left; the message has the limits, the hint asks for the least that does.
        """
        kept: list[CapacityPool] = []
        shortages: list[Shortage] = []
        for pool in pools:
            hardware = self._facts.hardware.get(pool.instance_type)
            key = quota_key(pool.instance_type, pool.market)
            shortage = (
                hardware
                if hardware is None
                else find_shortage(
                    hardware,
                    self._facts.quotas.get(key) if key else None,
                    account_plan=self._facts.account_plan,
                    least=self._least(pool.market),
                    instances=self._recipe.instances.maximum - self._present.count,
                )
            )
            if shortage is None:
                kept.append(pool)
            else:
                shortages.append(shortage)
                self._reasons.append(f"{pool.instance_type} {pool.market} is left out: {shortage.reason}")
        if not kept:
            raise QuotaError(
                "\n".join(dict.fromkeys(self._reasons)), least_remedy(shortages, self._recipe.region)
            )
        return tuple(kept)

    def _describe_deadline(self, deadline: Deadline) -> list[str]:
        recipe = self._recipe
        prices = [price for name in recipe.instances.types for price in self._prices(name, Market.ON_DEMAND)]
        hourly = min((price.hourly_usd for price in prices), default=None)
        one = (
            None if hourly is None else cost_of_seconds(hourly, self._machine.disk_gib, region=recipe.region)
        )
        return describe_deadline(deadline, hourly_usd=one, size=recipe.instances.maximum)

    def _least(self, market: Market) -> int:
        """Return how many more instances of a market there must be room for.

        With a base, one part of the instances is on-demand, the rest spot: either part must fit.
        """
        instances, present = self._recipe.instances, self._present
        if present.count >= instances.maximum:
            return 0
        base = instances.on_demand_base
        reserved = self._missing - self._paid
        if not base:
            return max(0 if reserved else 1, instances.minimum - present.count - reserved)
        if market is Market.ON_DEMAND:
            return max(0, base - present.on_demand - reserved)
        others = present.count - present.on_demand
        return max(0 if reserved else 1, instances.minimum - max(base, reserved) - others)

    def _life_minutes(self, ceiling: Decimal | None) -> int:
        """Return the minutes after which each new instance terminates, by the budget in hours and dollars.

        Args:
            ceiling: The most that an hour of one instance can cost; None if unknown.
        """
        budget, present, new = self._recipe.budget, self._present, self._missing
        self._refuse_short_idle_time()
        minutes = int(budget.max_hours * MINUTES_PER_HOUR)
        if budget.max_usd is not None and new:
            if (ceiling is None and self._paid) or present.committed_usd is None:
                raise BudgetError(
                    "budget.max_usd cannot be held: a price is unknown",
                    "give budget.max_hours instead, or other types",
                )
            hourly = self._usd(ceiling, SECONDS_PER_HOUR)
            left = max(Decimal(0), budget.max_usd - present.committed_usd)
            affordable = int(left / hourly * MINUTES_PER_HOUR)
            if affordable < minutes:
                minutes = affordable
                self._reasons.append(
                    f"instances terminate after {minutes} minutes: budget.max_usd is {budget.max_usd:f}"
                    + (f", {rounded(present.committed_usd, 2)} of it taken" if present.count else "")
                )
        shortest = SHORTEST_MINUTES[self._recipe.cloud]
        if minutes < shortest:
            raise BudgetError(
                f"the budget buys {minutes} minutes of {new} instance(s); at least {shortest} are needed",
                "raise budget.max_usd or budget.max_hours, or choose cheaper types",
            )
        return minutes

    def _refuse_short_idle_time(self) -> None:
        idle, shortest = self._recipe.budget.idle_minutes, SHORTEST_MINUTES[self._recipe.cloud]
        if idle is not None and idle < shortest:
            raise BudgetError(
                f"budget.idle_minutes is {idle}; at least {shortest} are needed, as downloads of "
                "the set-up hardly use the processor",
                f"set budget.idle_minutes to {shortest} or more",
            )

    def _worst_case(self, ceiling: Decimal | None, life_minutes: int) -> Decimal | None:
        """Return what the instances cost if nothing but their own timers ends them."""
        committed = self._present.committed_usd
        if committed is None or (ceiling is None and self._paid):
            return None
        return committed + self._usd(ceiling, life_minutes * 60)

    def _usd(self, ceiling: Decimal | None, seconds: float) -> Decimal:
        """Return what all new instances cost for some time; in reservations, their disks and addresses."""
        region = self._recipe.region
        reserved = cost_of_seconds(MARGINAL_USD, self._machine.disk_gib, seconds, region=region)
        paid = cost_of_seconds(ceiling or Decimal(0), self._machine.disk_gib, seconds, region=region)
        return reserved * (self._missing - self._paid) + paid * self._paid


def _highest_ceiling(pools: Sequence[CapacityPool]) -> Decimal | None:
    """Return the highest hourly price among the pools; None if any is unknown."""
    ceilings = [pool.ceiling_usd for pool in pools if pool.ceiling_usd is not None]
    return max(ceilings) if ceilings and len(ceilings) == len(pools) else None
