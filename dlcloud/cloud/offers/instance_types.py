"""Instance types as EC2 describes them to the account, with the peaks of the bundled table."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from dlcloud.cloud.api.answers import Cache, KeptAnswers
from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import translate_errors
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.clock import Clock
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import X86_64, Accelerator, InstanceType, Market, NetworkCard

SOURCE = "EC2"
_EFA = "efa"
_FIELDS = (
    "InstanceType",
    "CurrentGeneration",
    "FreeTierEligible",
    "SupportedUsageClasses",
    "ProcessorInfo",
    "VCpuInfo",
    "MemoryInfo",
    "InstanceStorageInfo",
    "GpuInfo",
    "NeuronInfo",
    "InferenceAcceleratorInfo",
    "MediaAcceleratorInfo",
    "FpgaInfo",
    "PlacementGroupInfo",
)
_NETWORK_FIELDS = ("NetworkPerformance", "EfaSupported", "EfaInfo", "NetworkCards")
_DEVICES = {
    "GpuInfo": "Gpus",
    "NeuronInfo": "NeuronDevices",
    "InferenceAcceleratorInfo": "Accelerators",
    "MediaAcceleratorInfo": "Accelerators",
    "FpgaInfo": "Fpgas",
}
"""Where a description lists accelerators; the first that is there counts.

