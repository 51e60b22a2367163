"""The VPC, the subnets and the security groups that instances are launched into, with their ways out.

Without `network` in a recipe these are the default subnets of the Region; with it, what the recipe names, by
id or by tag. `planning.networks` judges which of them instances can be reached in.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import translate_errors
from dlcloud.model.errors import CloudError
from dlcloud.model.remote import Access
from dlcloud.planning.networks import FoundNetwork, Subnet

if TYPE_CHECKING:  # pydantic, which most commands never need
    from dlcloud.recipe.network import Network

READY = ("create-complete", "update-in-progress", "update-complete")
"""States of an endpoint that carries connections. Source: aws-cli, customizations/ec2instanceconnect."""

ROUTE_TARGETS = (
    *("GatewayId", "NatGatewayId", "TransitGatewayId"),
    *("NetworkInterfaceId", "VpcPeeringConnectionId"),
)
"""What a route leads to, by its kind. Source: EC2 API reference, Route."""

NO_BLOCK = {"InvalidAction", "UnsupportedOperation"}
"""The answers of a region that has no VPC Block Public Access yet."""

log = logging.getLogger(__name__)


def find_network(clients: Clients, network: "Network") -> FoundNetwork:
    """Return what a recipe's network is in the account.

    Args:
        clients: The region's.
        network: The recipe's; without VPC and subnets it is the default VPC.

    Raises:
        CloudError: There is no such thing, or the parts are of different VPCs.
    """
    vpc_id = _vpc_id(clients, network)
    listed = _subnets(clients, network, vpc_id)
    vpcs = sorted({str(subnet["VpcId"]) for subnet in listed})
    if len(vpcs) > 1:
        raise CloudError(f"network.subnets are of several VPCs: {', '.join(vpcs)}", "set network.vpc to one")
    vpc_id = vpcs[0]
    ways_out = _ways_out(clients, [vpc_id])
    is_blocked = _blocked(clients)
    subnets: dict[str, Subnet] = {}
    for subnet in sorted(listed, key=lambda subnet: -int(subnet["AvailableIpAddressCount"])):
        subnets.setdefault(
            subnet["AvailabilityZone"],
            Subnet(
                zone_id=subnet.get("AvailabilityZoneId", ""),
                subnet_id=subnet["SubnetId"],
                assigns_addresses=bool(subnet["MapPublicIpOnLaunch"]),
                reaches_internet=_has_gateway(ways_out(subnet)) and not is_blocked(subnet),
                is_blocked=_has_gateway(ways_out(subnet)) and is_blocked(subnet),
                has_nat=any(way and not way.startswith("igw-") for way in ways_out(subnet) or ()),
            ),
        )
    return FoundNetwork(
        vpc_id=vpc_id,
        subnets=dict(sorted(subnets.items())),
        groups=_groups(clients, network, vpc_id),
        cidrs=_cidrs(clients, vpc_id) if network.is_private else (),
        endpoints=_endpoints(clients, vpc_id) if network.access is Access.INSTANCE_CONNECT_ENDPOINT else (),
    )


def default_subnets(clients: Clients) -> dict[str, Subnet]:
    """Return the default subnets by zone; where routes are denied, they are taken to reach the internet."""
    with translate_errors("looking up the default subnets (ec2:DescribeSubnets)"):
        listed = clients.get("ec2").describe_subnets(
            Filters=[{"Name": "default-for-az", "Values": ["true"]}]
        )["Subnets"]
    ways: list[list[str] | None] = [None] * len(listed)
    try:
        if listed:
            ways_out = _ways_out(clients, sorted({subnet["VpcId"] for subnet in listed}))
            ways = [ways_out(subnet) for subnet in listed]
    except CloudError as error:
        log.warning("routes are not checked: %s", error.message)
    is_blocked = _blocked(clients)
    return {
        subnet["AvailabilityZone"]: Subnet(
            zone_id=subnet.get("AvailabilityZoneId", ""),
            assigns_addresses=bool(subnet["MapPublicIpOnLaunch"]),
            reaches_internet=(targets is None or _has_gateway(targets)) and not is_blocked(subnet),
            is_blocked=(targets is None or _has_gateway(targets)) and is_blocked(subnet),
        )
        for subnet, targets in zip(listed, ways, strict=True)
    }


def _ways_out(clients: Clients, vpc_ids: Sequence[str]) -> Callable[[Mapping[str, Any]], list[str] | None]:
    """Return what says where the default routes of a subnet lead, by id; None if no table is known.

    Source: VPC user guide, "Route tables"; a subnet without its own table has the main one of its VPC.
    """
    with translate_errors("looking up routes (ec2:DescribeRouteTables)"):
        tables = clients.get("ec2").describe_route_tables(
            Filters=[{"Name": "vpc-id", "Values": list(vpc_ids)}]
        )["RouteTables"]
    targets: dict[str, list[str]] = {}
    for table in tables:
        ways = [
            next((str(route[key]) for key in ROUTE_TARGETS if route.get(key)), "")
            for route in table["Routes"]
            if route.get("DestinationCidrBlock") == "0.0.0.0/0" and route.get("State") == "active"
        ]
        for association in table["Associations"]:
            targets[association.get("SubnetId") or table["VpcId"]] = ways
    return lambda subnet: targets.get(subnet["SubnetId"], targets.get(subnet["VpcId"]))


def _has_gateway(targets: Sequence[str] | None) -> bool:
    return any(way.startswith("igw-") for way in targets or ())


def _blocked(clients: Clients) -> Callable[[Mapping[str, Any]], bool]:
    """Return what says of a subnet whether VPC Block Public Access keeps connections from outside out.

    Where the question is denied, as by policies of earlier versions, it is taken to be off, as it is by
    default. Source: VPC user guide, "Block public access to VPCs and subnets".
    """
    try:
        with translate_errors(
            "looking up VPC Block Public Access (ec2:DescribeVpcBlockPublicAccessOptions)", ignore=NO_BLOCK
        ):
            options = clients.get("ec2").describe_vpc_block_public_access_options()
            mode = options["VpcBlockPublicAccessOptions"].get("InternetGatewayBlockMode", "off")
            if mode == "off":
                return lambda _: False
            open_arns = {
                exclusion["ResourceArn"]
                for exclusion in clients.get("ec2").describe_vpc_block_public_access_exclusions()[
                    "VpcBlockPublicAccessExclusions"
                ]
                if exclusion.get("InternetGatewayExclusionMode") == "allow-bidirectional"
                and exclusion.get("State") in {"create-complete", "update-complete"}
            }
            # The ARNs of excluded things end as .../vpc-ID or .../subnet-ID.
            names = {arn.rpartition("/")[2] for arn in open_arns}
            return lambda subnet: not names & {str(subnet["VpcId"]), str(subnet["SubnetId"])}
    except CloudError as error:
        log.warning("VPC Block Public Access is not checked: %s", error.message)
    return lambda _: False


def _vpc_id(clients: Clients, network: "Network") -> str:
    """Return the id of the VPC; empty if the subnets say it."""
    if not network.vpc and network.subnets:
        return ""
    names = [network.vpc] if network.vpc else []
    filters = [] if network.vpc else [{"Name": "is-default", "Values": ["true"]}]
    with translate_errors("looking up the VPC (ec2:DescribeVpcs)"):
        answer = clients.get("ec2").describe_vpcs(Filters=[*_filters(names, "vpc-id"), *filters])
    ids = [str(vpc["VpcId"]) for vpc in answer["Vpcs"]]
    if len(ids) != 1:
        ids_text = f"{len(ids)} VPCs: {', '.join(ids)}" if ids else "no VPC"
        raise CloudError(
            f"{network.vpc or 'the default VPC'} names {ids_text}", "set network.vpc to the id of one"
        )
    return ids[0]


def _subnets(clients: Clients, network: "Network", vpc_id: str) -> list[dict[str, Any]]:
    """Return each subnet once: a name may be of several, and several names of one."""
    of_vpc = [{"Name": "vpc-id", "Values": [vpc_id]}] if vpc_id else []
    subnets: dict[str, dict[str, Any]] = {}
    for name in network.subnets or [""]:
        filters = [*of_vpc, *_filters([name] if name else [], "subnet-id")]
        with translate_errors("looking up subnets (ec2:DescribeSubnets)"):
            listed = clients.get("ec2").describe_subnets(Filters=filters)["Subnets"]
        if not listed:
            where = f" in {vpc_id}" if vpc_id else f" in {clients.region}"
            raise CloudError(
                f"there is no subnet {name}".rstrip() + where, "aws ec2 describe-subnets lists them"
            )
        subnets |= {subnet["SubnetId"]: subnet for subnet in listed}
    return list(subnets.values())


def _groups(clients: Clients, network: "Network", vpc_id: str) -> tuple[str, ...]:
    ids: dict[str, None] = {}
    for name in network.security_groups:
        filters = [{"Name": "vpc-id", "Values": [vpc_id]}, *_filters([name], "group-id")]
        with translate_errors("looking up security groups (ec2:DescribeSecurityGroups)"):
            listed = clients.get("ec2").describe_security_groups(Filters=filters)["SecurityGroups"]
        if not listed:
            message = f"there is no security group {name} in {vpc_id}"
            raise CloudError(message, "a group is of one VPC: aws ec2 describe-security-groups lists them")
        ids |= dict.fromkeys(str(group["GroupId"]) for group in listed)
    return tuple(ids)


def _cidrs(clients: Clients, vpc_id: str) -> tuple[str, ...]:
    """Return the address ranges of a VPC, from which its endpoints and bastions connect."""
    with translate_errors("looking up the VPC (ec2:DescribeVpcs)"):
        (vpc,) = clients.get("ec2").describe_vpcs(VpcIds=[vpc_id])["Vpcs"]
    ranges: Iterable[dict[str, Any]] = vpc.get("CidrBlockAssociationSet") or [vpc]
    return tuple(str(entry["CidrBlock"]) for entry in ranges)


def _endpoints(clients: Clients, vpc_id: str) -> tuple[str, ...]:
    """Return the ids of the endpoints from whose own addresses connections come, which the VPC's ranges have.

    Raises:
        CloudError: All that are there keep the client's address, which no group of dlcloud's admits.
    """
    ready = ready_endpoints(clients, vpc_id)
    usable = [endpoint for endpoint in ready if not endpoint.get("PreserveClientIp")]
    if ready and not usable:
        names = ", ".join(str(endpoint["InstanceConnectEndpointId"]) for endpoint in ready)
        raise CloudError(
            f"{names} preserves client addresses (PreserveClientIp), and instances admit the VPC's only",
            "aws ec2 create-instance-connect-endpoint --no-preserve-client-ip --subnet-id SUBNET, or another "
            "network.access in the recipe",
        )
    return tuple(str(endpoint["InstanceConnectEndpointId"]) for endpoint in usable)


def ready_endpoints(clients: Clients, vpc_id: str) -> list[dict[str, Any]]:
    """Return a VPC's EC2 Instance Connect Endpoints that carry connections."""
    filters = [{"Name": "vpc-id", "Values": [vpc_id]}, {"Name": "state", "Values": list(READY)}]
    with translate_errors("looking up endpoints (ec2:DescribeInstanceConnectEndpoints)"):
        return clients.pages(
            "ec2", "describe_instance_connect_endpoints", "InstanceConnectEndpoints", Filters=filters
        )


def _filters(names: Sequence[str], id_filter: str) -> list[dict[str, Any]]:
    """Return the filters of names that are ids, or `tag:KEY=VALUE`."""
    filters = []
    for name in names:
        tag, equals, value = name.partition("=")
        filters.append({"Name": tag if equals else id_filter, "Values": [value if equals else name]})
    return filters
