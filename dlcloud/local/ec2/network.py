"""The network of launches: the default VPC, Instance Connect Endpoints and placement groups.

`check_network` and `has_public_address` are asked by each launch; the two classes answer the actions that
make, show and delete endpoints and groups. Source: EC2 API reference; EC2 user guide, "EC2 Instance Connect
Endpoint" and "Placement groups"; VPC user guide, "Default VPC components".
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend, ec2_backends
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, EC2_RESOURCE_TO_PREFIX

from dlcloud.local.ec2.images import ImageResponses
from dlcloud.local.ec2.launch_checks import refuse

_EVERYWHERE = "0.0.0.0/0"


class NetworkedBackend(EC2Backend):
    """moto's EC2 of a region, whose default VPC has a route to the internet.

    Source: VPC user guide, "Default VPC components".
    """

    # moto looks for a backend's paths next to the module that its class was made in.
    __module__ = EC2Backend.__module__

    def create_default_vpc(self) -> Any:  # noqa: ANN401 - moto's object
        vpc = super().create_default_vpc()
        self.default_vpc = vpc
        gateway = self.create_internet_gateway()
        self.attach_internet_gateway(gateway.id, vpc.id)
        (table,) = self.describe_route_tables(filters={"vpc-id": vpc.id})
        self.create_route(table.id, _EVERYWHERE, gateway_id=gateway.id)
        return vpc


def check_network(backend: Any, request: Mapping[str, Any]) -> None:  # noqa: ANN401 - moto's object
    """Refuse a launch without a network, or with one that is stated twice.

    Args:
        backend: moto's EC2 of a region.
        request: NetworkInterfaces, SecurityGroupIds and SubnetId of the launch.

    Raises:
        EC2ClientError: With EC2's code and text.
    """
    cards = request.get("NetworkInterfaces") or ()
    for name, shown in (("SecurityGroupIds", "security groups"), ("SubnetId", "subnet ID")):
        if cards and request.get(name):
            message = (
                f"Network interfaces and an instance-level {shown} may not be specified on the same request"
            )
            raise EC2ClientError("InvalidParameterCombination", message)
    if not request.get("SubnetId") and not any(card.get("SubnetId") for card in cards):
        check_default_vpc(backend)


def check_default_vpc(backend: Any) -> None:  # noqa: ANN401 - moto's object
    """Refuse what needs a default VPC where there is none.

    Raises:
        EC2ClientError: VPCIdNotSpecified.
    """
    if backend.get_default_vpc() is None:
        raise EC2ClientError("VPCIdNotSpecified", "No default VPC for this user")


def has_public_address(instance: Any, cards: Sequence[Mapping[str, Any]]) -> bool:  # noqa: ANN401 - moto's object
    """True if the launch asks for a public address, or does not say and the subnet assigns one.

    Source: VPC user guide, "IP addressing for your VPCs and subnets": the launch overrides the subnet.
    """
    asked = next((card.get("AssociatePublicIpAddress") for card in cards), None)
    if asked is not None:
        return str(asked).lower() == "true"
    return str(instance.nics[0].subnet.map_public_ip_on_launch).lower() == "true"


class PublicAccessResponses(ImageResponses):
    """The answers on VPC Block Public Access: the mode of a region, and what is excluded from it.

    Source: VPC user guide, "Block public access to VPCs and subnets". No packet is dropped for it here.
    """

    def describe_vpc_block_public_access_options(self) -> ActionResult:
        mode = getattr(self.ec2_backend, _BLOCK_MODE, "off")
        return ActionResult({"VpcBlockPublicAccessOptions": {"InternetGatewayBlockMode": mode}})

    def modify_vpc_block_public_access_options(self) -> ActionResult:
        setattr(self.ec2_backend, _BLOCK_MODE, str(self.params["InternetGatewayBlockMode"]))
        return self.describe_vpc_block_public_access_options()

    def create_vpc_block_public_access_exclusion(self) -> ActionResult:
        kind = "vpc" if self.params.get("VpcId") else "subnet"
        resource = self.params.get("VpcId") or self.params.get("SubnetId")
        exclusion = {
            "ExclusionId": f"vpcbpa-exclude-{secrets.token_hex(8)}",
            "InternetGatewayExclusionMode": self.params["InternetGatewayExclusionMode"],
            "ResourceArn": f"arn:aws:ec2:{self.region}:{self.current_account}:{kind}/{resource}",
            "State": "create-complete",
        }
        setattr(self.ec2_backend, _EXCLUSIONS, [*self._exclusions(), exclusion])
        return ActionResult({"VpcBlockPublicAccessExclusion": exclusion})

    def describe_vpc_block_public_access_exclusions(self) -> ActionResult:
        return ActionResult({"VpcBlockPublicAccessExclusions": self._exclusions()})

    def _exclusions(self) -> list[dict[str, Any]]:
        return list(getattr(self.ec2_backend, _EXCLUSIONS, ()))


_BLOCK_MODE, _EXCLUSIONS = "dlcloud_block_mode", "dlcloud_block_exclusions"
MOST_IN_VPC = 1
"""Source: EC2 user guide, "Quotas for EC2 Instance Connect Endpoint"."""
_FILTERS = {
    "availability-zone": "AvailabilityZone",
    "instance-connect-endpoint-id": "InstanceConnectEndpointId",
    "owner-id": "OwnerId",
    "state": "State",
    "subnet-id": "SubnetId",
    "vpc-id": "VpcId",
}
_HOME = "dlcloud_connect_endpoints"


class ConnectEndpointResponses(PublicAccessResponses):
    """The answers on endpoints; bound to one site by a subclass."""

    def create_instance_connect_endpoint(self) -> ActionResult:
        """Make the endpoint of a VPC in one of its subnets; it is ready immediately."""
        subnet_id = str(self.params.get("SubnetId"))
        subnet = self.ec2_backend.get_subnet(subnet_id)
        endpoints = endpoints_of(self.current_account, self.region)
        if sum(entry["VpcId"] == subnet.vpc_id for entry in endpoints.values()) >= MOST_IN_VPC:
            message = f"You have reached the limit of {MOST_IN_VPC} endpoint(s) for VPC {subnet.vpc_id}."
            raise EC2ClientError("InstanceConnectEndpointLimitExceeded", message)
        self.error_on_dryrun()
        endpoint_id = f"eice-{secrets.token_hex(8)}1"
        groups = self.params.get("SecurityGroupIds") or [
            self.ec2_backend.get_security_group_from_name("default", subnet.vpc_id).id
        ]
        specified = self.params.get("TagSpecifications") or ()
        tags = [tag for entry in specified for tag in entry.get("Tags") or ()]
        endpoints[endpoint_id] = {
            "OwnerId": self.current_account,
            "InstanceConnectEndpointId": endpoint_id,
            "InstanceConnectEndpointArn": f"arn:{self.partition}:ec2:{self.region}:{self.current_account}"
            f":instance-connect-endpoint/{endpoint_id}",
            "State": "create-complete",
            "DnsName": f"{endpoint_id}.{secrets.token_hex(4)}.ec2-instance-connect-endpoint.{self.region}"
            ".amazonaws.com",
            "NetworkInterfaceIds": [],
            "VpcId": subnet.vpc_id,
            "AvailabilityZone": subnet.availability_zone,
            "CreatedAt": datetime.now(UTC),
            "SubnetId": subnet_id,
            "PreserveClientIp": str(self.params.get("PreserveClientIp")).lower() == "true",
            "SecurityGroupIds": groups,
            "Tags": tags,
        }
        return ActionResult({"InstanceConnectEndpoint": endpoints[endpoint_id]})

    def describe_instance_connect_endpoints(self) -> ActionResult:
        """Return the endpoints that pass every filter."""
        self.error_on_dryrun()
        endpoints = endpoints_of(self.current_account, self.region)
        ids = self.params.get("InstanceConnectEndpointIds") or []
        for endpoint_id in ids:
            _refuse_unknown(endpoints, endpoint_id)
        passes = self.condition(_FILTERS)
        shown = [entry for name, entry in endpoints.items() if not ids or name in ids]
        return ActionResult({"InstanceConnectEndpoints": [entry for entry in shown if passes(entry)]})

    def delete_instance_connect_endpoint(self) -> ActionResult:
        """Delete an endpoint immediately."""
        endpoints = endpoints_of(self.current_account, self.region)
        endpoint_id = str(self.params.get("InstanceConnectEndpointId"))
        _refuse_unknown(endpoints, endpoint_id)
        self.error_on_dryrun()
        deleted = {**endpoints.pop(endpoint_id), "State": "delete-complete"}
        return ActionResult({"InstanceConnectEndpoint": deleted})


def endpoints_of(account: str, region: str) -> dict[str, dict[str, Any]]:
    """Return the endpoints of a region by id, with the members of EC2's answers."""
    backend = ec2_backends[account][region]
    endpoints: dict[str, dict[str, Any]] = vars(backend).setdefault(_HOME, {})
    return endpoints


