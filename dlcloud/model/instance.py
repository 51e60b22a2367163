"""EC2's instance types, prices, images and instances, the hardware found on them, and their boot times."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Any

from dlcloud.model.remote import Endpoint
from dlcloud.model.untrusted import count_or_none, number_or_none

KEY_ACTIONS = (
    "kms:CreateGrant",
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)
"""What the launch of an encrypted disk needs on a customer managed key.
Source: EBS user guide, "Requirements for Amazon EBS encryption"."""
KEY_REASONS = ("client.internalerror", "client.invalidkmskey")
"""How the reasons of ends begin that EC2 gives where it may not use a key, in any case: AWS spells both
`InvalidKmsKey` and `InvalidKMSKey`."""
FEWEST_SCORED_TYPES = 3
"""With fewer types EC2's spot placement score is always low, and says nothing.
Source: EC2 API reference, GetSpotPlacementScores, InstanceTypes."""
SSH_PORT = 22
X86_64 = "x86_64"
ARM64 = "arm64"
SLOW_BOOT_S = 44.0
"""What plans, deadlines and simulations assume of a boot: the 90th percentile, from call to first line
of user data, of 70 starts of 73 on EC2, April 2025 to August 2026; the median is 31 s. Source: Spare Cores,
sc-inspector-data (CC BY-SA 4.0), state of 2026-08-22."""
SLOWEST_BOOT_S = 865.0
"""The longest of them; the next one took 570 s, all others at most 50 s."""
_ACCELERATED = re.compile(r"(p[4-6][a-z-]*\d*|trn\d[a-z]*|dl\d[a-z]*|inf2)\.")
_BURSTABLE = re.compile(r"t(?!1\.)\d+[a-z]*\.")


def is_burstable(instance_type: str) -> bool:
    """True for a type that is slowed down when its CPU credits are spent.

    Source: EC2 API reference, UnlimitedSupportedInstanceFamily: t2, t3, t3a, t4g, t8i, t9g.
    """
    return _BURSTABLE.match(instance_type) is not None


class Market(StrEnum):
    """The purchasing option of an instance."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"


class InstanceState(StrEnum):
    """The life cycle of an instance; all states but the last two may cost money.

    Source: EC2 user guide, "Amazon EC2 instance state changes".
    """

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    SHUTTING_DOWN = "shutting-down"
    TERMINATED = "terminated"


