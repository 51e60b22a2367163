"""Spread a fleet over capacity pools, by strategy. Pure: plain values in, the launches and refusals out."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from dlcloud.local.capacity import Pool

_UNKNOWN_PRICE = Decimal(1_000_000)


class Strategy(StrEnum):
    """Allocation strategies of CreateFleet, in the spelling of its API."""

    LOWEST_PRICE = "lowest-price"
    PRICE_CAPACITY = "price-capacity-optimized"
    CAPACITY = "capacity-optimized"
    CAPACITY_PRIORITIZED = "capacity-optimized-prioritized"
    PRIORITIZED = "prioritized"
    DIVERSIFIED = "diversified"


class Same(StrEnum):
    """What all instances of a fleet must share."""

    NOTHING = "nothing"
    TYPE = "type"
    ZONE = "zone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A limit over several pools, by its name: `left` units, of which an instance takes `each`."""

    name: str
    left: float
    each: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A pool as an override names it: what it costs, counts for and can still give.

    `shared` are the limits that hold over this and other pools together.
    """

    pool: Pool
    left: int
    price: Decimal | None
    weight: float = 1.0
    priority: float = math.inf
    subnet_id: str | None = None
    config: int = 0
    override: int = 0
    shared: tuple[Shared, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """So many instances from one offer."""

    offer: Offer
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What a fleet gets, and the offers that could not give what was asked of them."""

    grants: tuple[Grant, ...]
    refused: tuple[Offer, ...]

    @property
    def fulfilled(self) -> float:
        """Return the capacity granted, in units of the target."""
        return sum(grant.offer.weight * grant.count for grant in self.grants)


def allocate(offers: Sequence[Offer], *, target: float, strategy: Strategy, same: Same) -> Allocation:
    """Choose launches that reach the target, or come as near as the pools allow.

    Args:
        offers: The pools that the request names, in its order.
        target: Capacity units wanted, at least 1.
        strategy: The order in which pools are asked.
        same: With TYPE or ZONE, the best group of pools that share it is used alone.
    """
    if same is Same.NOTHING:
        return _fill(offers, target, strategy)
    keys = {_key(offer, same): None for offer in sorted(offers, key=_order(strategy, target))}
    tries = [_fill([offer for offer in offers if _key(offer, same) == key], target, strategy) for key in keys]
    if not tries:
        return Allocation(grants=(), refused=())
    # The first group in the strategy's order among those that give most; max() keeps the first of equals.
    best = max(tries, key=lambda allocation: min(allocation.fulfilled, target))
    if best.fulfilled >= target:
        return best
    refused = tuple(offer for allocation in tries for offer in allocation.refused)
    return Allocation(grants=best.grants, refused=refused)


def _fill(offers: Sequence[Offer], target: float, strategy: Strategy) -> Allocation:
    ordered = sorted(offers, key=_order(strategy, target))
    counts = [0] * len(ordered)
    refused: dict[int, None] = {}
    missing = target
    rounds = 1 if strategy is Strategy.DIVERSIFIED else math.inf
    rooms = _Rooms(ordered)
    while missing > 0 and any(rooms.left(offer) > 0 for offer in ordered):
        before = missing
        for index, offer in enumerate(ordered):
            if missing <= 0:
                break
            wanted = min(math.ceil(missing / offer.weight), rounds)
            given = int(min(wanted, rooms.left(offer)))
            if given < wanted:
                refused[index] = None
            counts[index] += given
            rooms.take(offer, given)
            missing -= given * offer.weight
        if missing == before:
            break
    if missing > 0:
        refused |= {index: None for index, offer in enumerate(ordered) if rooms.left(offer) <= 0}
    grants = (Grant(offer=offer, count=count) for offer, count in zip(ordered, counts, strict=True) if count)
    return Allocation(grants=tuple(grants), refused=tuple(ordered[index] for index in sorted(refused)))


class _Rooms:
    """What pools, and the limits that they share, can still give."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        self._pools: dict[Pool, float] = {offer.pool: offer.left for offer in offers}
        self._shared = {shared.name: shared.left for offer in offers for shared in offer.shared}

    def left(self, offer: Offer) -> float:
        rooms = [self._shared[shared.name] // shared.each for shared in offer.shared]
        return min([self._pools[offer.pool], *rooms])

    def take(self, offer: Offer, count: int) -> None:
        self._pools[offer.pool] -= count
        for shared in offer.shared:
            self._shared[shared.name] -= count * shared.each


def _key(offer: Offer, same: Same) -> str:
    return offer.pool.instance_type if same is Same.TYPE else offer.pool.zone


def _order(strategy: Strategy, target: float) -> Callable[[Offer], tuple[float | Decimal, ...]]:
    """Return what offers are sorted by; Python's sort keeps the request's order among equals."""

    def price(offer: Offer) -> Decimal:
        return (_UNKNOWN_PRICE if offer.price is None else offer.price) / Decimal(str(offer.weight))

    def order(offer: Offer) -> tuple[float | Decimal, ...]:
        match strategy:
            case Strategy.PRIORITIZED:
                return (offer.priority,)
            case Strategy.CAPACITY_PRIORITIZED:
                return (-min(offer.left * offer.weight, target), offer.priority)
            case Strategy.CAPACITY:
                return (-offer.left, price(offer))
            case Strategy.PRICE_CAPACITY:
                return (offer.left * offer.weight < target, price(offer))
        return (price(offer),)

    return order
