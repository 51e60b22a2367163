"""What EC2 refuses and moto takes: one table of checks by action.

Codes are those of the EC2 API reference, "Error codes"; of texts marked [from memory] the words may differ.
"""

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

from dlcloud.local.ec2.launch_checks import refuse

_Params = Mapping[str, Any]
_Check = Callable[[_Params, Any], None]

_BEHAVIORS = ("stop", "terminate")
# Source: EBS user guide, "Amazon EBS volume types".
_LARGEST_GIB = {"gp2": 16384, "gp3": 65536, "io1": 16384, "io2": 65536, "sc1": 16384, "st1": 16384}
_LARGEST_GIB["standard"] = 1024
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
