"""What AWS bills, in USD: instances, public addresses, traffic between zones, with what `ebs_prices` states.

Money is Decimal, times are aware UTC, and every rate states its source.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal

from dlcloud.model.cluster import Cluster, Member
from dlcloud.model.ebs_prices import gp3_usd_per_month, volume_usd
from dlcloud.model.instance import Instance, Market, Price

_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
ADDRESS_USD_PER_HOUR = Decimal("0.005")
"""Source: VPC pricing, public IPv4 addresses, in every region since 2024-02-01; billed as the instance."""
REGION_TRAFFIC_USD_PER_GB = Decimal("0.02")
"""Out of most regions into another one; us-east-1 to us-east-2 is half of it, regions outside North America
and Europe cost up to 0.147. Source: S3 pricing, "Data transfer" (unverified)."""
ZONE_TRAFFIC_USD_PER_GB = Decimal("0.02")
"""Source: EC2 pricing, data transfer within a region: 0.01 USD per GB out of a zone and as much into one."""
FREE_FIRST_S = 3600
"""An instance that EC2 interrupts earlier costs nothing but its disk and address.

Source: EC2 user guide, "Billing for interrupted Spot Instances", for Linux other than SUSE; read 2026-11.
"""
MINIMUM_BILLED_S = 60  # Source: EC2 pricing, "per-second billing, with a minimum of 60 seconds" (Linux)
SECONDS_PER_HOUR = 3600
SHOWN_DIGITS = 3


def billed_seconds(launched_at: datetime, ended_at: datetime) -> int:
    """Return the seconds EC2 bills for one instance, rounded up, at least a minute."""
    elapsed = (ended_at - launched_at).total_seconds()
    return max(MINIMUM_BILLED_S, -int(-elapsed // 1))


def region_of(zone: str) -> str:
    """Return the region of an Availability Zone or Local Zone; empty for no zone."""
    match = _REGION.match(zone)
    return match[0] if match else ""


def describe_surcharges(region: str) -> str:
    """Return what an hour of an instance includes in addition to the instance, with the prices."""
    return (
        f"included: gp3 at {gp3_usd_per_month(region)} USD per GiB and month, "
        f"a public address at {ADDRESS_USD_PER_HOUR} USD/h"
    )


def instance_usd(hourly_usd: Decimal, seconds: float) -> Decimal:
    return hourly_usd * Decimal(seconds) / SECONDS_PER_HOUR


def address_usd(seconds: float) -> Decimal:
    """Return the cost of a public IPv4 address."""
    return instance_usd(ADDRESS_USD_PER_HOUR, seconds)


def cost_of_seconds(
    hourly_usd: Decimal, disk_gib: int, seconds: float = SECONDS_PER_HOUR, *, region: str
) -> Decimal:
    """Return the cost of an instance with its volume and its address, by default of one hour."""
    further = volume_usd(disk_gib, seconds, region=region) + address_usd(seconds)
    return instance_usd(hourly_usd, seconds) + further


def member_usd(member: Member, disk_gib: int, until: datetime) -> Decimal | None:
    """Return the cost of an instance, volume and address, until its end, or until `until` if it is up."""
    launched_at = member.instance.launched_at
    is_free = costs_nothing(member.interrupted, launched_at, member.ended_at)
    hourly_usd = Decimal(0) if is_free else member.hourly_usd
    if hourly_usd is None:
        return None
    seconds = billed_seconds(launched_at, member.ended_at or until)
    return cost_of_seconds(hourly_usd, disk_gib, seconds, region=region_of(member.instance.zone))


def costs_nothing(interrupted: bool, launched_at: datetime, ended_at: datetime | None) -> bool:  # noqa: FBT001
    """True for an instance that EC2 took back in its first hour; its volume and address are billed."""
    return interrupted and ended_at is not None and (ended_at - launched_at).total_seconds() < FREE_FIRST_S


def total_usd(amounts: Iterable[Decimal | None]) -> Decimal | None:
    """Return the sum; None if an amount is unknown."""
    total = Decimal(0)
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total


def hourly_price(amounts: Iterable[Decimal | None]) -> str:
    """Return the price of an hour of all in words: "for 0.12 USD/h", or "at an unknown price"."""
    usd = total_usd(amounts)
    return "at an unknown price" if usd is None else f"for {money(usd)} USD/h"


def cluster_usd(cluster: Cluster, members: Iterable[Member], now: datetime) -> Decimal | None:
    """Return the cost of a cluster's instances, volumes and addresses so far; None at an unknown price."""
    return total_usd(member_usd(member, cluster.disk_gib, now) for member in members)


def committed_usd(
    members: Iterable[Member], *, life_minutes: Mapping[str, int], longest_minutes: int, disk_gib: int
) -> Decimal | None:
    """Return the cost of instances if only their own timers end them; None at an unknown price.

    Args:
        members: The instances of a cluster, those that ended included.
        life_minutes: Minutes after which each instance ends itself, by instance id.
        longest_minutes: The same for instances that are not in `life_minutes`.
        disk_gib: Size of each volume.
    """
    amounts = []
    for member in members:
        minutes = life_minutes.get(member.instance.instance_id, longest_minutes)
        amounts.append(member_usd(member, disk_gib, member.instance.launched_at + timedelta(minutes=minutes)))
    return total_usd(amounts)


def price_of(instance: Instance, prices: Sequence[Price]) -> Price | None:
    """Return the price of an instance: that of its zone, else that of all zones."""
    of_pool = [
        price
        for price in prices
        if (price.instance_type, price.market) == (instance.instance_type, instance.market)
        and price.zone in {"", instance.zone}
    ]
    return max(of_pool, key=lambda price: bool(price.zone), default=None)


def money(usd: Decimal) -> str:
    """Format an amount with three significant digits; whole dollars are never rounded away."""
    if not usd:
        return "0"
    magnitude = Context(prec=SHOWN_DIGITS, rounding=ROUND_HALF_UP).plus(usd).adjusted()
    return f"{rounded(usd, max(0, SHOWN_DIGITS - 1 - magnitude)):f}"


def exact(hourly_usd: Decimal) -> str:
    """Format a price as its source states it, without trailing zeros."""
    return f"{hourly_usd.normalize():f}"


def millionths(usd: Decimal | None) -> Decimal | None:
    """Round an amount to a millionth of a dollar, as programs get it; an unknown one stays None."""
    return None if usd is None else rounded(usd, 6)


def rounded(usd: Decimal, digits: int = 4) -> Decimal:
    """Round an amount to `digits` decimals, halves up, as a bill does."""
    return usd.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketPrices:
    """The prices of one run's instance type in its zone, each with its date and source."""

    on_demand: Price | None = None
    spot: Price | None = None

    def price(self, market: Market) -> Price | None:
        return self.on_demand if market is Market.ON_DEMAND else self.spot

    def hourly_usd(self, market: Market) -> Decimal | None:
        price = self.price(market)
        return None if price is None else price.hourly_usd

    def times(self, nodes: int) -> "MarketPrices":
        """Return the prices of several such instances together."""
        if nodes == 1:
            return self
        prices = {"on_demand": self.on_demand, "spot": self.spot}
        return MarketPrices(
            **{name: p and replace(p, hourly_usd=p.hourly_usd * nodes) for name, p in prices.items()}
        )
