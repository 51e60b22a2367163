"""The decision what to launch: a recipe and what was observed give a plan, with its price and its reasons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from dlcloud.core.cost import volume_usd
from dlcloud.core.errors import BudgetError, CapacityError
from dlcloud.core.instance import Image, InstanceType, Market, Price
from dlcloud.core.ports import Identity
from dlcloud.core.recipe import Recipe

MINUTES_PER_HOUR = 60
SHORTEST_LIFE_MINUTES = 5
"""A budget that buys less than this cannot even set an instance up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What preflight saw. `zones` and `hardware` are by instance type; an absent type is not offered."""

    identity: Identity
    cidr: str
    zones: Mapping[str, tuple[str, ...]]
    hardware: Mapping[str, InstanceType]
    image: Image
    prices: Sequence[Price]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Capacity that one request can draw from; `zone` empty: EC2 chooses among all that offer the type."""

    instance_type: str
    market: Market
    zone: str
    price: Price | None


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

    @property
    def rehearsal(self) -> bool:
        """Tell whether instance types are only rehearsed, on this machine."""
        return self.cloud == "local"


def make_plan(recipe: Recipe, observed: Observed) -> Plan:
    """Decide which pools to try in which order, for how long at most, and what that costs.

    Raises:
        CapacityError: None of the recipe's types can be had in the region.
        BudgetError: The budget does not buy enough time.
    """
    reasons: list[str] = []
    pools = _pools(recipe, observed, reasons)
    if not pools:
        raise CapacityError(
            "\n".join(reasons), "dlcloud schema explains instances.types; change the recipe's types"
        )
    dearest = _dearest(pools)
    hourly = None if dearest is None else dearest * recipe.instances.maximum
    life_minutes = _life_minutes(recipe, hourly, reasons)
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
        worst_case_usd=None if hourly is None else _worst_case(recipe, hourly, life_minutes),
        reasons=tuple(reasons),
        keep=recipe.keep.instances,
    )


def _pools(recipe: Recipe, observed: Observed, reasons: list[str]) -> tuple[Pool, ...]:
    """List the pools market by market, type by type; record why a type is left out."""
    prices = {(price.instance_type, price.market): price for price in observed.prices}
    offered = [name for name in recipe.instances.types if _is_offered(name, recipe, observed, reasons)]
    pools = []
    for market in recipe.instances.markets:
        for name in offered:
            price = prices.get((name, market))
            if price is None:
                reasons.append(
                    f"no price is known for {name} {market} in {recipe.region}: costs stay unknown"
                )
            zones = recipe.instances.zones or [""]
            wanted = [zone for zone in zones if not zone or zone in observed.zones[name]]
            pools += [Pool(instance_type=name, market=market, zone=zone, price=price) for zone in wanted]
    return tuple(pools)


def _is_offered(name: str, recipe: Recipe, observed: Observed, reasons: list[str]) -> bool:
    zones = observed.zones.get(name, ())
    hardware = observed.hardware.get(name)
    if not zones:
        why = "AWS has retired it" if hardware and hardware.retired else f"{recipe.region} does not offer it"
        reasons.append(f"{name} is left out: {why}")
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
    prices = [pool.price.hourly_usd if pool.price else None for pool in pools]
    known = [price for price in prices if price is not None]
    return max(known) if known and len(known) == len(prices) else None


def _life_minutes(recipe: Recipe, hourly_usd: Decimal | None, reasons: list[str]) -> int:
    """Return after how many minutes each instance ends itself, by the hours and the dollars of the budget."""
    budget = recipe.budget
    minutes = int(budget.max_hours * MINUTES_PER_HOUR)
    if budget.max_usd is not None:
        if hourly_usd is None:
            raise BudgetError(
                "budget.max_usd cannot be held: a price is unknown",
                "give budget.max_hours instead, or other types",
            )
        hourly = hourly_usd + volume_usd(recipe.instances.disk_gib, 3600) * recipe.instances.maximum
        affordable = int(budget.max_usd / hourly * MINUTES_PER_HOUR)
        if affordable < minutes:
            minutes = affordable
            reasons.append(
                f"instances end themselves after {minutes} minutes: budget.max_usd is {budget.max_usd:f}"
            )
    if minutes < SHORTEST_LIFE_MINUTES:
        raise BudgetError(
            f"the budget buys {minutes} minutes of {recipe.instances.maximum} instance(s); "
            f"at least {SHORTEST_LIFE_MINUTES} are needed",
            "raise budget.max_usd or budget.max_hours, or choose cheaper types",
        )
    return minutes


def _worst_case(recipe: Recipe, hourly_usd: Decimal, life_minutes: int) -> Decimal:
    """Return what the instances cost if nothing but their own timer ends them."""
    seconds = life_minutes * 60
    volumes = volume_usd(recipe.instances.disk_gib, seconds) * recipe.instances.maximum
    return hourly_usd * life_minutes / MINUTES_PER_HOUR + volumes
