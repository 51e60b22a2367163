"""Instances near each other: cluster placement groups, and Elastic Fabric Adapters (EFA).

The plan refuses types that cannot have them, and chooses the network interfaces that every type of a fleet
can have. The interfaces go into `MachineSpec`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dlcloud.model.cluster import NEW_GROUP
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import InstanceType, NetworkCard
from dlcloud.planning.launch_request import NetworkInterface

if TYPE_CHECKING:  # pydantic, which most commands never need
    from dlcloud.recipe.instances import Instances

FABRIC_NEEDS = (
    "EFA needs its driver and libfabric on the image (instances.image): AWS's Deep Learning AMIs have them"
)


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


def fabric_interfaces(
    instances: "Instances", offered: Sequence[str], hardware: Mapping[str, InstanceType], *, is_public: bool
) -> tuple[tuple[NetworkInterface, ...], list[str]]:
    """Return the network interfaces of each instance with EFA, and what a plan notes; none without `efa`.

    One EFA to a network card that takes it; all types of a fleet have the same interfaces.
    Source: EC2 user guide, "Assign a public IPv4 address": with one network interface only; "Maximize network
    bandwidth with EFA"; aws-parallelcluster, issue 7143 and pull request 6930.

    Args:
        instances: The recipe's.
        offered: The types that can be launched.
        hardware: Their hardware; a type without is taken for one with a card.
        is_public: Instances have a public address.

    Raises:
        CloudError: EFA needs several interfaces, and a public address forbids them.
    """
    machines = [machine for name in offered if (machine := hardware.get(name))]
    if not instances.efa:
        return (), []
    first = _fabric_interface(0, [_cards(machine) for machine in machines])
    if first is None:  # the first card takes no EFA, but the instance needs an interface there
        first = NetworkInterface(card=0, device=0, kind="interface")
    indexes = sorted(set.intersection(*({*_cards(machine)} for machine in machines)) if machines else ())
    rest = [_fabric_interface(index, [_cards(machine) for machine in machines]) for index in indexes if index]
    most = min((machine.efa_interfaces or 1 for machine in machines), default=1) - first.is_efa
    others = [interface for interface in rest if interface is not None][:most]
    if not is_public or not others:
        return (first, *others), []
    if not first.is_efa:
        raise CloudError(
            f"{', '.join(offered)}: EFA needs network cards after the first, and an instance with several "
            "network interfaces has no public address",
            "set network.access in the recipe (session-manager or instance-connect-endpoint) and leave "
            "network.public_ip out, or leave instances.efa out",
        )
    return (first,), ["one EFA each: an instance with a public address has one network interface"]


def _cards(machine: InstanceType) -> dict[int, NetworkCard]:
    """Return the network cards by index; where they are unknown, as many as there are EFAs."""
    cards = machine.network_cards or [
        NetworkCard(index=index, takes_efa=True, interfaces=2) for index in range(machine.efa_interfaces or 1)
    ]
    return {card.index: card for card in cards}


def _fabric_interface(index: int, machines: Sequence[Mapping[int, NetworkCard]]) -> NetworkInterface | None:
    """Return the EFA on a card that all types have; None where one takes none there.

    Next to the first card, an EFA has device index 1, as it has an address, too; a card for one interface
    takes one without an address, at device index 0.
    """
    cards = [cards[index] for cards in machines]
    if not all(card.takes_efa for card in cards):
        return None
    if index == 0:
        return NetworkInterface(card=0, device=0, kind="efa")
    is_single = any(card.interfaces == 1 for card in cards)
    return NetworkInterface(card=index, device=0 if is_single else 1, kind="efa-only" if is_single else "efa")
