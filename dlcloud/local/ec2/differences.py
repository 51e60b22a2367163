"""Where moto differs from EC2 in an answer: what EC2 refuses, what it shows, and which actions are supported.

Each call of EC2 comes through `MendedResponses.call_action`, which asks `check_call` first. `REFUSALS` has
what EC2 refuses and moto takes, `MEMBERS` and `COMPUTED` what EC2 shows and moto leaves out; an action that
is neither a reading one nor in `_CHANGES` is refused by its name.
Codes are those of the EC2 API reference, "Error codes"; of texts marked [from memory] the words may differ.
"""

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any, cast

from moto.core.common_types import TYPE_RESPONSE
from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.availability_zones_and_regions import Zone
from moto.ec2.models.elastic_block_store import Volume, VolumeAttachment
from moto.ec2.models.security_groups import SecurityGroupRule

from dlcloud.local.ec2.describe import DescribingResponses
from dlcloud.local.ec2.launch_checks import refuse

_Params = Mapping[str, Any]
_Check = Callable[[_Params, Any], None]

_BEHAVIORS = ("stop", "terminate")
# Source: EBS user guide, "Amazon EBS volume types".
_LARGEST_GIB = {
    "gp2": 16384,
    "gp3": 65536,
    "io1": 16384,
    "io2": 65536,
    "sc1": 16384,
    "st1": 16384,
    "standard": 1024,
}
_TAG_FILTERS = ("key", "resource-id", "resource-type", "tag-key", "tag-value", "value")
_NOT_FOUND = {
    "i": ("InvalidInstanceID.NotFound", "The instance ID '{}' does not exist"),
    "vol": ("InvalidVolume.NotFound", "The volume '{}' does not exist."),
    "ami": ("InvalidAMIID.NotFound", "The image id '[{}]' does not exist"),
    "snap": ("InvalidSnapshot.NotFound", "The snapshot '{}' does not exist."),
    "vpc": ("InvalidVpcID.NotFound", "The vpc ID '{}' does not exist"),
    "subnet": ("InvalidSubnetID.NotFound", "The subnet ID '{}' does not exist"),
    "sg": ("InvalidGroup.NotFound", "The security group '{}' does not exist"),
}


def _check_count(params: _Params, _: Any) -> None:  # noqa: ANN401 - moto's backend, here and below
    """RunInstances starts one for MinCount=0."""
    if int(params.get("MinCount") or 0) < 1:
        # [from memory]
        raise refuse(
            "InvalidParameterValue", "Value (0) for parameter minCount is invalid. It must be at least 1."
        )


def _check_behavior(params: _Params, _: Any) -> None:  # noqa: ANN401
    """RunInstances takes any word."""
    value = params.get("InstanceInitiatedShutdownBehavior")
    if value is not None and value not in _BEHAVIORS:
        message = f"Value ({value}) for parameter instanceInitiatedShutdownBehavior is invalid."
        raise refuse("InvalidParameterValue", message)


def _check_sizes(params: _Params, _: Any) -> None:  # noqa: ANN401
    """RunInstances takes volumes of any size."""
    for mapping in params.get("BlockDeviceMappings") or ():
        _check_volume(mapping.get("Ebs") or {}, default="gp3")


def _check_volume(volume: Mapping[str, Any], *, default: str) -> None:
    kind = str(volume.get("VolumeType") or default)
    largest = _LARGEST_GIB.get(kind)
    if largest is None:
        message = f"Unsupported volume type '{kind}' for volume creation."
        raise refuse("UnknownVolumeType", message)
    if int(volume.get("Size") or volume.get("VolumeSize") or 0) > largest:
        # [from memory]
        message = f"Volume size is too large for volume type {kind}; its maximum is {largest} GiB."
        raise refuse("InvalidParameterValue", message)


def _check_address(params: _Params, backend: Any) -> None:  # noqa: ANN401
    """RunInstances takes any private address."""
    address, subnet_id = params.get("PrivateIpAddress"), params.get("SubnetId")
    if not address:
        return
    vpc = backend.get_default_vpc()
    networks = [backend.get_subnet(subnet_id).cidr_block] if subnet_id else [vpc.cidr_block] if vpc else []
    if not any(ipaddress.ip_address(str(address)) in ipaddress.ip_network(network) for network in networks):
        message = f"Address {address} does not fall within the subnet's address range"
        raise refuse("InvalidParameterValue", message)


