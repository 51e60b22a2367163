"""Which request comes next: market after market, all pools of one market in one request.

`launch.provision` asks for one `LaunchAttempt` after another until the plan's instances are there or more
requests would be in vain. An attempt is stored as the intent of its request before that is sent. After a
crash it is read again and repeated unchanged, so that its text, from which the token is made, must never
change for the same request.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from dlcloud.model.cluster import Member
from dlcloud.model.errors import QuotaError, StoreError
from dlcloud.model.instance import Image, Market
from dlcloud.planning.launch_request import PoolRefusal
from dlcloud.planning.plan import CapacityPool, Plan
from dlcloud.planning.reservations import ReservedCapacity
from dlcloud.planning.resize import coordinator

MOST_POOLS = 300  # Source: EC2 user guide, "EC2 Fleet quotas": launch template overrides a fleet
ANY_ZONE = ""
"""EC2 chooses: one zone for all instances of a request, where the plan asks for one."""
_MOST = 1_000_000
"""More than any count of a request."""
EVERY_ZONE = "*"
"""Each zone is named, and EC2 spreads the instances over them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAttempt:
    """One request for instances; stored as its intent, so that it can be repeated unchanged after a crash.

    Attributes:
        pools: (instance type, zone), in order of preference.
        attempt: The number of the request.
        max_hourly_usd: The most that an hour of spot may cost, by type.
        life_minutes: Minutes after which each instance terminates itself.
        single_zone: EC2 chooses one zone for all.
        reservation_id: The reservation that all are launched into; empty for none.
        in_block: It is a Capacity Block.
    """

    pools: tuple[tuple[str, str], ...]
    spot_count: int
    on_demand_count: int
    image: Image
    attempt: int
    max_hourly_usd: Mapping[str, Decimal] = field(default_factory=dict)
    life_minutes: int = 0
    single_zone: bool = False
    reservation_id: str = ""
    in_block: bool = False

    @property
    def count(self) -> int:
        return self.spot_count + self.on_demand_count

    @property
    def single(self) -> bool:
        """True if RunInstances suffices: one pool, one market."""
        return len(self.pools) == 1 and 0 in (self.spot_count, self.on_demand_count)

    @property
    def market(self) -> Market:
        """The market of a single request."""
        return Market.SPOT if self.spot_count else Market.ON_DEMAND

    def to_text(self) -> str:
        """Return the text of its intent; equal requests have equal texts."""
        image = [self.image.image_id, self.image.name, self.image.root_device]
        limits = {name: str(usd) for name, usd in sorted(self.max_hourly_usd.items())}
        values = [self.pools, self.spot_count, self.on_demand_count, image, self.attempt, limits]
        values.append(self.life_minutes)
        # Left out where they say nothing, so that stored texts keep their tokens.
        if self.single_zone or self.reservation_id:
            values.append(self.single_zone)
        if self.reservation_id:
            values += [self.reservation_id, self.in_block]
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "LaunchAttempt":
        """Return the request of a stored text.

        Raises:
            StoreError: It is the text of none.
        """
        try:
            return cls._read(json.loads(text))
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
            raise StoreError(
                f"a launch request in the store cannot be read: {text[:80]!r}",
                "dlcloud down ends the cluster; a new one starts afresh",
            ) from error

    @classmethod
    def _read(cls, values: Any) -> "LaunchAttempt":  # noqa: ANN401  any JSON value
        pools, spot, on_demand, image, attempt, limits, *rest = values
        image_id, name, root_device = map(str, image)
        request = cls(
            pools=tuple((str(name), str(zone)) for name, zone in pools),
            spot_count=int(spot),
            on_demand_count=int(on_demand),
            image=Image(image_id=image_id, name=name, root_device=root_device),
            attempt=int(attempt),
            max_hourly_usd={name: Decimal(usd) for name, usd in limits.items()},
            life_minutes=int(rest[0]) if rest else 0,  # absent in intents of older versions
            single_zone=bool(rest[1]) if rest[1:] else False,
            reservation_id=str(rest[2]) if rest[2:] else "",
            in_block=bool(rest[3]) if rest[3:] else False,
        )
        limits_are_numbers = all(usd.is_finite() for usd in request.max_hourly_usd.values())
        counts = (request.spot_count, request.on_demand_count, request.attempt, request.life_minutes)
        if not request.pools or not limits_are_numbers or min(counts) < 0 or max(counts) > _MOST:
            raise ValueError("no such request is made")
        return request