def _refuse_unknown(endpoints: dict[str, dict[str, Any]], endpoint_id: str) -> None:
    if endpoint_id not in endpoints:
        message = f"The instance connect endpoint ID '{endpoint_id}' does not exist"
        raise EC2ClientError("InvalidInstanceConnectEndpointId.NotFound", message)


EC2_RESOURCE_TO_PREFIX["placement-group"] = "pg"
EC2_PREFIX_TO_RESOURCE["pg"] = "placement-group"
CLUSTER = "cluster"
_STRATEGIES = (CLUSTER, "partition", "spread")
_GROUP_FILTERS = {
    "group-arn": "GroupArn",
    "group-name": "GroupName",
    "state": "State",
    "strategy": "Strategy",
}
_GROUPS_HOME = "dlcloud_placement_groups"


@dataclass(kw_only=True, eq=False)
class PlacementGroup:
    """A placement group of a region, with the instances that were launched into it."""

    backend: Any
    name: str
    group_id: str
    arn: str
    strategy: str
    state: str = "available"
    members: list[Any] = field(default_factory=list)

    @property
    def living(self) -> list[Any]:
        """The instances that are not terminated."""
        return [instance for instance in self.members if instance.state != "terminated"]

    @property
    def tags(self) -> dict[str, str]:
        return dict(self.backend.tags.get(self.group_id, {}))

    def describe(self) -> dict[str, Any]:
        """Return the answer of DescribePlacementGroups."""
        tags = [{"Key": key, "Value": value} for key, value in self.tags.items()]
        return {
            "GroupName": self.name,
            "GroupId": self.group_id,
            "GroupArn": self.arn,
            "State": self.state,
            "Strategy": self.strategy,
            "Tags": tags,
        }

    def zones(self, zones: Sequence[str]) -> list[str]:
        """Return the zones of a launch that the group allows: a cluster is in one zone."""
        taken = {str(instance.availability_zone) for instance in self.living}
        if self.strategy != CLUSTER or not taken:
            return list(zones)
        allowed = [zone for zone in zones if zone in taken]
        if not allowed:
            # [from memory]: EC2's code; its text is another.
            message = f"The placement group '{self.name}' is in {', '.join(sorted(taken))}."
            raise refuse("InvalidParameterCombination", message)
        return allowed

    def add(self, instances: Sequence[Any]) -> None:
        """Add new instances."""
        self.members += instances
        for instance in instances:
            instance.placement.group_name = self.name
            instance.placement.group_id = self.group_id


