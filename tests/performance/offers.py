"""Rebuild the tables of what EC2 sells: hardware of every type, and on-demand prices of us-east-1.

    python tests/performance/offers.py                            hardware, as moto bundles EC2's descriptions
    python tests/performance/offers.py --account                  hardware and prices, as an account is told
    python tests/performance/offers.py --price-file index.json    prices of the Price List's file of us-east-1

The file is https://pricing.us-east-1.amazonaws.com/offers/v1.0/aws/AmazonEC2/current/us-east-1/index.json; it
is free, and needs no account. What `instances.csv` says of a type, with peaks and sources, stays as it is:
`described.csv` has the others, without any figure that EC2 does not state. Ends with how many of botocore's
types have a row and a price.
"""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from botocore.session import get_session
from common import ROOT, parser_of

from dlcloud.app.context import SystemClock
from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.cloud.offers.instance_types import read_type
from dlcloud.cloud.offers.prices import Prices, hourly_usd
from dlcloud.model.cluster import DEFAULT_REGION

OFFERS = ROOT / "dlcloud/cloud/offers"
COLUMNS = (
    *("instance_type", "status", "vcpus", "physical_cores", "memory_gib", "cpu_maker", "architectures"),
    *("gpu_name", "gpu_maker", "gpu_count", "gpu_share", "gpu_mem_mib", "network", "local_disks_gb"),
)
TERMS = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}


def row_of(answer: Mapping[str, Any]) -> dict[str, object]:
    """Return what EC2 says of a type, as a row."""
    kind = read_type(answer, Catalog())
    device = kind.accelerator
    return {
        "instance_type": kind.name,
        "status": kind.status,
        "vcpus": kind.vcpus,
        "physical_cores": kind.physical_cores,
        "memory_gib": kind.memory_gib,
        "cpu_maker": answer.get("ProcessorInfo", {}).get("Manufacturer", ""),
        "architectures": " ".join(kind.architectures),
        "gpu_name": device.name if device else "",
        "gpu_maker": device.manufacturer if device else "",
        "gpu_count": device.count if device else 0,
        "gpu_share": device.share if device else "",
        "gpu_mem_mib": device.memory_mib if device else "",
        "network": kind.network,
        "local_disks_gb": kind.local_disks_gb,
    }


def prices_of(products: Iterable[Mapping[str, Any]]) -> dict[str, Decimal]:
    """Return on-demand prices by type, of products with their terms."""
    prices: dict[str, Decimal] = {}
    for product in products:
        attributes = product["product"].get("attributes", {})
        name, usd = attributes.get("instanceType", ""), hourly_usd(product)
        if usd and "." in name and all(attributes.get(key, value) == value for key, value in TERMS.items()):
            prices[name] = usd
    return prices


def products_of(file: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Yield the products of a Price List file as GetProducts answers them."""
    terms = file["terms"]["OnDemand"]
    for sku, product in file["products"].items():
        if sku in terms:
            yield {"product": product, "terms": {"OnDemand": terms[sku]}}


def write(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--account", action="store_true", help="ask AWS, with your credentials")
    parser.add_argument("--price-file", type=Path, help="index.json of the Price List, of us-east-1")
    options = parser.parse_args()
    listed = {kind.name for kind in Catalog()}
    prices: dict[str, Decimal] = {}
    if options.account:
        clients = Clients(region=DEFAULT_REGION)
        answers = clients.pages("ec2", "describe_instance_types", "InstanceTypes")
        prices = prices_of(
            Prices(clients=clients, catalog=Catalog(), cache=None, clock=SystemClock()).products({})
        )
    else:
        from moto.ec2.models.instance_types import INSTANCE_TYPES  # noqa: PLC0415  not with --account

        answers = list(INSTANCE_TYPES.values())
    if options.price_file:
        prices = prices_of(products_of(json.loads(options.price_file.read_text("utf-8"))))
    rows = [row_of(answer) for answer in answers if answer["InstanceType"] not in listed]
    write(OFFERS / "described.csv", COLUMNS, sorted(rows, key=lambda row: str(row["instance_type"])))
    if prices:
        day = f"{datetime.now(UTC):%Y-%m-%d}"
        priced = [
            {"instance_type": name, "usd_hr_us_east_1": usd, "price_date": day}
            for name, usd in sorted(prices.items())
        ]
        write(OFFERS / "on_demand.csv", list(priced[0]), priced)
    names = get_session().get_service_model("ec2").shape_for("InstanceType").enum
    catalog = Catalog()
    with_hardware = sum(catalog.hardware(name) is not None for name in names)
    with_price = sum(catalog.on_demand_price(name, DEFAULT_REGION) is not None for name in names)
    print(f"of {len(names)} types of botocore: {with_hardware} with hardware, {with_price} with a price")


if __name__ == "__main__":
    main()
