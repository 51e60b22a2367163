"""The variables by which launchers of distributed programs learn of the nodes: rank, addresses, ports."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

PORTS = 7
"""Free TCP ports that each node reserves for a run: one for torch, three as the head, three as a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of a run.

    Attributes:
        address: At which the other nodes reach it.
        slots: Processes that it can run at once: its GPUs, or its vCPUs where it has none.
        ports: PORTS TCP ports that were free a moment ago.
    """

    address: str
    slots: int
    ports: Sequence[int]


def node_environment(rank: int, nodes: Sequence[Node], *, secret: str) -> dict[str, str]:
    """Return the variables of one node.

    `MASTER_ADDR` to `WORLD_SIZE` are those of `torch.distributed`'s `env://`, for one process per node,
    `PET_…` the defaults of torchrun's options, `NODE_RANK` is Lightning's, `TF_CONFIG` TensorFlow's.

    Args:
        rank: Of the node; 0 is the head.
        nodes: All of them, by rank.
        secret: Shared by the nodes of this run alone.
    """
    head, own = nodes[0], nodes[rank]
    master_port, *head_ports = head.ports[:4]
    return {
        "DLCLOUD_NODE_RANK": str(rank),
        "DLCLOUD_NODES": str(len(nodes)),
        "DLCLOUD_NODE_ADDRESS": own.address,
        "DLCLOUD_NODE_ADDRESSES": ",".join(node.address for node in nodes),
        "DLCLOUD_NODE_PORTS": ",".join(map(str, own.ports[4:])),
        "DLCLOUD_HEAD_ADDRESS": head.address,
        "DLCLOUD_HEAD_PORTS": ",".join(map(str, head_ports)),
        "DLCLOUD_SECRET": secret,
        "MASTER_ADDR": head.address,
        "MASTER_PORT": str(master_port),
        "WORLD_SIZE": str(len(nodes)),
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(rank),
        "PET_NNODES": str(len(nodes)),
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": head.address,
        "PET_MASTER_PORT": str(master_port),
        "TF_CONFIG": _tensorflow(rank, nodes),
    }


def host_file_of(nodes: Sequence[Node]) -> str:
    """Return the host file of Open MPI: a line per node, `ADDRESS slots=N`."""
    return "".join(f"{node.address} slots={node.slots}\n" for node in nodes)


def _tensorflow(rank: int, nodes: Sequence[Node]) -> str:
    """Return the cluster of `tf.distribute.MultiWorkerMirroredStrategy`."""
    workers = [f"{node.address}:{node.ports[0]}" for node in nodes]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
