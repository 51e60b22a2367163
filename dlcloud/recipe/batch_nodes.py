"""A job over several nodes as a multi-node parallel job of AWS Batch.

Sources: AWS Batch User Guide, "Multi-node parallel jobs", "Environment variables" and "Compute environment
considerations for MNP", read 2026-11.
"""

import re
from collections.abc import Mapping
from typing import Any

from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import Recipe

PORT = 29500
"""The port of the head; every node has a network interface of its own, so that any port is free."""

_OURS = re.compile(r"\bbenchmarks\.distributed\.[a-z_]+")
_UNKNOWN = ("DLCLOUD_NODE_ADDRESSES", "DLCLOUD_HOST_FILE", "DLCLOUD_SECRET", "TF_CONFIG")
"""What a node of AWS Batch does not know: it knows its own index, the count, and the head's address."""

NODE_VARIABLES = f"""RANK=$AWS_BATCH_JOB_NODE_INDEX WORLD_SIZE=$AWS_BATCH_JOB_NUM_NODES
MASTER_ADDR=${{AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS:-$(hostname -i | cut -d' ' -f1)}}
export RANK WORLD_SIZE MASTER_ADDR MASTER_PORT={PORT} LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 NODE_RANK=$RANK
export PET_NNODES=$WORLD_SIZE PET_NODE_RANK=$RANK PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT={PORT}
export DLCLOUD_NODE_RANK=$RANK DLCLOUD_NODES=$WORLD_SIZE DLCLOUD_HEAD_ADDRESS=$MASTER_ADDR
"""
"""Shell lines: those variables of `dlcloud/benchmarks/nodes/node.py` that AWS Batch can give."""


def refuse_unknown_nodes(recipe: Recipe) -> None:
    """Refuse a job over nodes whose command needs what AWS Batch does not have.

    Raises:
        RecipeError: It runs a program of dlcloud's, or reads a variable that no node has there.
    """
    command = recipe.workload.command or ""
    if program := _OURS.search(command):
        raise RecipeError(
            f"{recipe.name} runs dlcloud's own program {program[0]}, which a job of AWS Batch does not have",
            f"dlcloud up {recipe.name} runs it; a program of your own is in workload.files",
        )
    if needed := next((name for name in _UNKNOWN if name in command), None):
        raise RecipeError(
            f"{recipe.name} reads {needed}; a node of AWS Batch knows its index, the count and the head",
            f"dlcloud up {recipe.name}",
        )


def node_properties(recipe: Recipe, container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nodes of a job definition: all alike, the first the main node."""
    count = recipe.instances.maximum
    return {
        "numNodes": count,
        "mainNode": 0,
        "nodeRangeProperties": [{"targetNodes": f"0:{count - 1}", "container": dict(container)}],
    }


def node_notes(recipe: Recipe) -> list[str]:
    """Return in what a multi-node parallel job differs from a job of dlcloud."""
    notes = [
        f"{recipe.instances.maximum} nodes: nodeOverrides of submit-job change their number",
        f"not set there: {', '.join(_UNKNOWN)}, and ports but MASTER_PORT",
        "the job ends with rank 0; a failure of another node neither ends it nor retries it",
        "give the compute environment a cluster placement group, in one Availability Zone",
    ]
    if "spot" in recipe.instances.market:
        notes.append("on demand: AWS Batch runs no multi-node parallel job on Spot Instances")
    return notes
