"""What AWS bills beside an instance: its disk, its public address, its traffic between zones. In USD."""

import re
from decimal import Decimal

HOURS_PER_MONTH = 730
# Of blocks that were written. Source: EBS pricing, snapshots in the standard tier, us-east-1 [from memory].
SNAPSHOT_USD_PER_GIB_MONTH = Decimal("0.05")
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")

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

ADDRESS_USD_PER_HOUR = Decimal("0.005")
"""Source: VPC pricing, public IPv4 addresses, in every region since 2024-02-01; billed as the instance."""

ZONE_TRAFFIC_USD_PER_GB = Decimal("0.02")
"""Source: EC2 pricing, data transfer within a region: 0.01 USD per GB out of a zone and as much into one."""

FREE_FIRST_S = 3600
"""An instance that EC2 interrupts earlier costs nothing but its disk and address.

Source: EC2 user guide, "Billing for interrupted Spot Instances", for Linux other than SUSE; read 2026-11.
"""


def gp3_usd_per_month(region: str) -> Decimal:
    """Return the price of a GiB of gp3 for a month; the highest of all in an unknown region."""
    usd = _GP3_USD.get(region)
    return _HIGHEST_GP3_USD if usd is None else Decimal(usd)


def region_of(zone: str) -> str:
    """Return the region of an Availability Zone or Local Zone; empty for no zone."""
    match = _REGION.match(zone)
    return match[0] if match else ""


def describe_surcharges(region: str) -> str:
    """Return what an hour of an instance includes beside the instance, with the prices."""
    return (
        f"included: gp3 at {gp3_usd_per_month(region)} USD per GiB and month, "
        f"a public address at {ADDRESS_USD_PER_HOUR} USD/h"
    )
