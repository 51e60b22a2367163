"""The launch requests of a plan: market after market, all pools of one market at once."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from dlcloud.core.instance import Image, Market
from dlcloud.core.plan import Plan, Pool

MOST_POOLS = 300  # Source: EC2 user guide, "EC2 Fleet quotas": launch template overrides a fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAttempt:
    """One request for instances; stored as its intent, so that it can be repeated unchanged after a crash.

    Attributes:
        pools: (instance type, zone), in order of preference.
        attempt: The number of the request.
        max_usd: The most that an hour of spot may cost, by type.
        life_minutes: Minutes after which each instance ends itself.
    """

    pools: tuple[tuple[str, str], ...]
    spot_count: int
    on_demand_count: int
    image: Image
    attempt: int
    max_usd: Mapping[str, Decimal] = field(default_factory=dict)
    life_minutes: int = 0

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
        limits = {name: str(usd) for name, usd in sorted(self.max_usd.items())}
        values = [self.pools, self.spot_count, self.on_demand_count, image, self.attempt, limits]
        values.append(self.life_minutes)
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "LaunchAttempt":
        pools, spot, on_demand, image, attempt, limits, *life = json.loads(text)
        return cls(
            pools=tuple((str(name), str(zone)) for name, zone in pools),
            spot_count=int(spot),
            on_demand_count=int(on_demand),
            image=Image(image_id=image[0], name=image[1], root_device=image[2]),
            attempt=int(attempt),
            max_usd={name: Decimal(usd) for name, usd in limits.items()},
            life_minutes=int(life[0]) if life else 0,  # absent in intents of older versions
        )


def next_attempt(
    plan: Plan, market: Market, *, missing: int, on_demand: int, attempt: int, spread: bool = False
) -> LaunchAttempt:
    """Return the request of one round: the missing instances, from all pools of a market.

    A single on-demand type without a zone is a request that EC2 itself spreads over its zones; `spread` names
    them one by one, which completes what one zone alone could give in part.

    Args:
        plan: The pools and counts.
        market: That of the round; a spot round requests the plan's on-demand base, too.
        missing: Instances to request.
        on_demand: On-demand instances that run already.
        attempt: The number of the request.
        spread: Name every zone.
    """
    pools = [pool for pool in plan.pools if pool.market is market]
    base = missing
    if market is Market.SPOT:
        base = min(missing, max(0, plan.on_demand_base - on_demand))
    alone = len(pools) == 1 and base == missing and not spread
    return LaunchAttempt(
        pools=((pools[0].instance_type, pools[0].zone),) if alone else tuple(_zoned(pools)),
        spot_count=missing - base,
        on_demand_count=base,
        image=plan.image,
        attempt=attempt,
        max_usd=_limits(pools) if plan.max_usd is not None and base < missing else {},
        life_minutes=plan.life_minutes,
    )


def _limits(pools: Sequence[Pool]) -> dict[str, Decimal]:
    return {pool.instance_type: pool.ceiling_usd for pool in pools if pool.ceiling_usd is not None}


def _zoned(pools: Sequence[Pool]) -> list[tuple[str, str]]:
    """Name every zone of every pool, so that refusals name the zone; none if they are too many."""
    zoned = [(pool.instance_type, zone) for pool in pools for zone in pool.zones or (pool.zone,)]
    if len(zoned) > MOST_POOLS:
        zoned = [(pool.instance_type, pool.zone) for pool in pools]
    return list(dict.fromkeys(zoned))
