"""What a plan is made of: the facts of preflight, the capacity that is there, and the pools to draw from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from dlcloud.model.account_plan import AccountPlan
from dlcloud.model.instance import Image, InstanceType, Market, Price
from dlcloud.planning.networks import FoundNetwork, Subnet
from dlcloud.planning.quota import CallerIdentity, Quota
from dlcloud.planning.reserved_capacity import CapacityReservation
from dlcloud.planning.successors import KnownType


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
    known_types: Sequence[KnownType] = ()
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