def _check_tags(params: _Params, _: Any) -> None:  # noqa: ANN401
    """CreateTags and launches take AWS's own prefix."""
    specifications = params.get("TagSpecifications") or ()
    tags = [
        *(params.get("Tags") or ()),
        *(tag for entry in specifications for tag in entry.get("Tags") or ()),
    ]
    if any(str(tag.get("Key", "")).lower().startswith("aws:") for tag in tags):
        raise refuse("InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")


def _check_resources(params: _Params, backend: Any) -> None:  # noqa: ANN401
    """CreateTags keeps tags of what does not exist."""
    for resource in params.get("Resources") or ():
        kind = str(resource).partition("-")[0]
        if kind in _NOT_FOUND and not _exists(backend, kind, str(resource)):
            code, text = _NOT_FOUND[kind]
            raise refuse(code, text.format(resource))


def _exists(backend: Any, kind: str, resource: str) -> bool:  # noqa: ANN401
    if kind == "i":
        return any(i.id == resource for r in list(backend.reservations.values()) for i in r.instances)
    by_parent = {"subnet": backend.subnets, "sg": backend.groups}.get(kind)
    if by_parent is not None:
        return any(resource in group for group in by_parent.values())
    tables = {"vol": backend.volumes, "ami": backend.amis, "snap": backend.snapshots, "vpc": backend.vpcs}
    return resource in tables[kind]


def _check_regions(params: _Params, backend: Any) -> None:  # noqa: ANN401
    """DescribeRegions leaves unknown names out."""
    offered = {region.name for region in backend.describe_regions()}
    unknown = [name for name in params.get("RegionNames") or () if name not in offered]
    if unknown:
        raise refuse("InvalidParameterValue", f"Invalid region names: [{', '.join(unknown)}]")


def _check_tag_filters(params: _Params, _: Any) -> None:  # noqa: ANN401
    """DescribeTags passes over filters that it does not know."""
    for entry in params.get("Filters") or ():
        name = str(entry.get("Name"))
        if name not in _TAG_FILTERS and not name.startswith("tag:"):
            raise refuse("InvalidParameterValue", f"The filter '{name}' is invalid")


def _check_group_is_free(params: _Params, backend: Any) -> None:  # noqa: ANN401
    """DeleteSecurityGroup deletes groups of instances and of rules."""
    name = params.get("GroupId") or params.get("GroupName")
    group = backend.get_security_group_by_name_or_id(name) if name else None
    if group is not None and _is_used(backend, group):
        raise refuse("DependencyViolation", f"resource {group.id} has a dependent object")


def _is_used(backend: Any, group: Any) -> bool:  # noqa: ANN401
    living = (i for r in list(backend.reservations.values()) for i in r.instances if i.state != "terminated")
    if any(group.id == member.id for instance in living for member in instance.security_groups):
        return True
    others = [other for groups in backend.groups.values() for other in groups.values() if other is not group]
    return any(
        source.get("GroupId") == group.id
        for other in others
        for rule in other.ingress_rules
        for source in [rule.source_group or {}]
    )


def _check_subnet_is_free(params: _Params, backend: Any) -> None:  # noqa: ANN401
    """DeleteSubnet deletes that of running instances."""
    subnet_id = params.get("SubnetId")
    living = (i for r in list(backend.reservations.values()) for i in r.instances if i.state != "terminated")
    if any(instance.subnet_id == subnet_id for instance in living):
        message = f"The subnet '{subnet_id}' has dependencies and cannot be deleted."
        raise refuse("DependencyViolation", message)


def _check_change(params: _Params, _: Any) -> None:  # noqa: ANN401
    """ModifyInstanceAttribute changes the type and the user data of a running instance."""
    for name in ("InstanceType", "UserData"):
        if params.get(name) is not None or str(params.get("Attribute") or "").lower() == name.lower():
            message = f"The instance '{params.get('InstanceId')}' is not in the 'stopped' state."
            raise refuse("IncorrectInstanceState", message)


