"""Instance types by EC2's own description, and by the bundled table where EC2 does not answer."""

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
