"""Prices of EBS: volumes and snapshots, by region, each with its source."""

from decimal import Decimal

_HOUR_S = 3600
HOURS_PER_MONTH = 730
# Of blocks that were written. Source: EBS pricing, snapshots in the standard tier, us-east-1 (unverified).
SNAPSHOT_USD_PER_GIB_MONTH = Decimal("0.05")
# Per GiB and month. Source: EBS pricing, gp3 storage (usage type EBS:VolumeUsage.gp3). Compared with other
# programs' copies of the price list in 2026-11: us-east-1, eu-central-1, eu-south-1; the others are recalled.
_GP3_USD = {
    "us-east-1": "0.08",
    "us-east-2": "0.08",
    "us-west-2": "0.08",
    "us-west-1": "0.096",
    "ca-central-1": "0.088",
    "ca-west-1": "0.088",
    "sa-east-1": "0.152",
    "eu-west-1": "0.088",
    "eu-west-2": "0.0928",
    "eu-west-3": "0.0928",
    "eu-central-1": "0.0952",
    "eu-central-2": "0.1047",
    "eu-north-1": "0.0836",
    "eu-south-1": "0.0924",
    "ap-northeast-1": "0.096",
    "ap-northeast-2": "0.0912",
    "ap-northeast-3": "0.096",
    "ap-southeast-1": "0.096",
    "ap-southeast-2": "0.096",
    "ap-south-1": "0.0912",
    "ap-east-1": "0.1056",
    "af-south-1": "0.1047",
    "me-south-1": "0.0968",
}
_HIGHEST_GP3_USD = max(map(Decimal, _GP3_USD.values()))


def gp3_usd_per_month(region: str) -> Decimal:
    """Return the price of a GiB of gp3 for a month; the highest of all in an unknown region."""
    usd = _GP3_USD.get(region)
    return _HIGHEST_GP3_USD if usd is None else Decimal(usd)


def volume_usd(size_gib: int, seconds: float = _HOUR_S, *, region: str) -> Decimal:
    """Return the cost of a gp3 volume, by default of one hour."""
    hours = Decimal(seconds) / _HOUR_S
    return gp3_usd_per_month(region) / HOURS_PER_MONTH * size_gib * hours


def snapshot_usd(size_gib: int) -> Decimal:
    """Return the most that an hour of a snapshot costs: that of a volume without an empty block."""
    return SNAPSHOT_USD_PER_GIB_MONTH / HOURS_PER_MONTH * size_gib
