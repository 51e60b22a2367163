"""Instance types as EC2 describes them, as the bundled table does, and as their machines report."""

import csv
import re
from decimal import Decimal
from pathlib import Path

import pytest

from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.instance import Market
from tests.fakes.clock import FakeClock
from tests.unit.cloud.conftest import cloud_over
from tests.unit.cloud.test_images import AnswerMemory

DESCRIBED = {
    "InstanceType": "g6f.large",
    "CurrentGeneration": True,
    "SupportedUsageClasses": ["on-demand"],
    "ProcessorInfo": {"SupportedArchitectures": ["x86_64"], "Manufacturer": "AMD"},
    "VCpuInfo": {"DefaultVCpus": 2, "DefaultCores": 1},
    "MemoryInfo": {"SizeInMiB": 8192},
    "InstanceStorageInfo": {"TotalSizeInGB": 100},
    "NetworkInfo": {"NetworkPerformance": "Up to 10 Gigabit"},
    "GpuInfo": {
        "Gpus": [
            {
                "Name": "L4",
                "Manufacturer": "NVIDIA",
                "Count": 0,
                "LogicalGpuCount": 1,
                "GpuPartitionSize": 0.125,
                "MemoryInfo": {"SizeInMiB": 2861},
            }
        ]
    },
}


@pytest.mark.parametrize(
    ("name", "description", "has_nvidia_gpu"),
    [
        ("c7g.large", "2 vCPUs, 4 GiB, arm64, Up to 12.5 Gigabit", False),
        ("c8a.large", "2 vCPUs, 4 GiB, x86_64, Up to 12.5 Gigabit", False),
        ("g5g.xlarge", "4 vCPUs, 8 GiB, 1x T4g, arm64, Up to 10 Gigabit", True),
        (
            "g6f.large",
            "2 vCPUs, 8 GiB, 1/8 L4, x86_64, 100 GB of local disks, Up to 10 Gigabit",
            True,
        ),
        (
            "gr6.4xlarge",
            "16 vCPUs, 128 GiB, 1x L4, x86_64, 600 GB of local disks, Up to 25 Gigabit",
            True,
        ),
        (
            "g7e.48xlarge",
            "192 vCPUs, 2048 GiB, 8x RTX PRO Server 6000, x86_64, 15200 GB of local disks, 1600 Gigabit",
            True,
        ),
        ("inf1.xlarge", "4 vCPUs, 8 GiB, 1x Inferentia, x86_64, Up to 25 Gigabit", False),
        ("inf2.xlarge", "4 vCPUs, 16 GiB, 1x Inferentia2, x86_64, Up to 15 Gigabit", False),
        (
            "trn1.2xlarge",
            "8 vCPUs, 32 GiB, 1x Trainium, x86_64, 474 GB of local disks, Up to 12.5 Gigabit",
            False,
        ),
        ("dl2q.24xlarge", "96 vCPUs, 768 GiB, 8x Qualcomm AI100, x86_64, 100 Gigabit", False),
    ],
)
def test_types_are_as_ec2_describes_them(moto_cloud, name, description, has_nvidia_gpu):
    entry = moto_cloud.types.hardware([name])[name]
    assert (entry.describe(), entry.has_nvidia_gpu, entry.source) == (description, has_nvidia_gpu, "EC2")


def test_peaks_are_those_of_the_same_gpu_and_of_no_part_of_one(moto_cloud):
    types = moto_cloud.types.hardware(["gr6.4xlarge", "g6f.large", "g6.xlarge", "c7i.xlarge"])
    assert types["gr6.4xlarge"].tensor_tflops == types["g6.xlarge"].tensor_tflops > 0
    assert types["g6f.large"].tensor_tflops is None
    assert types["c7i.xlarge"].cpu_isa == Catalog().hardware("c7i.xlarge").cpu_isa
    assert types["c7i.xlarge"].cpu_fp32_tflops


