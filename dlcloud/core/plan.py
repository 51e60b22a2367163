"""The decision what to launch: a recipe and what was observed give a plan, with its price and its reasons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from dlcloud.core.cost import cost_of_seconds, rounded
from dlcloud.core.errors import BudgetError, CapacityError, CloudError, QuotaError
from dlcloud.core.instance import Image, InstanceType, Market, Price
from dlcloud.core.protocols import Identity
from dlcloud.core.quota import Quota, quota_key
from dlcloud.core.recipe import Recipe
from dlcloud.core.successors import KnownType, describe, successors

MINUTES_PER_HOUR = 60
SHORTEST_LIFE_MINUTES = 5
"""A budget that buys less than this cannot even set an instance up."""


OPEN_DRIVER_FROM = 7.5
SPOT_HEADROOM = Decimal("1.2")
"""Under a budget in dollars, spot is given up where it costs so much more than it did at the launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightFacts:
    """What preflight saw. `zones` and `hardware` are by instance type; an absent type is not offered."""

    identity: Identity
    cidr: str
    zones: Mapping[str, tuple[str, ...]]
    hardware: Mapping[str, InstanceType]
    image: Image
    prices: Sequence[Price]
    known: Sequence[KnownType] = ()
    quotas: Mapping[tuple[str, Market], Quota] = field(default_factory=dict)
    subnet_zones: tuple[str, ...] | None = None
    """The zones that have a default subnet; None where that was not learned."""
    scores: Mapping[str, int] = field(default_factory=dict)
    """EC2's spot placement score, 1 to 10, by zone."""
    notes: tuple[str, ...] = ()
    """What could not be learned, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingCapacity:
    """What the cluster has already: living instances, and how many of them are on-demand.

    `committed_usd` is what its instances have cost and may yet cost, None where a price is not known.
    """

    count: int = 0
    on_demand: int = 0
    committed_usd: Decimal | None = Decimal(0)


NO_CAPACITY = ExistingCapacity()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Capacity that a request can draw from; `zone` empty: any of `zones`, or whichever offers the type.

    `price` is the lowest over the zones, `zone_prices` tell each zone's own where they differ (spot), and
    `ceiling_usd` is the most that an hour can cost; None where that is not known.
    """

    instance_type: str
    market: Market
    zone: str
    price: Price | None
    zones: tuple[str, ...] = ()
    zone_prices: tuple[Price, ...] = ()
    ceiling_usd: Decimal | None = None

    def price_in(self, zone: str) -> Price | None:
        """Return what an instance of this pool costs in a zone."""
        return next((price for price in self.zone_prices if price.zone == zone), self.price)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `up` does, in order; `--dry-run` prints just this."""

    name: str
    cloud: str
    region: str
    account: str
    pools: tuple[Pool, ...]
    min_count: int
    max_count: int
    image: Image
    disk_gib: int
    cidr: str
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

    @property
    def rehearsal(self) -> bool:
        """Tell whether instance types are only rehearsed, on this machine."""
        return self.cloud == "local"


def make_plan(recipe: Recipe, observed: PreflightFacts, present: ExistingCapacity = NO_CAPACITY) -> Plan:
    """Decide which pools to try in which order, for how long at most, and what that costs.

    Args:
        recipe: What is wanted, in all.
        observed: What preflight saw.
        present: What of it there is; quota and budget need only hold the rest.

    Raises:
        CapacityError: None of the recipe's types can be had in the region.
        BudgetError: The budget does not buy enough time.
    """
    reasons: list[str] = list(observed.notes)
    if observed.subnet_zones == ():
        raise CloudError(
            f"{recipe.region} has no default subnet to launch into",
            f"aws ec2 create-default-vpc --region {recipe.region}",
        )
    offered = _pools(recipe, observed, reasons)
    if not offered:
        raise CapacityError(
            "\n".join(reasons), "dlcloud schema explains instances.types; change the recipe's types"
        )
    _refuse_wrong_driver(recipe, observed, reasons)
    pools = _within_quota(offered, recipe, observed, present, reasons)
    if Market.SPOT in recipe.instances.markets and observed.scores:
        reasons.append(_scores(observed))
    dearest = _dearest(pools)
    hourly = None if dearest is None else dearest * recipe.instances.maximum
    new = max(0, recipe.instances.maximum - present.count)
    life_minutes = _life_minutes(recipe, dearest, new, present, reasons)
    return Plan(
        name=recipe.name,
        cloud=recipe.cloud,
        region=recipe.region,
        account=observed.identity.account,
        pools=pools,
        min_count=recipe.instances.minimum,
        max_count=recipe.instances.maximum,
        image=observed.image,
        disk_gib=recipe.instances.disk_gib,
        cidr=observed.cidr,
        workload=recipe.workload.benchmark or f"the command of {recipe.name}",
        life_minutes=life_minutes,
        hourly_usd=hourly,
        worst_case_usd=_worst_case(recipe, dearest, new, present, life_minutes),
        reasons=tuple(reasons),
        keep=recipe.keep.instances,
        rounds=recipe.instances.rounds,
        on_demand_base=recipe.instances.on_demand_base,
        idle_minutes=recipe.budget.idle_minutes,
        max_usd=recipe.budget.max_usd,
    )


def _pools(recipe: Recipe, observed: PreflightFacts, reasons: list[str]) -> tuple[Pool, ...]:
    """List the pools market by market, type by type; record why a type is left out."""
    offered = [name for name in recipe.instances.types if _is_offered(name, recipe, observed, reasons)]
    pools = []
    for market in recipe.instances.markets:
        for name in offered:
            known = [p for p in observed.prices if (p.instance_type, p.market) == (name, market)]
            if not known:
                reasons.append(
                    f"no price is known for {name} {market} in {recipe.region}: costs stay unknown"
                )
            zones = recipe.instances.zones or [""]
            wanted = [zone for zone in zones if not zone or zone in observed.zones[name]]
            pools += [_pool(name, market, zone, recipe, observed) for zone in wanted]
    return tuple(pools)


def _within_quota(
    pools: tuple[Pool, ...],
    recipe: Recipe,
    observed: PreflightFacts,
    present: ExistingCapacity,
    reasons: list[str],
) -> tuple[Pool, ...]:
    """Leave out what the account's limits forbid; it would only be refused.

    Raises:
        QuotaError: Nothing is left; the message tells the limits, the hint how to ask for more.
    """
    hint = ""
    kept: list[Pool] = []
    for pool in pools:
        key = quota_key(pool.instance_type, pool.market)
        hardware, quota = observed.hardware.get(pool.instance_type), observed.quotas.get(key) if key else None
        # A base is a part of the instances in one market, the rest in the other: either part must fit.
        count = _least(pool.market, recipe, present)
        if hardware is None or quota is None or hardware.vcpus * count <= quota.left:
            kept.append(pool)
            continue
        new = recipe.instances.maximum - present.count
        hint = hint or quota.increase(hardware.vcpus * new, recipe.region)
        need = f"{count} of {hardware.vcpus} vCPUs are needed"
        reasons.append(f"{pool.instance_type} {pool.market} is left out: {need}; {quota.told()}")
    if not kept:
        raise QuotaError("\n".join(dict.fromkeys(reasons)), hint)
    return tuple(kept)


def _least(market: Market, recipe: Recipe, present: ExistingCapacity) -> int:
    """Return how many more instances of a market there must be room for."""
    wanted = recipe.instances
    if present.count >= wanted.maximum:
        return 0
    base = wanted.on_demand_base
    if not base:
        return max(1, wanted.minimum - present.count)
    if market is Market.ON_DEMAND:
        return max(0, base - present.on_demand)
    return max(1, wanted.minimum - base - (present.count - present.on_demand))


def _refuse_wrong_driver(recipe: Recipe, observed: PreflightFacts, reasons: list[str]) -> None:
    """Refuse an image whose driver cannot drive the GPU; a rehearsal has no driver, and only notes it.

    Source: NVIDIA open GPU kernel modules, README: Turing (compute capability 7.5) and later.
    """
    if "oss" not in observed.image.name.lower().replace("/", "-").replace(" ", "-").split("-"):
        return
    old = [
        name
        for name in recipe.instances.types
        if (hardware := observed.hardware.get(name)) and observed.zones.get(name) and hardware.gpu
        if _number(hardware.gpu.compute_capability) < OPEN_DRIVER_FROM
    ]
    if old:
        told = (
            f"image {observed.image.image_id} has NVIDIA's open driver, which {', '.join(old)} is too old for"
        )
        if recipe.cloud != "local":
            raise CloudError(told, "name an image with the proprietary driver in instances.image")
        reasons.append(told)


def _number(text: str) -> float:
    """Read a compute capability; another maker's GPU has none, and no NVIDIA driver."""
    return float(text) if text.replace(".", "", 1).isdigit() else OPEN_DRIVER_FROM


