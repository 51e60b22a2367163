"""moto's WSGI application with dlcloud's actions, types and parameters in it. Importing this imports moto."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Literal, cast

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.utils import get_service_model
from moto.ec2 import urls as ec2_urls
from moto.ec2.models import ec2_backends
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend
from moto.ec2.models.instance_types import (
    INSTANCE_TYPE_OFFERINGS,
    INSTANCE_TYPES,
    InstanceType,
    InstanceTypeBackend,
)
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.ssm.models import Parameter, SimpleSystemManagerBackend, ssm_backends

from dlcloud.cloud.api.partitions import COMMERCIAL, partition_of
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.local.api.call import Call
from dlcloud.local.api.faults import Visibility
from dlcloud.local.batch import JobScheduler, bind_batch
from dlcloud.local.capacity.pools import VcpuQuotas
from dlcloud.local.ec2.fleets import LocalFleetResponses
from dlcloud.local.ec2.instances import SiteInstances
from dlcloud.local.ec2.network import NetworkedBackend
from dlcloud.local.instance.machine_images import parameters
from dlcloud.local.moto_data import RegionOfferings
from dlcloud.model import instance

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_Service = Literal["batch", "ec2", "iam", "secretsmanager", "ssm", "sts"]
_SERVICES: tuple[_Service, ...] = ("batch", "ec2", "iam", "secretsmanager", "ssm", "sts")
_LAST_MODIFIED = datetime(2026, 9, 1, tzinfo=UTC)  # the date of the images
# moto leaves two methods of CloudFormation out of it, which to a type checker makes it abstract.
_make_parameter = cast("Callable[..., Parameter]", Parameter)


def create_moto_app(
    instances: SiteInstances,
    catalog: Catalog,
    quotas: VcpuQuotas,
    visibility: Visibility,
    scheduler: JobScheduler,
) -> Wsgi:
    """Return moto's application, bound to one site and warm: the first call costs no more than the next."""
    _add_retired_types(catalog)
    # Those of other partitions need an account there.
    usual = [one for one in RegionsAndZonesBackend.regions if partition_of(one.name).name == COMMERCIAL]
    RegionsAndZonesBackend.regions = usual
    bound = {
        "instances": instances,
        "catalog": catalog,
        "quotas": quotas,
        "visibility": visibility,
    }
    responses = cast("type[LocalFleetResponses]", type("BoundResponses", (LocalFleetResponses,), bound))
    ec2_urls.url_paths["{0}/"] = responses.dispatch
    ec2_backends.backend = NetworkedBackend
    ssm_backends.backend = _SeededParameters
    bind_batch(scheduler)
    ec2_backends[DEFAULT_ACCOUNT_ID]["us-east-1"].describe_images()
    application = DomainDispatcherApplication(create_backend_app)
    for service in _SERVICES:
        application.app_instances[service] = create_backend_app(service)
    return cast("Wsgi", application)


def unknown_action(call: Call) -> str:
    """Return why a call has no action that moto would find by exactly this name; empty if it has one.

    moto finds `assumeRole` as `AssumeRole`, which is the name that permissions and trust are looked up by.
    """
    if call.service not in _SERVICES or call.action in get_service_model(call.service).operation_names:
        return ""
    return f"The action {call.action!r} is not valid for this service."


def vcpus_of_types() -> dict[str, int]:
    """Return the vCPUs of each type that moto knows."""
    return {name: int(described["VCpuInfo"]["DefaultVCpus"]) for name, described in INSTANCE_TYPES.items()}


class _SeededParameters(SimpleSystemManagerBackend):
    """The parameter store of a region, in which the public parameters name the local images."""

    # moto looks for a backend's paths next to the module that its class was made in.
    __module__ = SimpleSystemManagerBackend.__module__

    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        # moto's own Amazon Linux parameters name images that this cloud does not have.
        self._parameters.latest_amis_loaded = True
        for name, image_id in parameters().items():
            self._parameters[name].append(
                _make_parameter(
                    account_id=account_id,
                    name=name,
                    value=image_id,
                    parameter_type="String",
                    description=None,
                    allowed_pattern=None,
                    keyid=None,
                    last_modified_date=_LAST_MODIFIED,
                    version=1,
                    data_type="aws:ec2:image",
                )
            )


def _add_retired_types(catalog: Catalog) -> None:
    """Offer the catalog's retired types in every zone, to rehearse articles that were measured on them."""
    retired = [hardware for hardware in catalog if hardware.status == "retired"]
    missing = [hardware for hardware in retired if hardware.name not in INSTANCE_TYPES]
    for hardware in missing:
        INSTANCE_TYPES[hardware.name] = _description(hardware)
        InstanceTypeBackend.instance_types.append(InstanceType(hardware.name))
    names = [hardware.name for hardware in missing]
    for location_type, regions in INSTANCE_TYPE_OFFERINGS.items():
        INSTANCE_TYPE_OFFERINGS[location_type] = RegionOfferings(location_type, list(regions), names)


def _description(hardware: instance.InstanceType) -> dict[str, Any]:
    """Return the answer of DescribeInstanceTypes for a type, with the fields that the catalog has."""
    gpu = hardware.gpu
    gpus: dict[str, Any] = {}
    if gpu is not None:
        device = {
            "Name": gpu.name,
            "Manufacturer": gpu.manufacturer,
            "Count": gpu.count,
            "LogicalGpuCount": gpu.count,
            "GpuPartitionSize": gpu.share,
            "MemoryInfo": {"SizeInMiB": gpu.memory_mib},
        }
        gpus = {"GpuInfo": {"Gpus": [device], "TotalGpuMemoryInMiB": gpu.count * gpu.memory_mib}}
    return {
        "InstanceType": hardware.name,
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
            "DefaultVCpus": hardware.vcpus,
            "DefaultCores": hardware.physical_cores,
            "DefaultThreadsPerCore": hardware.vcpus // hardware.physical_cores,
        },
        "MemoryInfo": {"SizeInMiB": round(hardware.memory_gib * 1024)},
        "NetworkInfo": {"NetworkPerformance": hardware.network},
        **gpus,
    }
