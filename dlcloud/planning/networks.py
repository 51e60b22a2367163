"""Which network instances are launched into, and whether they can be reached there.

Without `network` in the recipe these are the default subnets (`refuse_network`, `default_network`,
`zones_to_ask`); with it, the subnets that the recipe names (`usable_subnets`, `plan_network`). Both give a
`PlannedNetwork`, which the launch request carries. A network in which no instance could be reached is refused
here: an unreachable instance would be billed until its timer ends it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dlcloud.model.errors import CloudError
from dlcloud.model.remote import Access

if TYPE_CHECKING:  # pydantic, which most commands never need
    from dlcloud.recipe.network import Network

TUNNELS = 20
"""Connections that an endpoint carries at the same time.
Source: EC2 user guide, "Quotas for EC2 Instance Connect Endpoint"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnet:
    """The subnet of a zone: the default one, or the recipe's, whose `subnet_id` is given.

    `assigns_addresses`: instances have a public address without asking for one. `reaches_internet`: its route
    table has an internet gateway, and it is open; True if that is unknown. `is_blocked`: the account's VPC
    Block Public Access closes the gateway. `has_nat`: it has another way out.
    """

    zone_id: str
    assigns_addresses: bool = True
    reaches_internet: bool = True
    subnet_id: str = ""
    has_nat: bool = False
    is_blocked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundNetwork:
    """What a recipe's network turned out to be.

    `subnets` are by zone, one each; `groups` are the ids of the user's own security groups; `cidrs` are the
    VPC's address ranges, and `endpoints` the ids of its EC2 Instance Connect Endpoints that are ready.
    """

    vpc_id: str
    subnets: Mapping[str, Subnet]
    groups: tuple[str, ...] = ()
    cidrs: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNetwork:
    """The network of a plan: subnet ids by zone, the user's own groups, and the way in.

    `public_ip` None leaves it to the subnet. `vpc_id` is empty for the default VPC.
    """

    vpc_id: str = ""
    subnets: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    public_ip: bool | None = None
    access: Access = Access.PUBLIC

    @property
    def has_public_address(self) -> bool:
        """True if instances have a public address."""
        return self.access is Access.PUBLIC or self.public_ip is True

    def describe(self) -> str:
        """Return a line for the plan; empty for the default network."""
        if not self.vpc_id:
            return ""
        subnets = ", ".join(f"{subnet} ({zone})" for zone, subnet in sorted(self.subnets.items()))
        groups = f", groups {', '.join(self.groups)}" if self.groups else ""
        address = "no public addresses" if self.public_ip is False else "public addresses"
        return f"{self.vpc_id}: {subnets}{groups}; {address}; reached by {self.access}"


DEFAULT_NETWORK = PlannedNetwork()


def usable_subnets(network: "Network", resolved: FoundNetwork, zones: Sequence[str]) -> dict[str, Subnet]:
    """Return the subnets that instances can be launched into and reached in, by zone.

    Args:
        network: The recipe's.
        resolved: What it turned out to be.
        zones: Those that the recipe names; none: all.

    Raises:
        CloudError: There is none, or nothing to reach it by.
    """
    asked = {zone: subnet for zone, subnet in resolved.subnets.items() if zone in zones or not zones}
    if not asked:
        raise CloudError(
            f"{resolved.vpc_id} has no subnet in {', '.join(zones)}, but in {', '.join(resolved.subnets)}",
            "change instances.zones or network.subnets in the recipe",
        )
    if network.access is Access.INSTANCE_CONNECT_ENDPOINT and not resolved.endpoints:
        subnet = next(iter(asked.values()))
        raise CloudError(
            f"{resolved.vpc_id} has no EC2 Instance Connect Endpoint that is ready to reach instances",
            f"aws ec2 create-instance-connect-endpoint --subnet-id {subnet.subnet_id}",
        )
    if network.access is not Access.PUBLIC:
        return asked
    reachable = {zone: subnet for zone, subnet in asked.items() if subnet.reaches_internet}
    if not reachable:
        names = ", ".join(subnet.subnet_id for subnet in asked.values())
        _refuse_blocked(names, asked)
        raise CloudError(
            f"{names}: no route to an internet gateway: instances could not be reached by a public address",
            "set network.access in the recipe: instance-connect-endpoint, session-manager or bastion",
        )
    return reachable


def plan_network(network: "Network", resolved: FoundNetwork, subnets: Mapping[str, Subnet]) -> PlannedNetwork:
    """Return the network of a plan on usable subnets; a public address is asked for where access needs it."""
    is_assigned = all(subnet.assigns_addresses for subnet in subnets.values())
    needs_address = network.access is Access.PUBLIC and not is_assigned
    return PlannedNetwork(
        vpc_id=resolved.vpc_id,
        subnets={zone: subnet.subnet_id for zone, subnet in subnets.items()},
        groups=resolved.groups,
        public_ip=True if needs_address else network.public_ip,
        access=network.access,
    )


