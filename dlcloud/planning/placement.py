"""Whether instance types can be in a placement group, and can have an Elastic Fabric Adapter."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dlcloud.model.cluster import NEW_GROUP
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import InstanceType

if TYPE_CHECKING:  # pydantic, which most commands never need
    from dlcloud.recipe.instances import Instances

FABRIC_NEEDS = (
    "EFA needs its driver and libfabric on the image (instances.image): AWS's Deep Learning AMIs have them"
)


def group_name(cluster_id: str) -> str:
    """Return the name of a cluster's own placement group."""
    return f"dlcloud-{cluster_id}"


def check_placement(
    instances: "Instances", offered: Sequence[str], hardware: Mapping[str, InstanceType]
) -> list[str]:
    """Return what a plan notes of EFA.

    Raises:
        CloudError: A type has no EFA, or is in no placement group of the strategy that dlcloud uses.
    """
    for name in offered:
        machine = hardware.get(name)
        strategies = None if machine is None else machine.placement_strategies
        if instances.placement_group == NEW_GROUP and strategies is not None and NEW_GROUP not in strategies:
            raise CloudError(
                f"{name} cannot be in a cluster placement group",
                "change instances.types, or leave instances.placement_group out",
            )
        if instances.efa and machine is not None and machine.efa_interfaces == 0:
            raise CloudError(
                f"{name} has no Elastic Fabric Adapter",
                "change instances.types, or leave instances.efa out; aws ec2 describe-instance-types "
                "--filters Name=network-info.efa-supported,Values=true lists types that have one",
            )
    return [FABRIC_NEEDS] if instances.efa else []


def efa_interfaces(
    instances: "Instances", offered: Sequence[str], hardware: Mapping[str, InstanceType], *, public: bool
) -> int:
    """Return how many EFA interfaces each instance has: one where it needs a public address.

    Source: EC2 user guide, "Assign a public IPv4 address": with one network interface only.
    """
    if not instances.efa:
        return 0
    counts = [machine.efa_interfaces or 1 for name in offered if (machine := hardware.get(name))]
    return 1 if public else min(counts, default=1)