class PlacementGroupResponses(ConnectEndpointResponses):
    """The answers on placement groups; bound to one site by a subclass."""

    def create_placement_group(self) -> ActionResult:
        """Make a placement group."""
        groups = groups_of(self.ec2_backend)
        name = str(self.params.get("GroupName") or "")
        strategy = str(self.params.get("Strategy") or CLUSTER)
        if not name:
            raise refuse("MissingParameter", "The request must contain the parameter GroupName")
        if strategy not in _STRATEGIES:
            message = f"Value ({strategy}) for parameter strategy is invalid."
            raise refuse("InvalidParameterValue", message)
        self.error_on_dryrun()
        if name in groups:
            message = f"The placement group '{name}' already exists."
            raise refuse("InvalidPlacementGroup.Duplicate", message)
        group_id = f"pg-{secrets.token_hex(8)}{secrets.choice('0123456789abcdef')}"
        arn = f"arn:{self.partition}:ec2:{self.region}:{self.current_account}:placement-group/{name}"
        specified = self.params.get("TagSpecifications") or ()
        tags = {tag["Key"]: tag.get("Value", "") for entry in specified for tag in entry.get("Tags") or ()}
        if tags:
            self.ec2_backend.create_tags([group_id], tags)
        groups[name] = PlacementGroup(
            backend=self.ec2_backend, name=name, group_id=group_id, arn=arn, strategy=strategy
        )
        return ActionResult({"PlacementGroup": groups[name].describe()})

    def describe_placement_groups(self) -> ActionResult:
        """Return the groups that pass every filter."""
        self.error_on_dryrun()
        groups = groups_of(self.ec2_backend)
        names, ids = self.params.get("GroupNames") or [], self.params.get("GroupIds") or []
        for name in names:
            _refuse_unknown_group(groups, name)
        shown = [
            group.describe()
            for group in groups.values()
            if (not names or group.name in names) and (not ids or group.group_id in ids)
        ]
        return ActionResult({"PlacementGroups": [*filter(self.condition(_GROUP_FILTERS), shown)]})

    def delete_placement_group(self) -> ActionResult:
        """Delete a group; refused while an instance is in it."""
        groups, name = groups_of(self.ec2_backend), str(self.params.get("GroupName"))
        _refuse_unknown_group(groups, name)
        self.error_on_dryrun()
        if groups[name].living:
            message = f"The placement group '{name}' is in use and may not be deleted."
            raise refuse("InvalidPlacementGroup.InUse", message)
        self.ec2_backend.tags.pop(groups.pop(name).group_id, None)
        return EmptyResult()


