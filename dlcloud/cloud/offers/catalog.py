"""The bundled table of instance types: hardware, and dated prices for when AWS does not answer."""

import csv
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from importlib.resources import files

from dlcloud.model.cluster import DEFAULT_REGION
from dlcloud.model.instance import ARM64, X86_64, Accelerator, InstanceType, Market, Price

_MANUFACTURERS = {"Inferentia": "AWS", "Trainium": "AWS", "Radeon": "AMD"}
"""Makers by the first word of an accelerator's name; all others are NVIDIA's."""
_ARM = "Graviton"
_PRICE_COLUMNS = {"us-east-1": "usd_hr_us_east_1", "ap-northeast-1": "usd_hr_ap_northeast_1"}


class Catalog:
    """The types of `instances.csv`, read when first asked."""

    def hardware(self, instance_type: str) -> InstanceType | None:
        """Return a type's hardware; None for one that the table lacks."""
        row = self._rows.get(instance_type)
        return None if row is None else _hardware(row)

    def relative(self, instance_type: str) -> InstanceType | None:
        """Return a listed type of the same family, whose processor is the same; None without any."""
        family = instance_type.partition(".")[0]
        return next(
            (_hardware(row) for name, row in self._rows.items() if name.split(".")[0] == family), None
        )

    def accelerator(self, name: str) -> Accelerator | None:
        """Return an accelerator of that name, of any listed type; None without any."""
        rows = (row for row in self._rows.values() if row["gpu_name"] == name and not row["gpu_share"])
        return next((_accelerator(row) for row in rows), None)

    def on_demand_price(self, instance_type: str, region: str) -> Price | None:
        """Return the dated on-demand price of a type in a region; None where the table has none."""
        row = self._rows.get(instance_type, {})
        text = row.get(_PRICE_COLUMNS.get(region, ""), "")
        if not text:
            return None
        return Price(
            instance_type=instance_type,
            region=region,
            market=Market.ON_DEMAND,
            hourly_usd=Decimal(text),
            as_of=datetime.fromisoformat(row["price_date"]).replace(tzinfo=UTC),
            source="bundled table",
        )

    def listed_prices(self, region: str) -> list[Price]:
        """Return the dated on-demand prices of all types; empty for a region that is not listed.

        Source: karpenter-provider-aws (Apache-2.0), generated from the AWS Pricing API on that day.
        """
        if region != DEFAULT_REGION:
            return []
        text = files("dlcloud.cloud.offers").joinpath("on_demand.csv").read_text("utf-8")
        return [
            Price(
                instance_type=row["instance_type"],
                region=region,
                market=Market.ON_DEMAND,
                hourly_usd=Decimal(row["usd_hr_us_east_1"]),
                as_of=datetime(2026, 7, 20, tzinfo=UTC),
                source="bundled table",
            )
            for row in csv.DictReader(text.splitlines())
        ]

    def __iter__(self) -> Iterator[InstanceType]:
        return (_hardware(row) for row in self._rows.values())

    @cached_property
    def _rows(self) -> Mapping[str, dict[str, str]]:
        text = files("dlcloud.cloud.offers").joinpath("instances.csv").read_text("utf-8")
        return {row["instance_type"]: row for row in csv.DictReader(text.splitlines())}


def _hardware(row: Mapping[str, str]) -> InstanceType:
    return InstanceType(
        name=row["instance_type"],
        status=row["status"],
        vcpus=int(row["vcpus"]),
        physical_cores=int(row["physical_cores"]),
        memory_gib=float(row["memory_gib"]),
        cpu_model=row["cpu_model"],
        cpu_isa=tuple(word for word in row["cpu_isa"].split(",") if word),
        accelerator=_accelerator(row),
        cpu_fp32_tflops=_tflops(row["cpu_fp32_gflops_peak_est"]),
        architectures=(ARM64 if _ARM in row["cpu_model"] else X86_64,),
        network=row["network"],
    )


def _accelerator(row: Mapping[str, str]) -> Accelerator | None:
    if not int(row["gpu_count"] or 0):
        return None
    return Accelerator(
        name=row["gpu_name"],
        count=int(row["gpu_count"]),
        memory_mib=int(float(row["gpu_mem_mib_each"] or 0)),
        compute_capability=row["gpu_cc"],
        fp32_tflops=_number(row["gpu_fp32_tflops_each"]),
        tensor_tflops=_number(row["gpu_fp16_tensor_tflops_each_dense"]),
        share=float(row["gpu_share"] or 1),
        manufacturer=next(
            (maker for word, maker in _MANUFACTURERS.items() if row["gpu_name"].startswith(word)), "NVIDIA"
        ),
    )


def _tflops(gflops: str) -> float | None:
    return float(gflops) / 1000 if gflops else None


def _number(text: str) -> float | None:
    return float(text) if text else None
