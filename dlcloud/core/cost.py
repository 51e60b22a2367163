"""What running costs, in USD: money is Decimal, times are aware UTC."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal

from dlcloud.core.cluster import Member
from dlcloud.core.instance import Instance, Price

MINIMUM_BILLED_S = 60  # Source: EC2 pricing, "per-second billing, with a minimum of 60 seconds" (Linux)
SECONDS_PER_HOUR = 3600
MILLION = 1_000_000
SHOWN_DIGITS = 3

# Source: EBS pricing, gp3 in us-east-1, 0.08 USD per GiB and month of 730 hours, read 2026-07.
EBS_GP3_USD_PER_GIB_HOUR = Decimal("0.08") / 730


def billed_seconds(launched_at: datetime, ended_at: datetime) -> int:
    """Return the seconds EC2 bills for one instance, rounded up, at least a minute."""
    elapsed = (ended_at - launched_at).total_seconds()
    return max(MINIMUM_BILLED_S, -int(-elapsed // 1))


def instance_usd(hourly_usd: Decimal, seconds: float) -> Decimal:
    """Return what `seconds` of an instance cost."""
    return hourly_usd * Decimal(seconds) / SECONDS_PER_HOUR


def volume_usd(size_gib: int, seconds: float) -> Decimal:
    """Return what a gp3 volume of `size_gib` costs over `seconds`."""
    return EBS_GP3_USD_PER_GIB_HOUR * size_gib * Decimal(seconds) / SECONDS_PER_HOUR


def committed_usd(
    members: Sequence[Member], *, life_minutes: Mapping[str, int], longest_minutes: int, disk_gib: int
) -> Decimal | None:
    """Return what instances have cost and may yet cost if nothing but their own timers ends them.

    Args:
        members: The instances of a cluster, those that ended included.
        life_minutes: After how many minutes each ends itself, by instance id.
        longest_minutes: The same for instances of which it is not known.
        disk_gib: The size of each one's volume.

    Returns:
        The sum; None where a price is not known.
    """
    total = Decimal(0)
    for member in members:
        if member.hourly_usd is None:
            return None
        instance = member.instance
        lives = timedelta(minutes=life_minutes.get(instance.instance_id, longest_minutes))
        ends_at = member.ended_at or instance.launched_at + lives
        seconds = billed_seconds(instance.launched_at, ends_at)
        total += instance_usd(member.hourly_usd, seconds) + volume_usd(disk_gib, seconds)
    return total


def price_of(instance: Instance, prices: Sequence[Price]) -> Price | None:
    """Return what an instance costs by a list of prices: its zone's own price, or that of all zones."""
    of_pool = [
        price
        for price in prices
        if (price.instance_type, price.market) == (instance.instance_type, instance.market)
        and price.zone in {"", instance.zone}
    ]
    return max(of_pool, key=lambda price: bool(price.zone), default=None)


def usd_per_million(hourly_usd: Decimal, per_second: float) -> Decimal | None:
    """Return the cost of a million items at a throughput of `per_second` items; None at no throughput."""
    if per_second <= 0:
        return None
    return hourly_usd * MILLION / (SECONDS_PER_HOUR * Decimal(repr(per_second)))


def money(usd: Decimal) -> str:
    """Return an amount with three significant digits; whole dollars are never rounded away."""
    if not usd:
        return "0"
    magnitude = Context(prec=SHOWN_DIGITS, rounding=ROUND_HALF_UP).plus(usd).adjusted()
    return f"{rounded(usd, max(0, SHOWN_DIGITS - 1 - magnitude)):f}"


def rounded(usd: Decimal, digits: int = 4) -> Decimal:
    """Round an amount to `digits` decimals, halves up, as a bill does."""
    return usd.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP)
