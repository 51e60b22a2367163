"""The bundled tables of instance types: hardware, and dated prices for when AWS does not answer.

`instances.csv` has the types that dlcloud knows well: it lists them, and states their processors' peaks.
`described.csv` has all others, as EC2 describes them, for a plan without an answer of EC2; `on_demand.csv`
has the prices of both. `tests/performance/offers.py` refreshes the last two.
"""

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
        """Return a type's hardware; None for one that the tables lack."""
        if row := self._rows.get(instance_type):
            return _hardware(row)
        described = self._described.get(instance_type)
        return None if described is None else self._as_described(described)

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
            return self._listed.get(instance_type) if region == DEFAULT_REGION else None
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
        return list(self._listed.values()) if region == DEFAULT_REGION else []

    def __iter__(self) -> Iterator[InstanceType]:
        """Yield the types that dlcloud knows well."""
        return (_hardware(row) for row in self._rows.values())

    def every(self) -> list[InstanceType]:
        """Return all types of both tables."""
        return [*self, *(self._as_described(row) for row in self._described.values())]

    @cached_property
    def _rows(self) -> Mapping[str, dict[str, str]]:
        return _read("instances.csv")

    @cached_property
    def _described(self) -> Mapping[str, dict[str, str]]:
        return _read("described.csv")

    @cached_property
    def _listed(self) -> Mapping[str, Price]:
        return {
            name: Price(
                instance_type=name,
                region=DEFAULT_REGION,
                market=Market.ON_DEMAND,
                hourly_usd=Decimal(row["usd_hr_us_east_1"]),
                as_of=datetime.fromisoformat(row["price_date"]).replace(tzinfo=UTC),
                source="bundled table",
            )
            for name, row in _read("on_demand.csv").items()
        }

    def _as_described(self, row: Mapping[str, str]) -> InstanceType:
        """Return a type as EC2 describes it; its processor is that of a listed type of the same family."""
        name, relative = row["instance_type"], self.relative(row["instance_type"])
        device = None
        if int(row["gpu_count"]):
            listed, share = self.accelerator(row["gpu_name"]), float(row["gpu_share"])
            peaks = listed if share == 1 else None
            device = Accelerator(
                name=row["gpu_name"],
                count=int(row["gpu_count"]),
                memory_mib=int(row["gpu_mem_mib"]),
                compute_capability=listed.compute_capability if listed else "",
                fp32_tflops=peaks.fp32_tflops if peaks else None,
                tensor_tflops=peaks.tensor_tflops if peaks else None,
                manufacturer=row["gpu_maker"],
                share=share,
            )
        return InstanceType(
            name=name,
            status=row["status"],
            vcpus=int(row["vcpus"]),
            physical_cores=int(row["physical_cores"]),
            memory_gib=float(row["memory_gib"]),
            cpu_model=relative.cpu_model if relative else row["cpu_maker"],
            cpu_isa=relative.cpu_isa if relative else (),
            accelerator=device,
            architectures=tuple(row["architectures"].split()),
            network=row["network"],
            local_disks_gb=int(row["local_disks_gb"]),
        )


BUNDLED = Catalog()
"""What all Regions of a command share: reading the tables takes longer than a call."""


def _read(name: str) -> dict[str, dict[str, str]]:
    text = files("dlcloud.cloud.offers").joinpath(name).read_text("utf-8")
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
