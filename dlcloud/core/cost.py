"""What running costs, in USD: money is Decimal, times are aware UTC."""

from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal

MINIMUM_BILLED_S = 60  # Source: EC2 pricing, "per-second billing, with a minimum of 60 seconds" (Linux)
SECONDS_PER_HOUR = 3600
MILLION = 1_000_000

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


def usd_per_million(hourly_usd: Decimal, per_second: float) -> Decimal | None:
    """Return the cost of a million items at a throughput of `per_second` items; None at no throughput."""
    if per_second <= 0:
        return None
    return hourly_usd * MILLION / (SECONDS_PER_HOUR * Decimal(repr(per_second)))


def rounded(usd: Decimal, digits: int = 4) -> Decimal:
    """Round an amount to `digits` decimals, halves up, as a bill does."""
    return usd.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP)