REFUSALS: Mapping[str, tuple[_Check, ...]] = {
    "RunInstances": (_check_count, _check_behavior, _check_sizes, _check_address, _check_tags),
    "CreateFleet": (_check_tags,),
    "CreateTags": (_check_tags, _check_resources),
    "DeleteSecurityGroup": (_check_group_is_free,),
    "DeleteSubnet": (_check_subnet_is_free,),
    "DescribeRegions": (_check_regions,),
    "DescribeTags": (_check_tag_filters,),
    "ModifyInstanceAttribute": (_check_change,),
}


_READING = ("Describe", "Get")
_UNTRUE = frozenset({"DescribeSpotInstanceRequests", "DescribeSpotFleetRequests"})
"""What moto would answer, without what is launched here."""
_CHANGES = frozenset(
    {
        *("RunInstances", "TerminateInstances", "RebootInstances", "ModifyInstanceAttribute"),
        *("CreateFleet", "DeleteFleets", "CreateLaunchTemplate", "DeleteLaunchTemplate"),
        *("CreateTags", "DeleteTags", "CreateKeyPair", "ImportKeyPair", "DeleteKeyPair"),
        *("CreateImage", "DeregisterImage", "DeleteSnapshot", "DeleteVolume"),
        *("AssociateIamInstanceProfile", "DisassociateIamInstanceProfile"),
        *("CreateCapacityReservation", "ModifyCapacityReservation", "CancelCapacityReservation"),
        *("CreatePlacementGroup", "DeletePlacementGroup"),
        *("CreateInstanceConnectEndpoint", "DeleteInstanceConnectEndpoint"),
        *("CreateSecurityGroup", "DeleteSecurityGroup"),
        *("AuthorizeSecurityGroupIngress", "RevokeSecurityGroupIngress", "ModifySecurityGroupRules"),
        *("AuthorizeSecurityGroupEgress", "RevokeSecurityGroupEgress"),
        *("CreateManagedPrefixList", "ModifyManagedPrefixList", "DeleteManagedPrefixList"),
        *("CreateDefaultVpc", "CreateVpc", "ModifyVpcAttribute", "DeleteVpc"),
        *("CreateSubnet", "ModifySubnetAttribute", "DeleteSubnet"),
        *("CreateNetworkInterface", "DeleteNetworkInterface"),
        *("CreateRouteTable", "AssociateRouteTable", "DisassociateRouteTable", "DeleteRouteTable"),
        *("CreateRoute", "DeleteRoute", "CreateVpcEndpoint", "DeleteVpcEndpoints"),
        *("ModifyVpcBlockPublicAccessOptions", "CreateVpcBlockPublicAccessExclusion"),
        *("CreateInternetGateway", "AttachInternetGateway"),
        *("DetachInternetGateway", "DeleteInternetGateway"),
    }
)
"""The supported actions that change something: those that dlcloud calls, and what its networks need."""


def check_call(action: str, params: _Params, backend: Any) -> None:  # noqa: ANN401 - moto's backend
    """Refuse a call that EC2 refuses.

    Raises:
        EC2ClientError: With EC2's code.
    """
    if action in _UNTRUE or not (action in _CHANGES or action.startswith(_READING)):
        raise refuse("UnsupportedOperation", f"The local EC2 does not support {action}.")
    for check in REFUSALS.get(action, ()):
        check(params, backend)


_GP3_MIBPS = 125
_Change = Callable[[Any], Any]


def _or(default: object) -> _Change:
    """Show a value where moto has none."""
    return lambda value: default if value is None else value


def _always(value: object) -> _Change:
    return lambda _: value


MEMBERS: Mapping[str, _Change] = {
    "Volume.SnapshotId": _or(""),
    "Volume.MultiAttachEnabled": _or(False),
    "AvailabilityZone.OptInStatus": _or("opt-in-not-required"),
    "RouteTable.PropagatingVgws": _or([]),
    "VpcEndpoint.VpcEndpointType": _or("Gateway"),
    # What has just been made is not there yet; the next description has it.
    "CreateVpc.CreateVpcResult.Vpc.State": _always("pending"),
}