def test_the_table_agrees_with_ec2(moto_cloud):
    listed = {entry.name: entry for entry in Catalog() if not entry.retired}
    described = moto_cloud.types.hardware(list(listed))
    assert described.keys() == listed.keys()
    for name, entry in described.items():
        assert entry.source == "EC2"
        table = listed[name]
        assert (entry.vcpus, entry.physical_cores, entry.memory_gib, entry.architectures, entry.network) == (
            table.vcpus, table.physical_cores, table.memory_gib, table.architectures, table.network,
        )  # fmt: skip
        assert entry.accelerator == table.accelerator


def test_without_an_answer_types_are_those_of_the_table(clients, stub):
    stub(clients.get("ec2")).add_client_error("describe_instance_types", "UnauthorizedOperation")
    types = cloud_over(clients).types.hardware(["c7i.xlarge", "c99.large"])
    assert types == {"c7i.xlarge": Catalog().hardware("c7i.xlarge")}


def test_a_description_is_asked_for_once_a_day(clients, stub):
    clock, ec2 = FakeClock(), stub(clients.get("ec2"))
    cloud = cloud_over(clients, clock=clock, types=AnswerMemory())
    asked = {"Filters": [{"Name": "instance-type", "Values": ["g6f.large"]}]}
    for _ in range(2):
        ec2.add_response("describe_instance_types", {"InstanceTypes": [DESCRIBED]}, asked)
    first = cloud.types.hardware(["g6f.large"])
    assert first["g6f.large"].markets == (Market.ON_DEMAND,)
    assert cloud.types.hardware(["g6f.large"]) == first
    clock.sleep(2 * 86400)
    assert cloud.types.hardware(["g6f.large"]) == first


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


def test_the_table_says_what_the_machines_report():
    assert {kind.name for kind in Catalog()} - {row["type"] for row in measured()} == NOT_MEASURED
    for row in measured():
        kind = Catalog().hardware(row["type"])
        cores = int(row["sockets"]) * int(row["cores_per_socket"])
        assert (kind.vcpus, kind.physical_cores) == (int(row["vcpus"]), cores), kind.name
        number = NUMBER.search(row["model"])[0]
        number = {"8223CL": "8124M"}.get(number, number)  # a rarer processor of the same type
        assert number in kind.cpu_model or "8000 series" in kind.cpu_model, kind.name
        assert kind.architectures == ("arm64" if "Neoverse" in number else "x86_64",), kind.name
        reported = {name for column, name in ISA.items() if row[column] == "1"}
        # The table names AMX's bf16 with AMX.
        isa = reported - {"bf16"} if "amx" in reported else reported
        assert set(kind.cpu_isa) - {"avx2"} == isa, kind.name
        gpu = kind.accelerator
        if gpu is None or gpu.name.startswith(OTHER_MAKERS):
            assert row["gpus"] == "0", kind.name
        else:
            assert gpu.count == int(row["gpus"]), kind.name
            assert gpu.name.split()[0].split("-")[0].upper() in row["gpu"].upper(), kind.name
            # A virtual GPU is named by its memory, as `L4-6Q`.
            assert (PART.search(row["gpu"]) is not None) == (gpu.share < 1), kind.name


def test_types_of_today_and_every_family_with_gpus_are_there_and_every_row_makes_sense():
    catalog = Catalog()
    rows = list(catalog)
    assert TODAY | {"g3", "g3s", "g5g", "g6f", "g7e", "gr6", "gr6f", "p2"} <= {
        row.name.partition(".")[0] for row in rows
    }
    prices = {row.name: catalog.on_demand_price(row.name, "us-east-1") for row in rows}
    assert {name for name, price in prices.items() if price is None} == {"p5e.48xlarge"}
    assert all(price.hourly_usd > 0 and price.as_of.tzinfo for price in prices.values() if price)
    for row in rows:
        assert row.vcpus >= row.physical_cores >= 1
        assert row.memory_gib > 0
        assert row.status in {"current", "previous-generation", "retired"}
        assert row.gpu is None or (row.gpu.count > 0 and row.gpu.name and row.gpu.memory_mib > 0)


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
