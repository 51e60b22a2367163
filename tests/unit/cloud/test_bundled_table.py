"""The bundled table of instance types says what processors and GPUs report of themselves on EC2."""

import csv
import re
from decimal import Decimal
from pathlib import Path

import pytest

from dlcloud.cloud.offers.catalog import Catalog

MEASURED = Path(__file__).parents[2] / "fixtures" / "ec2-hardware.csv"
ISA = {"avx512f": "avx512", "avx512_vnni": "vnni", "avx512_bf16": "bf16", "amx_int8": "amx"}
NOT_MEASURED = {
    *("p4de.24xlarge", "p5.4xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge"),
    *("p6-b200.48xlarge", "p6-b300.48xlarge"),
}
NUMBER = re.compile(r"E\d-\d{4}|\d[0-9R]\d\d[A-Z]*(?:-C)?|Neoverse-\w+")
PART = re.compile(r"-\d+Q$")
TODAY = {
    *("c6a", "c7g", "c7i", "c7i-flex", "c8a", "c8g", "c8i", "c8i-flex", "m6a", "m7a", "m7g", "m7i"),
    *("m7i-flex", "m8a", "m8g", "m8i", "m8i-flex", "m9g", "r6i", "r7a", "r7g", "r7i", "r8a", "r8g", "r8i"),
}
OTHER_MAKERS = ("Inferentia", "Radeon", "Trainium")
"""Accelerators that nvidia-smi does not list."""


def measured():
    with MEASURED.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_type_is_checked_but_for_those_that_nobody_measured():
    assert {kind.name for kind in Catalog()} - {row["type"] for row in measured()} == NOT_MEASURED


@pytest.mark.parametrize("row", measured(), ids=lambda row: row["type"])
def test_a_row_says_what_the_machine_reports(row):
    kind = Catalog().hardware(row["type"])
    cores = int(row["sockets"]) * int(row["cores_per_socket"])
    assert (kind.vcpus, kind.physical_cores) == (int(row["vcpus"]), cores)
    number = NUMBER.search(row["model"])[0]
    number = {"8223CL": "8124M"}.get(number, number)  # a rarer processor of the same type
    assert number in kind.cpu_model or "8000 series" in kind.cpu_model
    assert kind.architectures == ("arm64" if "Neoverse" in number else "x86_64",)
    reported = {name for column, name in ISA.items() if row[column] == "1"}
    # The table names AMX's bf16 with AMX.
    assert set(kind.cpu_isa) - {"avx2"} == (reported - {"bf16"} if "amx" in reported else reported)


@pytest.mark.parametrize("row", measured(), ids=lambda row: row["type"])
def test_a_row_has_the_gpus_that_the_machine_reports(row):
    accelerator = Catalog().hardware(row["type"]).accelerator
    if accelerator is not None and accelerator.name.startswith(OTHER_MAKERS):
        assert row["gpus"] == "0"
        return
    assert (accelerator.count if accelerator else 0) == int(row["gpus"])
    assert accelerator is None or accelerator.name.split()[0].split("-")[0].upper() in row["gpu"].upper()
    if accelerator is not None:
        is_part = PART.search(row["gpu"]) is not None  # a virtual GPU is named by its memory, as `L4-6Q`
        assert is_part == (accelerator.share < 1)


def test_types_of_today_and_every_family_with_gpus_are_there():
    families = {kind.name.partition(".")[0] for kind in Catalog()}
    assert TODAY | {"g3", "g3s", "g5g", "g6f", "g7e", "gr6", "gr6f", "p2"} <= families
    unpriced = {kind.name for kind in Catalog() if not Catalog().on_demand_price(kind.name, "us-east-1")}
    assert unpriced == {"p5e.48xlarge"}


def test_types_that_are_not_listed_are_known_as_ec2_describes_them():
    catalog = Catalog()
    listed = {kind.name for kind in catalog}
    described = catalog.hardware("x8aedz.large")
    assert "x8aedz.large" not in listed
    assert (described.vcpus, described.physical_cores, described.memory_gib) == (2, 2, 64.0)
    part = catalog.hardware("g6f.4xlarge") or catalog.hardware("g6f.large")
    assert part.accelerator.share < 1
    assert catalog.on_demand_price("m5.large", "us-east-1").hourly_usd == Decimal("0.096")
    assert catalog.hardware("c99.large") is None
    assert catalog.on_demand_price("c99.large", "us-east-1") is None
    assert catalog.on_demand_price("m5.large", "eu-west-1") is None
    assert catalog.on_demand_price("p3.2xlarge", "us-east-1").hourly_usd == Decimal("3.06")