def next_attempt(
    plan: Plan, market: Market, *, missing: int, on_demand: int, attempt: int, zone: str = ANY_ZONE
) -> LaunchAttempt:
    """Return a request of one round: the missing instances, from all pools of a market.

    A single on-demand type without a zone is a request that EC2 itself places; EVERY_ZONE completes what one
    zone alone could give in part. Where all are to share a zone, spot instances choose it, as they are the
    scarcer ones: the on-demand base is left to the next request, which names that zone.

    Source: EC2 API reference, SpotOptionsRequest and OnDemandOptionsRequest: each has its own
    SingleAvailabilityZone, so that the two parts of one fleet may be in different zones.

    Args:
        plan: The pools and counts.
        market: That of the round; a spot round requests the plan's on-demand base, too.
        missing: Instances to request.
        on_demand: On-demand instances that run already.
        attempt: The number of the request.
        zone: Its zone, ANY_ZONE or EVERY_ZONE.
    """
    pools = _pools(plan, market)
    base = missing
    if market is Market.SPOT:
        base = min(missing, max(0, plan.on_demand_base - on_demand))
    spot = missing - base if pools[0].market is market else 0
    chooses = plan.one_zone and zone == ANY_ZONE
    alone = len(pools) == 1 and not spot and zone == ANY_ZONE
    return LaunchAttempt(
        pools=((pools[0].instance_type, pools[0].zone),) if alone else tuple(_zoned(pools, zone)),
        spot_count=spot,
        on_demand_count=0 if chooses and spot else base,
        image=plan.machine.image,
        attempt=attempt,
        max_hourly_usd=_limits(pools) if plan.holds_spot_price and spot else {},
        life_minutes=plan.life_minutes,
        single_zone=chooses and not alone,
    )


def reserved_attempt(plan: Plan, reserved: ReservedCapacity, *, missing: int, attempt: int) -> LaunchAttempt:
    """Return a request for what a plan takes of one reservation, as far as it is still missing."""
    reservation = reserved.reservation
    return LaunchAttempt(
        pools=((reservation.instance_type, reservation.zone),),
        spot_count=0,
        on_demand_count=min(reserved.count, missing),
        image=plan.machine.image,
        attempt=attempt,
        life_minutes=plan.life_minutes,
        reservation_id=reservation.reservation_id,
        in_block=reservation.is_block,
    )


def has_pools(plan: Plan, market: Market, *, on_demand: int) -> bool:
    """True if a round has something to request: quotas may leave no pool of its market, but the base's."""
    return _pools(plan, market)[0].market is market or plan.on_demand_base > on_demand


def home_zone(members: Sequence[Member]) -> str:
    """Return the zone that new instances join: the coordinator's, else that of most, else ANY_ZONE."""
    first = coordinator(members)
    zones = [first.instance.zone] if first is not None else [member.instance.zone for member in members]
    return max(sorted(set(zones)), key=zones.count, default=ANY_ZONE)


def first_zone(plan: Plan, market: Market, members: Sequence[Member]) -> str:
    """Return the zone of a round's first request."""
    home = home_zone(members) if plan.one_zone else ANY_ZONE
    is_offered = any(home in pool.zones for pool in _pools(plan, market))
    return home if home == ANY_ZONE or is_offered else EVERY_ZONE


def next_zone(
    zone: str, attempt: LaunchAttempt, refusals: Sequence[PoolRefusal], *, missing: int, home: str
) -> str | None:
    """Return the zone of the request after one that left instances missing; None if more would be in vain.

    For a cluster whose instances are to share a zone. Another zone has the same quota, and refuses what is
    denied or invalid alike.

    Args:
        zone: That of the request.
        attempt: The request.
        refusals: Its refusals.
        missing: Instances that were missing before it.
        home: The zone of the instances that there are now.
    """
    if zone == EVERY_ZONE:
        return None
    if zone == ANY_ZONE and attempt.count < missing:
        return home or EVERY_ZONE
    errors = [refusal.error for refusal in refusals]
    is_zonal = not any(error.is_final for error in errors)
    if errors and all(isinstance(error, QuotaError) for error in errors):
        is_zonal = False
    return EVERY_ZONE if home and is_zonal else None


def _pools(plan: Plan, market: Market) -> list[CapacityPool]:
    """Return the pools of a round: those of its market; where none is left, the on-demand base's."""
    return [pool for pool in plan.pools if pool.market is market] or list(plan.pools)


def _limits(pools: Sequence[CapacityPool]) -> dict[str, Decimal]:
    return {pool.instance_type: pool.ceiling_usd for pool in pools if pool.ceiling_usd is not None}


def _zoned(pools: Sequence[CapacityPool], only: str) -> list[tuple[str, str]]:
    """Name every zone of every pool, or one, so that refusals name the zone; none if they are too many."""
    zoned = [(pool.instance_type, zone) for pool in pools for zone in pool.zones or (pool.zone,)]
    if only not in {ANY_ZONE, EVERY_ZONE}:
        zoned = [(name, zone) for name, zone in zoned if zone == only]
    if len(zoned) > MOST_POOLS:
        zoned = [(pool.instance_type, pool.zone) for pool in pools]
    return list(dict.fromkeys(zoned))
