"""What a program knows of the nodes of its job."""

import ipaddress
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..nodes.node import slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job over several nodes, seen from one of them.

    Attributes:
        rank: Of this node; 0 is the head.
        nodes: Their number.
        addresses: By rank, each as the others reach it.
        head_ports: Free TCP ports of the head; the last is for `lifecycle`.
        node_ports: Free TCP ports of this node.
        secret: Of this job alone, shared by its nodes.
        slots: GPUs of this node, or CPUs where it has none.
        folder: For logs and settings, beside the folder in which the command runs.
    """

    rank: int
    nodes: int
    addresses: Sequence[str]
    head_ports: Sequence[int]
    node_ports: Sequence[int]
    secret: str
    slots: int
    folder: Path

    @property
    def is_head(self) -> bool:
        return self.rank == 0

    @property
    def head_address(self) -> str:
        return self.addresses[0]

    @property
    def address(self) -> str:
        return self.addresses[self.rank]

    @property
    def is_on_loopback(self) -> bool:
        """True if the nodes are rehearsed on one machine."""
        return ipaddress.ip_address(self.head_address).is_loopback


def read_job(environment: Mapping[str, str] = os.environ) -> Job:
    """Return the job of this process.

    Raises:
        SystemExit: It was not started by `workload.nodes: all`.
    """
    if "DLCLOUD_NODE_RANK" not in environment:
        raise SystemExit("there are no nodes: run it by a recipe with workload.nodes: all")
    return Job(
        rank=int(environment["DLCLOUD_NODE_RANK"]),
        nodes=int(environment["DLCLOUD_NODES"]),
        addresses=environment["DLCLOUD_NODE_ADDRESSES"].split(","),
        head_ports=_ports(environment["DLCLOUD_HEAD_PORTS"]),
        node_ports=_ports(environment["DLCLOUD_NODE_PORTS"]),
        secret=environment["DLCLOUD_SECRET"],
        slots=slots(),
        folder=Path(environment["DLCLOUD_HOST_FILE"]).parent,
    )


def _ports(text: str) -> list[int]:
    return [int(port) for port in text.split(",")]