def groups_of(backend: Any) -> dict[str, PlacementGroup]:  # noqa: ANN401 - moto's object
    """Return the placement groups of a region by name."""
    groups: dict[str, PlacementGroup] = vars(backend).setdefault(_GROUPS_HOME, {})
    return groups


def find_group(backend: Any, request: Mapping[str, Any], instance_type: str) -> PlacementGroup | None:  # noqa: ANN401 - moto's object
    """Return the placement group that a launch names; None if it names none.

    Raises:
        EC2ClientError: It does not exist, or does not take the type.
    """
    name = (request.get("Placement") or {}).get("GroupName")
    if not name:
        return None
    groups = groups_of(backend)
    _refuse_unknown_group(groups, name)
    info = INSTANCE_TYPES.get(instance_type, {}).get("PlacementGroupInfo", {})
    if groups[name].strategy not in info.get("SupportedStrategies", ()):
        kind = groups[name].strategy.capitalize()
        message = (
            f"{kind} placement groups are not supported by the '{instance_type}' instance type. Specify a "
            "supported instance type or change the placement group strategy, and try again."
        )
        raise refuse("InvalidParameterCombination", message)
    return groups[name]


def _refuse_unknown_group(groups: Mapping[str, PlacementGroup], name: str) -> None:
    if name not in groups:
        raise refuse("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
