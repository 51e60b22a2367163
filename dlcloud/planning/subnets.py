"""Which default subnets instances are launched into, and where there are none that could be reached."""

from collections.abc import Callable, Collection, Mapping, Sequence

from dlcloud.model.errors import CloudError
from dlcloud.planning.networks import PlannedNetwork, Subnet


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
        raise CloudError(
            f"no default subnet of {', '.join(asked)} has a route to an internet gateway: "
            "instances could not be reached",
            f"aws ec2 create-route --region {region} --destination-cidr-block 0.0.0.0/0 "
            "--gateway-id igw-… --route-table-id rtb-…",
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


def best_zones(zones: Sequence[str], subnets: Mapping[str, Subnet] | None) -> tuple[str, ...]:
    """Return the zones whose subnets assign public addresses, else those whose instances can ask for one.

    All zones are returned where the subnets are unknown, or none of them can be used.
    """
    if subnets is None:
        return tuple(zones)
    reachable = [zone for zone in zones if zone in subnets and subnets[zone].reaches_internet]
    assigning = [zone for zone in reachable if subnets[zone].assigns_addresses]
    return tuple(assigning or reachable or zones)


def zones_to_ask(
    zones: Sequence[str], subnets: Mapping[str, Subnet] | None, *, named: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the zones to ask one by one: the recipe's, or the best ones; ("",) leaves the choice to EC2."""
    asked = [zone for zone in named if zone in zones]
    best = best_zones(asked or zones, subnets)
    avoids = subnets is not None and any(zone in subnets and zone not in best for zone in zones)
    return best if asked or avoids else ("",)


def default_network(zones: Collection[str], subnets: Mapping[str, Subnet] | None) -> PlannedNetwork:
    """Return the default VPC as instances in these zones use it.

    They ask for a public address if one of the subnets does not assign any.
    """
    lacks = any(not subnets[zone].assigns_addresses for zone in zones if subnets and zone in subnets)
    return PlannedNetwork(public_ip=True if lacks else None)