def _ends_with_instance(attachment: Any) -> bool:  # noqa: ANN401 - moto's object
    """Return whether a volume is deleted with its instance, which the instance's block device says."""
    device = attachment.instance.block_device_mapping.get(attachment.device)
    return bool(device is not None and device.delete_on_termination)


def _throughput(volume: Any) -> int | None:  # noqa: ANN401 - moto's object
    given = vars(volume).get("throughput")
    return given or (_GP3_MIBPS if volume.volume_type == "gp3" else None)


COMPUTED: tuple[tuple[type, str, Callable[[Any], object]], ...] = (
    (VolumeAttachment, "delete_on_termination", _ends_with_instance),
    (Volume, "throughput", _throughput),
    (Zone, "group_name", lambda zone: f"{zone.region_name}-zg-1"),
    (Zone, "network_border_group", lambda zone: zone.region_name),
    (SecurityGroupRule, "group_owner_id", lambda rule: rule.owner_id),
)


def add_members() -> None:
    """Give moto's classes the computed members; what moto sets itself is kept for them."""
    for kind, name, compute in COMPUTED:
        setattr(kind, name, property(compute, _keeper(name)))


def _keeper(name: str) -> Callable[[Any, object], None]:
    def keep(self: Any, value: object) -> None:  # noqa: ANN401 - moto's object
        vars(self)[name] = value

    return keep


class MendedResponses(DescribingResponses):
    """moto's answers, after the checks of `refusals` and with the members of `members`."""

    RESPONSE_KEY_PATH_TO_TRANSFORMER = {  # noqa: RUF012 - moto declares it of instances
        **DescribingResponses.RESPONSE_KEY_PATH_TO_TRANSFORMER,
        **MEMBERS,
    }

    def call_action(self) -> TYPE_RESPONSE:
        """Answer a call, unless EC2 refuses it."""
        try:
            check_call(self._get_action(), self.params, self.ec2_backend)
        except EC2ClientError as error:
            return self._refuse(error)
        return super().call_action()

    def authorize_security_group_ingress(self) -> ActionResult:
        """Answer with the rules of all permissions, not of the last alone."""
        self.error_on_dryrun()
        rules: list[Any] = []
        for arguments in self._process_rules_from_querystring():
            rules += self.ec2_backend.authorize_security_group_ingress(**arguments)[0]
        return ActionResult({"Return": True, "SecurityGroupRules": rules})

    def revoke_security_group_ingress(self) -> ActionResult:
        """Answer with the rules that are no more."""
        group = self.ec2_backend.get_security_group_by_name_or_id(
            self.params.get("GroupId") or self.params.get("GroupName")
        )
        before = [] if group is None else list(group.ingress_rules)
        result = cast("dict[str, Any]", super().revoke_security_group_ingress().result)
        left = {rule.id for rule in group.ingress_rules} if group is not None else set()
        revoked = [_shown_revoked(rule) for rule in before if rule.id not in left]
        return ActionResult({**result, "RevokedSecurityGroupRules": revoked})

    def describe_snapshots(self) -> ActionResult:
        """Return the snapshots of the owners that the request names, or all."""
        result = cast("dict[str, Any]", super().describe_snapshots().result)
        owners = set(self.params.get("OwnerIds") or ())
        if not owners:
            return ActionResult(result)
        accounts = {self.current_account if owner == "self" else owner for owner in owners}
        chosen = [snapshot for snapshot in result["Snapshots"] if snapshot.owner_id in accounts]
        return ActionResult({**result, "Snapshots": chosen})


def _shown_revoked(rule: Any) -> dict[str, Any]:  # noqa: ANN401 - moto's object
    shown = {
        "SecurityGroupRuleId": rule.id,
        "GroupId": rule.group_id,
        "IsEgress": rule.is_egress,
        "IpProtocol": rule.ip_protocol,
        "FromPort": rule.from_port,
        "ToPort": rule.to_port,
        "CidrIpv4": rule.ip_range.get("CidrIp"),
        "CidrIpv6": rule.ip_range.get("CidrIpv6"),
        "PrefixListId": rule.prefix_list_id,
        "ReferencedGroupId": rule.source_group.get("GroupId"),
    }
    return {name: value for name, value in shown.items() if value is not None}
