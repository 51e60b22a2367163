"""What instance types are and cost, from the bundled catalogue: the one place of `local` that reads it."""

import csv
import zlib
from dataclasses import dataclass
from decimal import Decimal
from importlib.resources import files
from importlib.resources.abc import Traversable

_TOKYO = "ap-northeast-1"
_CENT_OF_A_CENT = Decimal("0.0001")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueRow:
    """One instance type: hardware and its last known on-demand prices."""

    instance_type: str
    vcpus: int
    cores: int
    threads_per_core: int
    memory_mib: int
    gpu_name: str
    gpu_count: int
    gpu_memory_mib: int
    network: str
    hourly_usd_virginia: Decimal | None
    hourly_usd_tokyo: Decimal | None
    price_date: str


class Catalogue:
    """The rows by instance type, with the prices that the local EC2 quotes."""

    def __init__(self, rows: dict[str, CatalogueRow]) -> None:
        self.rows = rows

    def on_demand_usd(self, instance_type: str, region: str) -> Decimal | None:
        """Return the hourly price; a region without its own column is quoted at Virginia's price."""
        row = self.rows.get(instance_type)
        if row is None:
            return None
        return (row.hourly_usd_tokyo if region == _TOKYO else None) or row.hourly_usd_virginia

    def spot_usd(self, instance_type: str, zone: str) -> Decimal | None:
        """Return an hourly spot price: 30 to 45 % of on-demand, by zone, the same at every call.

        The catalogue knows no spot prices: these rehearse choosing by price and are no market data.
        """
        price = self.on_demand_usd(instance_type, zone[:-1])
        if price is None:
            return None
        share = Decimal(30 + zlib.crc32(f"{instance_type}/{zone}".encode()) % 16) / 100
        return (price * share).quantize(_CENT_OF_A_CENT)


def read_catalogue(source: Traversable | None = None) -> Catalogue:
    """Read the catalogue; `source` is the CSV file, by default the one bundled with `dlcloud.cloud`."""
    table = files("dlcloud.cloud").joinpath("instances.csv") if source is None else source
    with table.open("r", encoding="utf-8") as stream:
        rows = [_row(cells) for cells in csv.DictReader(stream)]
    return Catalogue({row.instance_type: row for row in rows})


def _row(cells: dict[str, str]) -> CatalogueRow:
    return CatalogueRow(
        instance_type=cells["instance_type"],
        vcpus=int(cells["vcpus"]),
        cores=int(cells["physical_cores"] or cells["vcpus"]),
        threads_per_core=int(cells["threads_per_core"] or 1),
        memory_mib=round(float(cells["memory_gib"]) * 1024),
        gpu_name=cells["gpu_name"],
        gpu_count=int(cells["gpu_count"] or 0),
        gpu_memory_mib=round(float(cells["gpu_mem_mib_each"] or 0)),
        network=cells["network"],
        hourly_usd_virginia=_price(cells["usd_hr_us_east_1"]),
        hourly_usd_tokyo=_price(cells["usd_hr_ap_northeast_1"]),
        price_date=cells["price_date"],
    )


def _price(text: str) -> Decimal | None:
    return Decimal(text) if text else None
