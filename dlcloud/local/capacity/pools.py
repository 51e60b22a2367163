"""What capacity pools and vCPU quotas still allow, and how a fleet's target is spread over pools."""

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

from dlcloud.model.instance import Market
from dlcloud.model.money import region_of
from dlcloud.planning.quotas import CODES, quota_key

NOT_ELIGIBLE = (
    "The specified instance type is not eligible for Free Tier. For a list of Free Tier instance types, "
    "run 'describe-instance-types' with the filter 'free-tier-eligible=true'."
)
"""EC2's message. Source: LinkedInLearning/learning-terraform-3087701, issue 345."""


@dataclass(slots=True)
class LocalAccountPlan:
    """The plan of the account; changed by a control page."""

    is_free: bool = False

    def state(self, account: str) -> dict[str, Any]:
        """Return the answer of GetAccountPlanState. Source: botocore's model of freetier."""
        plan = "FREE" if self.is_free else "PAID"
        return {"accountId": account, "accountPlanType": plan, "accountPlanStatus": "ACTIVE"}


UNLIMITED = 1_000_000
DEFAULT_VCPUS = 100_000
OVER_QUOTA = {Market.ON_DEMAND: "VcpuLimitExceeded", Market.SPOT: "MaxSpotInstanceCountExceeded"}
"""EC2's error codes for a launch beyond a quota."""
_UNKNOWN_PRICE = Decimal(1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A capacity pool: an instance type in an Availability Zone."""

    instance_type: str
    zone: str


def is_in(zone: str, place: str | None) -> bool:
    """True if a zone is a place or in it: a zone or a region; None is everywhere."""
    return place in {None, zone, region_of(zone)}


class Capacity:
    """Limits of how many instances of a type live at the same time: anywhere, in a region, or in a zone.

    Args:
        occupied: Returns one pool per living instance.
    """

    def __init__(self, occupied: Callable[[], Iterable[Pool]]) -> None:
        self._occupied = occupied
        self._lock = threading.Lock()
        self._limits: dict[tuple[str, str | None], int] = {}

    def set_limit(self, instance_type: str, place: str | None, count: int | None) -> None:
        """Set the limit of a type, in one zone, in a region or everywhere; None removes it."""
        with self._lock:
            if count is None:
                self._limits.pop((instance_type, place), None)
            else:
                self._limits[instance_type, place] = count

    def remove_limits(self, instance_type: str, place: str | None) -> None:
        """Remove the limits of a type in a place: of a zone, of a region and its zones, or all."""
        with self._lock:
            for name, at in [*self._limits]:
                if name == instance_type and (place is None or (at is not None and is_in(at, place))):
                    del self._limits[name, at]

    def left(self, instance_type: str, place: str | None = None) -> int:
        """Return how many more instances of a type fit in a zone, in a region, or in all.

        UNLIMITED without a limit.
        """
        places = {None, place, region_of(place or "") or None}
        with self._lock:
            limits = {at: self._limits[key] for at in places if (key := (instance_type, at)) in self._limits}
        if not limits:
            return UNLIMITED
        zones = [pool.zone for pool in self._occupied() if pool.instance_type == instance_type]
        left = [count - sum(is_in(zone, at) for zone in zones) for at, count in limits.items()]
        return max(0, min(left))

    def report(self) -> list[dict[str, object]]:
        """Return the limits as plain values, for the status page."""
        with self._lock:
            limits = sorted(self._limits.items(), key=lambda item: (item[0][0], item[0][1] or ""))
        return [{"instance_type": name, "zone": zone, "count": count} for (name, zone), count in limits]


class VcpuQuotas:
    """The account's vCPU quotas by family and market, the same in each region, where they are counted.

    Args:
        running: Returns the type, the market and the zone of each running or pending instance.
        vcpus: The vCPUs of each instance type.
    """

    def __init__(
        self, *, running: Callable[[], Iterable[tuple[str, Market, str]]], vcpus: Mapping[str, int]
    ) -> None:
        self._running = running
        self._vcpus = vcpus
        self._lock = threading.Lock()
        self._limits = dict.fromkeys(CODES.values(), DEFAULT_VCPUS)
        self.account_plan = LocalAccountPlan()

    def set_limit(self, instance_type: str, market: Market, vcpus: int | None) -> None:
        """Set the quota that a type counts against; None restores the default.

        Raises:
            LookupError: The type counts against no known quota.
        """
        code = self.code(instance_type, market)
        if code is None:
            raise LookupError(f"the vCPU quota of {instance_type} {market}")
        with self._lock:
            self._limits[code] = DEFAULT_VCPUS if vcpus is None else vcpus

    def limits(self) -> dict[str, int]:
        """Return every quota in vCPUs by its code."""
        with self._lock:
            return dict(self._limits)

    def code(self, instance_type: str, market: Market) -> str | None:
        """Return the code of the quota that a type counts against; None if it counts against none."""
        key = quota_key(instance_type, market)
        return None if key is None or instance_type not in self._vcpus else CODES[key]

    def instances_left(self, instance_type: str, market: Market, region: str) -> int:
        """Return how many more instances of a type the quota allows in a region."""
        code = self.code(instance_type, market)
        return UNLIMITED if code is None else self.vcpus_left(code, region) // self._vcpus[instance_type]

    def vcpus_left(self, code: str, region: str) -> int:
        """Return how many vCPUs a quota still allows in a region."""
        used = sum(
            self._vcpus[name]
            for name, market, zone in self._running()
            if self.code(name, market) == code and is_in(zone, region)
        )
        return max(0, self.limits()[code] - used)

    def vcpus(self, instance_type: str) -> int:
        """Return the vCPUs of a type; 0 for an unknown one."""
        return self._vcpus.get(instance_type, 0)


class Strategy(StrEnum):
    """Allocation strategies of CreateFleet: its default, and those that dlcloud asks for."""

    LOWEST_PRICE = "lowest-price"
    PRICE_CAPACITY = "price-capacity-optimized"
    PRIORITIZED = "prioritized"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLimit:
    """A limit over several pools, by its name: `left` units, of which an instance takes `per_instance`."""

    name: str
    left: int
    per_instance: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A pool as an override of a fleet request names it.

    `left` instances fit into the pool; `shared` limits hold over this and other pools together.
    `config` and `override` are indexes into the request.
    """

    pool: Pool
    left: int
    price: Decimal | None
    priority: float = math.inf
    subnet_id: str | None = None
    config: int = 0
    override: int = 0
    shared: tuple[SharedLimit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A number of instances from one offer."""

    offer: Offer
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The instances granted to a fleet, and the offers that refused some."""

    grants: tuple[Grant, ...]
    refused: tuple[Offer, ...]

    @property
    def fulfilled(self) -> int:
        """Return the number of instances granted."""
        return sum(grant.count for grant in self.grants)


def allocate(
    offers: Sequence[Offer],
    *,
    target: int,
    strategy: Strategy,
    one_zone: bool = False,
) -> Allocation:
    """Choose launches that reach the target, or come as near as the pools allow.

    Args:
        offers: The pools that the request names, in its order.
        target: Instances requested, at least 1.
        strategy: The order in which pools are asked.
        one_zone: Pools of one zone only are used: the first, in the strategy's order, that gives most.
    """
    ordered = sorted(offers, key=_sort_key(strategy, target))
    groups: dict[str, list[Offer]] = {}
    for offer in ordered:
        groups.setdefault(offer.pool.zone if one_zone else "", []).append(offer)
    attempts = [_fill(group, target) for group in groups.values()]
    if not attempts:
        return Allocation(grants=(), refused=())
    best = max(attempts, key=lambda allocation: allocation.fulfilled)
    if best.fulfilled >= target:
        return best
    refused = tuple(offer for allocation in attempts for offer in allocation.refused)
    return Allocation(grants=best.grants, refused=refused)


def _fill(offers: Sequence[Offer], target: int) -> Allocation:
    """Take from the offers in their order; pools and shared limits shrink as they give."""
    pools = {offer.pool: offer.left for offer in offers}
    limits = {limit.name: limit.left for offer in offers for limit in offer.shared}
    grants, refused = [], []
    missing = target
    for offer in offers:
        if missing <= 0:
            break
        rooms = [limits[limit.name] // limit.per_instance for limit in offer.shared if limit.per_instance]
        count = max(0, min(missing, pools[offer.pool], *rooms))
        if count < missing:
            refused.append(offer)
        if count:
            grants.append(Grant(offer=offer, count=count))
        pools[offer.pool] -= count
        for limit in offer.shared:
            limits[limit.name] -= count * limit.per_instance
        missing -= count
    return Allocation(grants=tuple(grants), refused=tuple(refused))


def _sort_key(strategy: Strategy, target: int) -> Callable[[Offer], tuple[float | Decimal, ...]]:
    """Return the key that orders offers; Python's sort keeps the request's order among equals."""

    def key(offer: Offer) -> tuple[float | Decimal, ...]:
        price = _UNKNOWN_PRICE if offer.price is None else offer.price
        if strategy is Strategy.PRIORITIZED:
            return (offer.priority,)
        return (strategy is Strategy.PRICE_CAPACITY and offer.left < target, price)

    return key
