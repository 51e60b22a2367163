"""The bundled table of instance types says what processors and GPUs report of themselves on EC2."""

import csv
from pathlib import Path

import pytest

from dlcloud.cloud.catalog import Catalog

MEASURED = Path(__file__).parents[2] / "fixtures" / "ec2-hardware.csv"
ISA = {"avx512f": "avx512", "avx512_vnni": "vnni", "avx512_bf16": "bf16", "amx_int8": "amx"}
NOT_MEASURED = {
    *("p4de.24xlarge", "p5.4xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge"),
    *("p6-b200.48xlarge", "p6-b300.48xlarge"),
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
    number = next(word for word in row["model"].split() if word[:2].isdigit() or word[:1] == "E")
    series = {"8223CL": "8124M", "Intel(R)": "Intel"}  # a rarer processor of the same type
    assert series.get(number, number).removesuffix(")") in kind.cpu_model or "8000 series" in kind.cpu_model
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
    assert accelerator is None or accelerator.name.split()[0].split("-")[0] in row["gpu"]
