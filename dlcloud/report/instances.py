"""Instance types as a table: hardware, prices, and what a dollar buys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from dlcloud.analysis.cost import tflops_per_usd
from dlcloud.model.instance import InstanceType, Price
from dlcloud.model.money import exact
from dlcloud.report.table import Cell, Report, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeOffer:
    """A type with what is known of its prices; `successors` are named for a retired one."""

    hardware: InstanceType
    on_demand: Price | None
    spot: Price | None
    successors: tuple[str, ...] = ()

    @property
    def tflops_per_usd(self) -> Decimal | None:
        """Peak TFLOPS that a dollar an hour buys on demand."""
        return tflops_per_usd(
            self.hardware.peak_tflops, self.on_demand.hourly_usd if self.on_demand else None
        )


def instances_report(offers: Sequence[TypeOffer], *, region: str) -> Report:
    spot = any(offer.spot for offer in offers)
    section = Section(
        heading="",
        titles=(
            "type",
            "vCPUs",
            "cores",
            "GiB",
            "CPU",
            "GPU",
            "FP32",
            "fp16",
            "USD/h",
            *(["spot"] if spot else []),
            "per USD",
        ),
        rows=[_row(offer, spot=spot) for offer in offers],
        notes=_notes(offers, region),
        numeric=frozenset({1, 2, 3, 6, 7, 8, 9, 10}),
        optional=(4, 6, 2) if spot else (2,),
    )
    return Report(
        command="instances",
        records=[_record(offer) | {"region": region} for offer in offers],
        sections=[section] if offers else [],
        empty="no instance type is like that",
        extra={"region": region},
    )


def _row(offer: TypeOffer, *, spot: bool) -> tuple[str, ...]:
    hardware = offer.hardware
    mark = {"retired": "†", "previous-generation": "‡"}.get(hardware.status, "")
    return (
        hardware.name + mark,
        str(hardware.vcpus),
        str(hardware.physical_cores),
        _number(hardware.memory_gib),
        " ".join(hardware.cpu_isa) or hardware.architecture,
        "" if hardware.accelerator is None else hardware.accelerator.describe(),
        _number(hardware.fp32_tflops),
        _number(hardware.tensor_tflops),
        _usd(offer.on_demand),
        *([_usd(offer.spot)] if spot else []),
        _number(None if offer.tflops_per_usd is None else float(offer.tflops_per_usd)),
    )


def _notes(offers: Sequence[TypeOffer], region: str) -> list[str]:
    peaks = "peak TFLOPS of all GPUs, or of the CPU at its listed clock, by data sheets, unverified"
    notes = [f"{region}; FP32 and fp16 (tensor cores): {peaks}"]
    notes.append("vCPUs, memory and GPUs: EC2's API in 2026; processors, and retired types, unverified")
    notes.append("per USD: fp16, or FP32 without a GPU, by the on-demand price of an hour")
    prices = [price for offer in offers for price in (offer.on_demand, offer.spot) if price]
    sources: Mapping[str, list[datetime]] = {price.source: [] for price in prices}
    for price in prices:
        sources[price.source].append(price.as_of)
    notes += [f"prices of {min(dates):%Y-%m-%d}: {source}" for source, dates in sources.items()]
    if not any(offer.on_demand for offer in offers):
        notes.append(f"no price of {region} is known: --live asks AWS")
    elif not all(offer.on_demand for offer in offers):
        notes.append("no price is known where USD/h is empty")
    if any(offer.hardware.status == "previous-generation" for offer in offers):
        notes.append("‡ previous generation")
    for offer in offers:
        if offer.hardware.retired:
            near = f"; nearest now: {', '.join(offer.successors)}" if offer.successors else ""
            notes.append(f"† {offer.hardware.name} is retired, its prices are its last{near}")
    return notes


def _record(offer: TypeOffer) -> dict[str, Cell]:
    hardware, accelerator = offer.hardware, offer.hardware.accelerator
    return {
        "instance_type": hardware.name,
        "status": hardware.status,
        "vcpus": hardware.vcpus,
        "physical_cores": hardware.physical_cores,
        "memory_gib": hardware.memory_gib,
        "cpu_model": hardware.cpu_model,
        "cpu_isa": " ".join(hardware.cpu_isa),
        "architecture": hardware.architecture,
        "gpu": accelerator.name if accelerator else None,
        "gpu_count": accelerator.count if accelerator else 0,
        "gpu_share": accelerator.share if accelerator else None,
        "gpu_memory_mib": accelerator.memory_mib if accelerator else None,
        "local_disks_gb": hardware.local_disks_gb,
        "network": hardware.network,
        "fp32_tflops": hardware.fp32_tflops,
        "tensor_tflops": hardware.tensor_tflops,
        "hourly_usd": offer.on_demand.hourly_usd if offer.on_demand else None,
        "price_as_of": offer.on_demand.as_of if offer.on_demand else None,
        "price_source": offer.on_demand.source if offer.on_demand else None,
        "spot_usd": offer.spot.hourly_usd if offer.spot else None,
        "spot_as_of": offer.spot.as_of if offer.spot else None,
        "spot_zone": offer.spot.zone if offer.spot else None,
        "tflops_per_usd": None if offer.tflops_per_usd is None else round(offer.tflops_per_usd, 3),
        "successors": " ".join(offer.successors),
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"  # noqa: PLR2004  digits


def _usd(price: Price | None) -> str:
    return "" if price is None else exact(price.hourly_usd)