def as_reachable(subnets: Mapping[str, Subnet]) -> dict[str, Subnet]:
    """Return subnets as those of the default VPC are that need nothing: the way in is settled."""
    return {
        zone: replace(subnet, assigns_addresses=True, reaches_internet=True)
        for zone, subnet in subnets.items()
    }


def describe_network(
    network: "Network", subnets: Mapping[str, Subnet], *, count: int, profile: str
) -> list[str]:
    """Return what a plan warns of: no way out of a subnet, and the limits of the way in."""
    lines = []
    has_address = network.public_ip or (network.public_ip is None and not network.is_private)
    closed = [
        subnet.subnet_id
        for subnet in subnets.values()
        if not subnet.has_nat and not (subnet.reaches_internet and (has_address or subnet.assigns_addresses))
    ]
    if closed:
        lines.append(
            f"no route from {', '.join(closed)} to the internet: packages come from mirrors inside, or an "
            "image that has them (dlcloud image)"
        )
    if network.access is Access.INSTANCE_CONNECT_ENDPOINT:
        lines.append("connections through the endpoint last an hour at most, and are then opened again")
        if count > TUNNELS:
            lines.append(
                f"an endpoint carries {TUNNELS} connections at the same time; {count} instances need more"
            )
    if network.access is Access.SESSION_MANAGER and not profile:
        lines.append(
            "Session Manager needs instances.profile with AmazonSSMManagedInstanceCore, or Default Host "
            "Management in the region"
        )
    return lines


def refuse_network(region: str, subnets: Mapping[str, Subnet] | None, *, named: Sequence[str] = ()) -> None:
    """Refuse a region in which no instance could be reached.

    Args:
        region: The region.
        subnets: Its default subnets by zone; None if unknown.
        named: The zones that the recipe names; none: all.

    Raises:
        CloudError: It has no default subnet, or none with a route to an internet gateway.
    """
    if subnets is None:
        return
    if not subnets:
        raise CloudError(
            f"{region} has no default subnet to launch into: its default VPC was deleted",
            f"aws ec2 create-default-vpc --region {region}",
        )
    asked = [zone for zone in subnets if zone in named or not named]
    if asked and not any(subnets[zone].reaches_internet for zone in asked):
        _refuse_blocked(f"the default subnet of {', '.join(asked)}", {zone: subnets[zone] for zone in asked})
        raise CloudError(
            f"no default subnet of {', '.join(asked)} has a route to an internet gateway: "
            "instances could not be reached",
            f"aws ec2 create-route --region {region} --destination-cidr-block 0.0.0.0/0 "
            "--gateway-id igw-… --route-table-id rtb-…",
        )


def _refuse_blocked(names: str, subnets: Mapping[str, Subnet]) -> None:
    """Refuse subnets that VPC Block Public Access closes.

    Raises:
        CloudError: One of them has no other fault.
    """
    if any(subnet.is_blocked for subnet in subnets.values()):
        raise CloudError(
            f"{names}: VPC Block Public Access closes the internet gateway to connections from outside",
            "set network.access in the recipe: instance-connect-endpoint, session-manager or bastion; or "
            "exclude the VPC: aws ec2 create-vpc-block-public-access-exclusion",
        )


def describe_unfit(subnets: Mapping[str, Subnet] | None) -> list[str]:
    """Return a line for each kind of subnet that launches avoid."""
    faults: dict[str, Callable[[Subnet], bool]] = {
        "assigns no public addresses": lambda subnet: not subnet.assigns_addresses,
        "has no route to an internet gateway": lambda subnet: not subnet.reaches_internet,
    }
    lines = []
    for fault, has_fault in faults.items():
        zones = [zone for zone, subnet in sorted((subnets or {}).items()) if has_fault(subnet)]
        if zones:
            lines.append(f"the default subnet of {', '.join(zones)} {fault}")
    return lines


def default_network(zones: Collection[str], subnets: Mapping[str, Subnet] | None) -> PlannedNetwork:
    """Return the default VPC as instances in these zones use it.

    They ask for a public address if one of the subnets does not assign any.
    """
    lacks = any(not subnets[zone].assigns_addresses for zone in zones if subnets and zone in subnets)
    return PlannedNetwork(public_ip=True if lacks else None)


def zones_to_ask(
    zones: Sequence[str], subnets: Mapping[str, Subnet] | None, *, named: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the zones to ask one by one: the recipe's, or the best ones; ("",) leaves the choice to EC2."""
    asked = [zone for zone in named if zone in zones]
    best = best_zones(asked or zones, subnets)
    avoids = subnets is not None and any(zone in subnets and zone not in best for zone in zones)
    return best if asked or avoids else ("",)


def best_zones(zones: Sequence[str], subnets: Mapping[str, Subnet] | None) -> tuple[str, ...]:
    """Return the zones whose subnets assign public addresses, else those whose instances can ask for one.

    All zones are returned where the subnets are unknown, or none of them can be used.
    """
    if subnets is None:
        return tuple(zones)
    reachable = [zone for zone in zones if zone in subnets and subnets[zone].reaches_internet]
    assigning = [zone for zone in reachable if subnets[zone].assigns_addresses]
    return tuple(assigning or reachable or zones)
