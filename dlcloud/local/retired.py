"""Instance types that EC2 no longer describes, for rehearsing articles that were measured on them."""

from collections.abc import Iterable
from typing import Any

from moto.ec2.models.instance_types import (
    INSTANCE_TYPE_OFFERINGS,
    INSTANCE_TYPES,
    InstanceType,
    InstanceTypeBackend,
)

from dlcloud.local.catalogue import Catalogue, CatalogueRow

_FAMILIES = ("p3.", "g4ad.")
_MAKERS = {"V100": "NVIDIA", "Radeon": "AMD"}


def add_retired_types(catalogue: Catalogue) -> None:
    """Enter the catalogue's retired types into moto's books: offered in every zone of every region."""
    rows = [row for row in catalogue.rows.values() if row.instance_type.startswith(_FAMILIES)]
    missing = [row for row in rows if row.instance_type not in INSTANCE_TYPES]
    for row in missing:
        INSTANCE_TYPES[row.instance_type] = _description(row)
        InstanceTypeBackend.instance_types.append(InstanceType(row.instance_type))
    _offer(row.instance_type for row in missing)


def _offer(kinds: Iterable[str]) -> None:
    names = list(kinds)
    for location_type, regions in INSTANCE_TYPE_OFFERINGS.items():
        for offerings in regions.values():
            places = sorted({offering["Location"] for offering in offerings})
            offerings += [
                {"InstanceType": name, "Location": place, "LocationType": location_type}
                for name in names
                for place in places
            ]


def _description(row: CatalogueRow) -> dict[str, Any]:
    """Return what DescribeInstanceTypes says of a type, for the fields that the catalogue knows."""
    return {
        "InstanceType": row.instance_type,
        "CurrentGeneration": False,
        "BareMetal": False,
        "Hypervisor": "xen",
        "SupportedUsageClasses": ["on-demand", "spot"],
        "SupportedRootDeviceTypes": ["ebs"],
        "SupportedVirtualizationTypes": ["hvm"],
        "SupportedBootModes": ["legacy-bios"],
        "InstanceStorageSupported": False,
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
        "VCpuInfo": {
            "DefaultVCpus": row.vcpus,
            "DefaultCores": row.cores,
            "DefaultThreadsPerCore": row.threads_per_core,
        },
        "MemoryInfo": {"SizeInMiB": row.memory_mib},
        "NetworkInfo": {"NetworkPerformance": row.network},
        "GpuInfo": {"Gpus": [_gpu(row)], "TotalGpuMemoryInMiB": row.gpu_count * row.gpu_memory_mib},
    }


def _gpu(row: CatalogueRow) -> dict[str, Any]:
    maker = next((maker for name, maker in _MAKERS.items() if name in row.gpu_name), "NVIDIA")
    memory = {"SizeInMiB": row.gpu_memory_mib}
    return {"Name": row.gpu_name, "Manufacturer": maker, "Count": row.gpu_count, "MemoryInfo": memory}
