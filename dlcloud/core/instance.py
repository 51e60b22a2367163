"""Instance types, prices and instances, in the terms of EC2."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from dlcloud.core.remote import Endpoint

SSH_PORT = 22
_ACCELERATED = re.compile(r"p[4-6][a-z-]*\d*\.")


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


def boot_timeout_s(instance_type: str) -> float:
    """Return the seconds in which an instance must have an address and answer over SSH.

    Source: published measurements of metal types, 531 to 792 s, and canonical/pycloudlib, pull request 192,
    which saw more; the time of p4, p5 and p6 is an estimate.
    """
    if ".metal" in instance_type:
        return 1200.0
    return 600.0 if _ACCELERATED.match(instance_type) else 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The accelerators of one instance; TFLOPS are peak and dense, of one of them."""

    name: str
    count: int
    memory_mib: int
    compute_capability: str
    fp32_tflops: float | None
    tensor_tflops: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """Hardware of an instance type, with `status` current, previous-generation or retired."""

    name: str
    status: str
    vcpus: int
    physical_cores: int
    memory_gib: float
    cpu_model: str
    cpu_isa: tuple[str, ...]
    gpu: Gpu | None
    cpu_fp32_tflops: float | None = None
    """Cores times fused multiply-adds times the listed clock: an upper bound."""

    @property
    def retired(self) -> bool:
        """True if EC2 no longer offers the type."""
        return self.status == "retired"

    @property
    def fp32_tflops(self) -> float | None:
        """Peak FP32 TFLOPS of all GPUs, or of the CPU if there is none."""
        if self.gpu is None:
            return self.cpu_fp32_tflops
        return None if self.gpu.fp32_tflops is None else self.gpu.count * self.gpu.fp32_tflops

    @property
    def tensor_tflops(self) -> float | None:
        """Peak dense FP16 TFLOPS of all GPUs' tensor cores; None without any."""
        if self.gpu is None or self.gpu.tensor_tflops is None:
            return None
        return self.gpu.count * self.gpu.tensor_tflops

    @property
    def peak_tflops(self) -> float | None:
        """Peak TFLOPS: of the tensor cores, else FP32."""
        return self.tensor_tflops or self.fp32_tflops


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

    @property
    def fleet_id(self) -> str:
        """The fleet that launched it; empty for none. EC2 itself tags a fleet's instances."""
        return self.tags.get("aws:ec2:fleet-id", "")

    @property
    def alive(self) -> bool:
        """True if it exists and may cost money."""
        return self.state not in {InstanceState.SHUTTING_DOWN, InstanceState.TERMINATED}

    @property
    def ended(self) -> bool:
        """True if it is terminated."""
        return self.state is InstanceState.TERMINATED

    def endpoint(self, user: str) -> Endpoint:
        return Endpoint(instance_id=self.instance_id, host=self.host, port=self.ssh_port, user=user)
