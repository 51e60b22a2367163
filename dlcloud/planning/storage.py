"""Data and checkpoints in S3: how copies are named, whether they fit on a disk, what their traffic costs."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from dlcloud.model.errors import CloudError
from dlcloud.model.instance import InstanceType
from dlcloud.model.money import REGION_TRAFFIC_USD_PER_GB, SECONDS_PER_HOUR
from dlcloud.recipe.data import DataSet

if TYPE_CHECKING:  # pydantic, which most commands never need
    from dlcloud.planning.plan import Plan
    from dlcloud.recipe.recipe import Recipe

DIGITS = 16
RESULTS = "dlcloud"
"""Results lie below this folder of the recipe's `results`, which the IAM policy names."""
GB = 10**9
GIB = 2**30
SPARE_GIB = 20
"""For environments and what a workload writes."""
DEAR_TRAFFIC_USD_PER_GB = Decimal("0.147")
_USUAL_TRAFFIC = ("us-", "ca-", "eu-")


def reads_buckets(recipe: "Recipe") -> bool:
    """True if the instances of a recipe need access to S3."""
    return recipe.checkpoints is not None or any(item.is_remote for item in recipe.data)


def copy_key(source: str, place: str = "") -> str:
    """Return the digest that names the copy of a source on an instance.

    `place` is the folder of the recipe, where the source is relative to it.
    """
    return hashlib.sha256(f"{place}\0{source}".encode()).hexdigest()[:DIGITS]


def run_name(recipe: "Recipe", cluster_id: str) -> str:
    """Return the name by which the workers of a training recognise each other.

    With checkpoints in S3 it is that of their place, so that another cluster continues with the same run.
    """
    place = recipe.replicated or recipe.checkpoints
    return cluster_id if place is None else f"s3-{copy_key(place)}"


def results_uri(recipe: "Recipe", cluster_id: str) -> str:
    """Return the prefix below which everything of a cluster lies in the bucket of its results."""
    return f"{recipe.results}/{RESULTS}/{cluster_id}"


def traffic_usd(data: DataSet, region: str, instances: int) -> Decimal:
    """Return what it costs about to read data from its bucket, once per instance."""
    if data.region == region:
        return Decimal(0)
    return Decimal(data.size) / GB * _usd_per_gb(data.region) * instances


def describe_data(sets: Sequence[DataSet], region: str, instances: int) -> list[str]:
    """Return what the plan says of data in buckets: how much, from where, and what its traffic costs."""
    return [_describe(data, region, instances) for data in sets]


def describe_moved(newest: DataSet, recipe: "Recipe") -> tuple[str, Decimal]:
    """Return what a plan says of checkpoints in a bucket of another Region, and what their traffic costs.

    Args:
        newest: The newest checkpoint; of size 0 if there is none.
        recipe: A training reads it once, a command on each instance. A training stores one of that size each
            `checkpoint_seconds`; of a command's, the price of an hour is stated and not added.
    """
    elastic = recipe.workload.elastic
    read_usd, store_usd = _usd_per_gb(newest.region), _usd_per_gb(recipe.region)
    text = f"checkpoints: the bucket is in {newest.region}: {read_usd} USD per GB read, {store_usd} stored"
    if not newest.size:
        hourly = "" if elastic is not None else f": {describe_hourly(store_usd)}"
        return f"{text}{hourly}, not in the total; there is none yet, so that its size is not known", Decimal(
            0
        )
    gb = Decimal(newest.size) / GB
    read, one = gb * read_usd * (1 if elastic is not None else recipe.instances.maximum), gb * store_usd
    if elastic is None:
        hourly = describe_hourly(store_usd, newest.size)
        return f"{text}; {read:.2f} USD to read the newest; {hourly} stored, not in the total", read
    stored = one * Decimal(recipe.budget.max_hours * SECONDS_PER_HOUR / elastic.checkpoint_seconds)
    return f"{text}; {read:.2f} USD to read the newest, {stored:.2f} to store others at most", read + stored


def describe_replicas(size: int, recipe: "Recipe") -> tuple[str, Decimal]:
    """Return what a plan says of checkpoints that S3 copies to the next Region, and what their traffic costs.

    Args:
        size: Of the newest checkpoint; 0 if there is none.
        recipe: Of a training, a copy each `checkpoint_seconds` is counted; of a command the price of an hour
            is stated and not added.
    """
    usd_per_gb, elastic = _usd_per_gb(recipe.region), recipe.workload.elastic
    text = "checkpoints: S3 copies each one to the next Region of the plan"
    text += f", traffic {usd_per_gb} USD per GB"
    if not size or elastic is None:
        return f"{text}: {describe_hourly(usd_per_gb, size or GB)}, not in the total", Decimal(0)
    one = Decimal(size) / GB * usd_per_gb
    usd = one * Decimal(recipe.budget.max_hours * SECONDS_PER_HOUR / elastic.checkpoint_seconds)
    hourly = one * SECONDS_PER_HOUR / Decimal(elastic.checkpoint_seconds)
    return f"{text}: {hourly:.2f} USD per hour, {usd:.2f} at most", usd


def describe_hourly(usd_per_gb: Decimal, size: int = GB) -> str:
    """Return what checkpoints of a size cost by the hour, if all of it changes and is copied each minute."""
    usd = 60 * Decimal(size) / GB * usd_per_gb
    return f"{usd:.2f} USD per hour at {math.ceil(size / 10**6):,} MB each minute"


def describe_room(size: int, plan: "Plan", hardware: Mapping[str, InstanceType]) -> list[str]:
    """Return what a plan says where copied data may not fit on the disk that takes it.

    Args:
        size: Bytes that are copied to each instance.
        plan: Its disks, types and image.
        hardware: The types; an NVMe instance store takes the data where a type has one.

    Raises:
        CloudError: It cannot fit.
    """
    gib, disk_gib, taken_gib = size / GIB, plan.machine.disk_gib, plan.machine.image.snapshot_gib
    enough = f"instances.disk_gib: {math.ceil(gib) + taken_gib + SPARE_GIB}"
    for name in dict.fromkeys(pool.instance_type for pool in plan.pools):
        local = hardware[name].local_disks_gb * GB / GIB if name in hardware else 0.0
        if gib > (local or disk_gib):
            disk = f"instance store of {local:.0f} GiB" if local else f"root disk of {disk_gib} GiB"
            raise CloudError(
                f"data: {gib:.1f} GiB do not fit on the {disk} of {name}",
                ("choose a type with a larger one" if local else f"set {enough}")
                + ", or set mode: mount-point",
            )
        if not local and gib > disk_gib - taken_gib:
            return [f"data of {gib:.1f} GiB may not fit next to the image; {enough} would do"]
    return []


def _describe(data: DataSet, region: str, instances: int) -> str:
    gb = Decimal(data.size) / GB
    size = f"{gb:.1f} GB" if gb >= 1 else f"{gb * 1000:.1f} MB"
    text = f"data: {data.files} file(s), {size} from {data.uri}, once per instance"
    if data.region == region:
        return f"{text}; traffic from S3 within {region} is free"
    usd = traffic_usd(data, region, instances)
    cost = f"{usd:.2f} USD for {instances} instance(s) at {_usd_per_gb(data.region)} USD per GB"
    return f"{text}; its bucket is in {data.region}: traffic to {region} costs about {cost}, not in the total"


def _usd_per_gb(region: str) -> Decimal:
    """Return the price of traffic out of a Region into another one."""
    is_usual = region.startswith(_USUAL_TRAFFIC)
    return REGION_TRAFFIC_USD_PER_GB if is_usual else DEAR_TRAFFIC_USD_PER_GB