Source: EC2 API reference, InstanceTypeInfo.
"""

log = logging.getLogger(__name__)


class InstanceTypes:
    """The instance types of one region.

    Args:
        clients: The region's clients.
        catalog: The bundled table: peaks of processors and GPUs, and all there is where EC2 does not answer.
        cache: Keeps EC2's descriptions, and the zones of types, for a day; None asks each time.
        clock: Dates descriptions.
    """

    def __init__(self, *, clients: Clients, catalog: Catalog, cache: Cache | None, clock: Clock) -> None:
        self._clients = clients
        self._catalog = catalog
        self._kept = KeptAnswers(clients=clients, cache=cache, clock=clock)

    def hardware(self, names: Sequence[str]) -> dict[str, InstanceType]:
        """Return types by name: by EC2's description, else by the table; unknown ones are absent."""
        answers = self._kept_types(names)
        missing = [name for name in names if name not in answers]
        try:
            fresh = self._describe([{"Name": "instance-type", "Values": missing}]) if missing else []
        except CloudError as error:
            log.warning("instance types are those of the bundled table: %s", error.message)
            fresh = []
        for answer in fresh:
            self._put_type(answer)
            answers[answer["InstanceType"]] = answer
        return self._read(names, answers)

    def listed(self, names: Sequence[str]) -> dict[str, InstanceType]:
        """Return types by name without a request: by a description that is kept, else by the table."""
        return self._read(names, self._kept_types(names))

    def _kept_types(self, names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        return {name: answer for name in names if (answer := self._kept.get(f"instance type {name}"))}

    def _read(
        self, names: Sequence[str], answers: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, InstanceType]:
        described = {name: read_type(answer, self._catalog) for name, answer in answers.items()}
        types = {name: described.get(name) or self._catalog.hardware(name) for name in names}
        return {name: hardware for name, hardware in types.items() if hardware is not None}

    def offered(self, patterns: Sequence[str] = ()) -> list[InstanceType]:
        """Return the types that the region offers: those of names like `c7g.*`, all without any.

        Raises:
            CloudError: EC2 refuses to describe them.
        """
        if patterns:
            answers = self._describe([{"Name": "instance-type", "Values": list(patterns)}])
        elif (answers := self._kept.get("every type")) is None:
            answers = [_without_unread(answer) for answer in self._describe([])]
            self._kept.put("every type", answers)
        return [read_type(answer, self._catalog) for answer in answers]

    def names(self) -> list[str]:
        """Return the names of all types that the region offers: a tenth of the answer that `offered` takes.

        Raises:
            CloudError: EC2 refuses to list them.
        """
        kept: list[str] | None = self._kept.get("every name")
        if kept is None:
            with translate_errors("listing instance types (ec2:DescribeInstanceTypeOfferings)"):
                offers = self._clients.pages(
                    "ec2",
                    "describe_instance_type_offerings",
                    "InstanceTypeOfferings",
                    LocationType="region",
                )
            kept = sorted(offer["InstanceType"] for offer in offers)
            self._kept.put("every name", kept)
        return kept

    def free_tier(self) -> list[InstanceType]:
        """Return the types of the region that an account of AWS's Free plan may launch."""
        filters = [{"Name": "free-tier-eligible", "Values": ["true"]}]
        return [read_type(answer, self._catalog) for answer in self._describe(filters)]

    def zones(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the zones of the region that offer each type, sorted; a type not offered is absent."""
        zones = {name: tuple(listed) for name in names if (listed := self._kept.get(f"zones of {name}"))}
        missing = [name for name in names if name not in zones]
        asked = self._ask_zones(missing) if missing else {}
        for name, listed in asked.items():
            self._kept.put(f"zones of {name}", listed)
        return {**zones, **asked}

    def _ask_zones(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        with translate_errors("looking up zones that offer the types (ec2:DescribeInstanceTypeOfferings)"):
            offers = self._clients.pages(
                "ec2",
                "describe_instance_type_offerings",
                "InstanceTypeOfferings",
                LocationType="availability-zone",
                Filters=[{"Name": "instance-type", "Values": list(names)}],
            )
        zones: dict[str, set[str]] = {}
        for offer in offers:
            zones.setdefault(offer["InstanceType"], set()).add(offer["Location"])
        return {name: tuple(sorted(locations)) for name, locations in zones.items()}

    def _describe(self, filters: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Filter instead of naming types: EC2 refuses the whole call for one unknown name."""
        with translate_errors("describing instance types (ec2:DescribeInstanceTypes)"):
            return self._clients.pages("ec2", "describe_instance_types", "InstanceTypes", Filters=filters)

    def _put_type(self, answer: Mapping[str, Any]) -> None:
        self._kept.put(f"instance type {answer['InstanceType']}", _without_unread(answer))


def _without_unread(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return of a description what `read_type` reads."""
    kept = {field: answer[field] for field in _FIELDS if field in answer}
    network = answer.get("NetworkInfo") or {}
    kept["NetworkInfo"] = {name: network[name] for name in _NETWORK_FIELDS if name in network}
    return kept


def read_type(answer: Mapping[str, Any], catalog: Catalog) -> InstanceType:
    """Read an answer of DescribeInstanceTypes; peaks and instruction sets are the table's."""
    name, processor, vcpu = answer["InstanceType"], answer.get("ProcessorInfo", {}), answer["VCpuInfo"]
    listed = catalog.hardware(name)
    relative = listed or catalog.relative(name)
    sold = answer.get("SupportedUsageClasses") or [*Market]
    return InstanceType(
        name=name,
        status="current" if answer.get("CurrentGeneration", True) else "previous-generation",
        vcpus=vcpu["DefaultVCpus"],
        physical_cores=vcpu.get("DefaultCores", vcpu["DefaultVCpus"]),
        memory_gib=answer["MemoryInfo"]["SizeInMiB"] / 1024,
        cpu_model=relative.cpu_model if relative else processor.get("Manufacturer", ""),
        cpu_isa=relative.cpu_isa if relative else (),
        accelerator=_accelerator(answer, catalog),
        cpu_fp32_tflops=listed.cpu_fp32_tflops if listed else None,
        architectures=tuple(processor.get("SupportedArchitectures") or (X86_64,)),
        network=_network(answer),
        local_disks_gb=answer.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0),
        markets=tuple(market for market in Market if market in sold),
        efa_interfaces=_efa_interfaces(answer),
        network_cards=_network_cards(answer),
        placement_strategies=_placement_strategies(answer),
        free_tier=answer.get("FreeTierEligible"),
        source=SOURCE,
    )


def _accelerator(answer: Mapping[str, Any], catalog: Catalog) -> Accelerator | None:
    """Return the accelerators; a fraction of a GPU counts as one, and has no peak of its own.

    EC2 describes the eighth of an L4 in a g6f.large as Count 0, LogicalGpuCount 1, GpuPartitionSize 0.125.
    """
    kind = next((kind for kind in _DEVICES if answer.get(kind)), None)
    if kind is None:
        return None
    device = answer[kind][_DEVICES[kind]][0]
    share = float(device.get("GpuPartitionSize") or 1)
    listed = catalog.accelerator(device["Name"])
    peaks = listed if share == 1 else None
    return Accelerator(
        name=device["Name"],
        count=int(device.get("LogicalGpuCount") or device["Count"]),
        memory_mib=int(device.get("MemoryInfo", {}).get("SizeInMiB", 0)),
        compute_capability=listed.compute_capability if listed else "",
        fp32_tflops=peaks.fp32_tflops if peaks else None,
        tensor_tflops=peaks.tensor_tflops if peaks else None,
        manufacturer="AWS" if kind == "NeuronInfo" else device.get("Manufacturer", ""),
        share=share,
    )


def _network(answer: Mapping[str, Any]) -> str:
    return str((answer.get("NetworkInfo") or {}).get("NetworkPerformance", ""))


def _efa_interfaces(answer: Mapping[str, Any]) -> int | None:
    """Return the number of EFA interfaces; None in an answer that an earlier dlcloud kept without it."""
    network = answer.get("NetworkInfo") or {}
    if "EfaSupported" not in network:
        return None
    return int(network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 1)) if network["EfaSupported"] else 0


def _network_cards(answer: Mapping[str, Any]) -> tuple[NetworkCard, ...]:
    """Read the network cards. Source: EC2 API reference, NetworkCardInfo."""
    network = answer.get("NetworkInfo") or {}
    every = [_EFA] if network.get("EfaSupported") else []
    return tuple(
        NetworkCard(
            index=card["NetworkCardIndex"],
            takes_efa=_EFA in (card.get("InterfaceTypes") or every),
            interfaces=card.get("MaximumNetworkInterfaces", 1),
        )
        for card in network.get("NetworkCards") or ()
    )


def _placement_strategies(answer: Mapping[str, Any]) -> tuple[str, ...] | None:
    info = answer.get("PlacementGroupInfo")
    return None if info is None else tuple(info.get("SupportedStrategies", ()))