def spot_key_grant(region: str, key: str) -> str:
    """Return what EC2 Spot needs to launch from disks that a customer managed key encrypts.

    Source: EC2 user guide, "Service-linked role for Spot Instance requests".
    """
    return (
        f"EC2 Spot needs a grant on it, once: aws kms create-grant --region {region} --key-id {key}"
        " --grantee-principal $(aws iam get-role --role-name AWSServiceRoleForEC2Spot --query Role.Arn"
        " --output text) --operations Decrypt Encrypt GenerateDataKey GenerateDataKeyWithoutPlaintext"
        " CreateGrant DescribeKey ReEncryptFrom ReEncryptTo"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """The GPUs, or other accelerators, of one instance; TFLOPS are peak and dense, of one of them."""

    name: str
    count: int
    memory_mib: int
    compute_capability: str = ""
    fp32_tflops: float | None = None
    tensor_tflops: float | None = None
    manufacturer: str = "NVIDIA"
    share: float = 1.0
    """The part of a whole GPU that each of them is: 0.125 on a g6f.large."""

    @property
    def is_gpu(self) -> bool:
        """True for a GPU; False for Inferentia, Trainium, an FPGA or the like."""
        return self.manufacturer in {"NVIDIA", "AMD"}

    @property
    def is_neuron(self) -> bool:
        """True for Inferentia and Trainium, which AWS's Neuron SDK programs."""
        return self.manufacturer == "AWS"

    def describe(self) -> str:
        """Return as of `4x A10G`, or `1/8 L4`."""
        return f"{self.count}x {self.name}" if self.share == 1 else f"{Fraction(self.share)} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCard:
    """A network card of an instance type; `interfaces` is how many it holds."""

    index: int
    takes_efa: bool
    interfaces: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """Hardware of an instance type, with `status` current, previous-generation or retired.

    `cpu_isa` is empty where the instruction sets are not known.
    """

    name: str
    status: str
    vcpus: int
    physical_cores: int
    memory_gib: float
    cpu_model: str
    cpu_isa: tuple[str, ...]
    accelerator: Accelerator | None = None
    cpu_fp32_tflops: float | None = None
    """Cores times fused multiply-adds times the listed clock: an upper bound."""
    architectures: tuple[str, ...] = (X86_64,)
    network: str = ""
    """As of `Up to 12.5 Gigabit`; empty if unknown."""
    local_disks_gb: int = 0
    """Size of all instance store volumes."""
    markets: tuple[Market, ...] = (Market.ON_DEMAND, Market.SPOT)
    efa_interfaces: int | None = None
    """Elastic Fabric Adapters that it can have, 0 for none; None if unknown."""
    free_tier: bool | None = None
    """True if an account of AWS's Free plan may launch it; None if unknown."""
    network_cards: tuple[NetworkCard, ...] = ()
    """Empty if unknown."""
    placement_strategies: tuple[str, ...] | None = None
    """The strategies of placement groups that take it; None if unknown."""
    source: str = "bundled table"

    @property
    def gpu(self) -> Accelerator | None:
        """The GPUs; None without any."""
        return self.accelerator if self.accelerator is not None and self.accelerator.is_gpu else None

    @property
    def has_nvidia_gpu(self) -> bool:
        return self.accelerator is not None and self.accelerator.manufacturer == "NVIDIA"

    @property
    def architecture(self) -> str:
        """The architecture of images that the type boots; of two, the 64-bit one."""
        return self.architectures[-1]

    @property
    def retired(self) -> bool:
        """True if EC2 no longer offers the type."""
        return self.status == "retired"

    @property
    def fp32_tflops(self) -> float | None:
        """Peak FP32 TFLOPS of all accelerators, or of the CPU if there is none."""
        accelerator = self.accelerator
        if accelerator is None:
            return self.cpu_fp32_tflops
        return None if accelerator.fp32_tflops is None else accelerator.count * accelerator.fp32_tflops

    @property
    def tensor_tflops(self) -> float | None:
        """Peak dense FP16 TFLOPS of all accelerators; None without any."""
        if self.accelerator is None or self.accelerator.tensor_tflops is None:
            return None
        return self.accelerator.count * self.accelerator.tensor_tflops

    @property
    def peak_tflops(self) -> float | None:
        """Peak TFLOPS: of the tensor cores, else FP32."""
        return self.tensor_tflops or self.fp32_tflops

    def describe(self) -> str:
        """Return vCPUs, memory, accelerators, architecture, local disks and network in a line."""
        parts = [f"{self.vcpus} vCPUs", f"{self.memory_gib:g} GiB", *self.architectures]
        if self.accelerator is not None:
            parts.insert(2, self.accelerator.describe())
        if self.local_disks_gb:
            parts.append(f"{self.local_disks_gb} GB of local disks")
        return ", ".join([*parts, *([self.network] if self.network else [])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of an hour of one instance type in one region, with its date and source.

    `zone` is empty for a price that holds in all of them.
    """

    instance_type: str
    region: str
    market: Market
    hourly_usd: Decimal
    as_of: datetime
    source: str
    zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A machine image, resolved."""

    image_id: str
    name: str
    root_device: str
    snapshot_gib: int = 0
    """Size of the root volume's snapshot: no volume may be smaller. 0 if unknown."""
    architecture: str = ""
    """As of `x86_64` or `arm64`; empty if unknown."""
    snapshot_ids: Sequence[str] = field(default=(), compare=False)
    encrypted: bool = False
    """A snapshot of it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance, as EC2 last described it. `host` and `private_host` are empty until it has an address.

    The launcher reaches it at `host`, the cluster's other instances at `private_host`.
    """

    instance_id: str
    instance_type: str
    market: Market
    zone: str
    state: InstanceState
    state_reason: str
    launched_at: datetime
    host: str = ""
    ssh_port: int = SSH_PORT
    tags: Mapping[str, str] = field(default_factory=dict)
    ended_at: datetime | None = None
    """Its end, if EC2 reports it; billing ends with it."""
    private_host: str = ""
    reservation_id: str = ""
    """The Capacity Reservation that it runs in; empty for none."""

    @property
    def fleet_id(self) -> str:
        """The fleet that launched it; empty for none. EC2 itself tags a fleet's instances."""
        return self.tags.get("aws:ec2:fleet-id", "")

    @property
    def alive(self) -> bool:
        """True if it exists and may cost money."""
        return self.state not in {InstanceState.SHUTTING_DOWN, InstanceState.TERMINATED}

    @property
    def interrupted(self) -> bool:
        """True if EC2 took it back. Source: EC2 API reference, StateReason."""
        return self.state_reason.startswith("Server.SpotInstanceTermination")

    @property
    def ended(self) -> bool:
        """True if it is terminated."""
        return self.state is InstanceState.TERMINATED

    @property
    def end_hint(self) -> str:
        """What to do about the reason of its end; empty where nothing is known."""
        if not self.state_reason.lower().startswith(KEY_REASONS):
            return ""
        if self.market is not Market.SPOT:
            return f"if the default EBS key is your own, allow these credentials {', '.join(KEY_ACTIONS)}"
        region = self.zone.rstrip("abcdefghijklmnopqrstuvwxyz")
        key = f"$(aws ec2 get-ebs-default-kms-key-id --region {region} --query KmsKeyId --output text)"
        return f"if the default EBS key is your own, {spot_key_grant(region, key)}"

    def endpoint(self, user: str) -> Endpoint:
        return Endpoint(instance_id=self.instance_id, host=self.host, port=self.ssh_port, user=user)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The hardware that a run ran on, as its program reported it."""

    cpu_model: str = "unknown CPU"
    physical_cores: int | None = None
    logical_cpus: int | None = None
    cpu_flags: tuple[str, ...] = ()
    memory_gib: float | None = None
    gpus: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """A short name: the GPUs if there are any, else the CPU with its cores."""
        if self.gpus:
            return f"{len(self.gpus)}x {self.gpus[0]}"
        return (
            self.cpu_model
            if self.physical_cores is None
            else f"{self.cpu_model}, {self.physical_cores} cores"
        )


def hardware_of(record: Mapping[str, Any]) -> Hardware:
    """Read the hardware of a `start` record; what is of a wrong type is unknown."""
    hardware = record.get("hardware")
    if not isinstance(hardware, dict):
        return Hardware()
    return Hardware(
        cpu_model=str(hardware.get("cpu_model") or "unknown CPU"),
        physical_cores=count_or_none(hardware.get("physical_cores")),
        logical_cpus=count_or_none(hardware.get("logical_cpus")),
        cpu_flags=tuple(map(str, _items(hardware.get("cpu_flags")))),
        memory_gib=number_or_none(hardware.get("memory_gib")),
        gpus=tuple(
            str(gpu.get("name", "GPU") if isinstance(gpu, dict) else gpu)
            for gpu in _items(hardware.get("gpus"))
        ),
    )


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def boot_timeout_s(instance_type: str) -> float:
    """Return the seconds in which an instance must have an address and answer over SSH.

    Source: published measurements of metal types, 531 to 792 s, and canonical/pycloudlib, pull request 192,
    which saw more; the time of p4, p5, p6, dl1, inf2 and trn is an estimate.
    """
    if ".metal" in instance_type:
        return 1200.0
    return 600.0 if _ACCELERATED.match(instance_type) else 300.0


def describe_slow_boot(hourly_usd: Decimal | None, waited_s: float) -> str:
    """Return the price of either: of waiting for an instance, or of another one in its place.

    An instance that is not there at the time-out of its type is given up, as another one costs less than to
    wait on: of the measured boots that took longer than 50 s, both took 10 minutes or more.

    Args:
        hourly_usd: Its price; None if it is not known.
        waited_s: For how long it has been waited for, which is paid.
    """
    longer_s = max(0.0, SLOWEST_BOOT_S - waited_s)
    if hourly_usd is None:
        return f"the slowest measured boot takes {longer_s:.0f} s more, another instance {SLOW_BOOT_S:.0f} s"
    seconds = (waited_s, longer_s, max(60.0, SLOW_BOOT_S))  # the first minute is billed whole
    paid, more, other = (hourly_usd * Decimal(s) / 3600 for s in seconds)
    return (
        f"{paid:.3f} USD so far; to wait for a boot as slow as the slowest measured one costs {more:.3f} USD "
        f"more, another instance {other:.3f} USD"
    )