def _scores(observed: PreflightFacts) -> str:
    told = ", ".join(f"{zone} {score}" for zone, score in sorted(observed.scores.items()))
    return f"spot placement score (10 is best): {told}"


def _pool(name: str, market: Market, zone: str, recipe: Recipe, observed: PreflightFacts) -> Pool:
    known = [price for price in observed.prices if (price.instance_type, price.market) == (name, market)]
    here = [price for price in known if zone in {"", price.zone} or not price.zone]
    return Pool(
        instance_type=name,
        market=market,
        zone=zone,
        price=min(here, key=lambda price: price.hourly_usd, default=None),
        zones=(zone,) if zone else _usable(observed.zones[name], observed.subnet_zones),
        zone_prices=tuple(price for price in here if price.zone),
        ceiling_usd=_ceiling(name, market, here, recipe, observed),
    )


def _usable(zones: tuple[str, ...], subnet_zones: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the zones that have a default subnet; all where that is not known, or none has."""
    both = tuple(zone for zone in zones if subnet_zones is None or zone in subnet_zones)
    return both or zones


def _ceiling(
    name: str, market: Market, prices: Sequence[Price], recipe: Recipe, observed: PreflightFacts
) -> Decimal | None:
    """Return the most that an hour can cost. A spot price moves, but never above what the request allows.

    Source: EC2 user guide, "Spot Instances": the maximum price defaults to the on-demand price.
    """
    dearest = max((price.hourly_usd for price in prices), default=None)
    if market is Market.ON_DEMAND or dearest is None:
        return dearest
    on_demand = [
        price.hourly_usd
        for price in observed.prices
        if (price.instance_type, price.market) == (name, Market.ON_DEMAND)
    ]
    limit = dearest * SPOT_HEADROOM if recipe.budget.max_usd is not None else None
    return min([*on_demand, *([limit] if limit is not None else [])], default=dearest)


def _is_offered(name: str, recipe: Recipe, observed: PreflightFacts, reasons: list[str]) -> bool:
    zones = observed.zones.get(name, ())
    hardware = observed.hardware.get(name)
    if not zones:
        why = "AWS has retired it" if hardware and hardware.retired else f"{recipe.region} does not offer it"
        near = successors(name, observed.known)
        told = f"; nearest: {', '.join(describe(each) for each in near)}" if near else ""
        reasons.append(f"{name} is left out: {why}{told}")
        return False
    wanted = set(recipe.instances.zones)
    if wanted and not wanted & set(zones):
        reasons.append(
            f"{name} is left out: none of {', '.join(sorted(wanted))} offers it ({', '.join(zones)} do)"
        )
        return False
    return True


def _dearest(pools: Sequence[Pool]) -> Decimal | None:
    """Return the highest hourly price among the pools; None if any is unknown."""
    prices = [pool.ceiling_usd for pool in pools]
    known = [price for price in prices if price is not None]
    return max(known) if known and len(known) == len(prices) else None


def _life_minutes(
    recipe: Recipe, dearest: Decimal | None, new: int, present: ExistingCapacity, reasons: list[str]
) -> int:
    """Return after how many minutes each new instance ends itself, by the hours and dollars of the budget.

    Args:
        recipe: With the budget.
        dearest: What an hour of one instance can cost; None where that is not known.
        new: How many instances are to come.
        present: What those that there are have used up of the budget.
        reasons: Is told if the dollars end first.
    """
    budget = recipe.budget
    minutes = int(budget.max_hours * MINUTES_PER_HOUR)
    if budget.max_usd is not None and new:
        if dearest is None or present.committed_usd is None:
            raise BudgetError(
                "budget.max_usd cannot be held: a price is unknown",
                "give budget.max_hours instead, or other types",
            )
        hourly = cost_of_seconds(dearest, recipe.instances.disk_gib) * new
        left = max(Decimal(0), budget.max_usd - present.committed_usd)
        affordable = int(left / hourly * MINUTES_PER_HOUR)
        if affordable < minutes:
            minutes = affordable
            reasons.append(
                f"instances end themselves after {minutes} minutes: budget.max_usd is {budget.max_usd:f}"
                + (f", {rounded(present.committed_usd, 2)} of it taken" if present.count else "")
            )
    if minutes < SHORTEST_LIFE_MINUTES:
        raise BudgetError(
            f"the budget buys {minutes} minutes of {new} instance(s); "
            f"at least {SHORTEST_LIFE_MINUTES} are needed",
            "raise budget.max_usd or budget.max_hours, or choose cheaper types",
        )
    return minutes


def _worst_case(
    recipe: Recipe, dearest: Decimal | None, new: int, present: ExistingCapacity, life_minutes: int
) -> Decimal | None:
    """Return what the instances cost if nothing but their own timers ends them."""
    if present.committed_usd is None or dearest is None:
        return None
    return present.committed_usd + new * cost_of_seconds(
        dearest, recipe.instances.disk_gib, life_minutes * 60
    )
