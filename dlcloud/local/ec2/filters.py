"""Filters of EC2's Describe calls over moto's objects: one table per resource, wildcards, tags.

Values are joined by or, filters by and; `*` and `?` are wildcards unless a backslash precedes them.
Source: EC2 API reference, DescribeInstances, DescribeInstanceStatus, DescribeSpotInstanceRequests; EC2 user
guide, "Filter resources".
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

Filters = Mapping[str, list[str]]
Table = Mapping[str, str]
_ISO = "%Y-%m-%dT%H:%M:%S.000Z"


class UnknownFilterError(ValueError):
    """The resource has no such filter."""


def compile_filters(filters: Filters, table: Table) -> Callable[[Any], bool]:
    """Return the condition that filters state.

    Args:
        filters: The values by the filter's name.
        table: The path of the values in an object, by the filter's name; an empty path has no value.

    Raises:
        UnknownFilterError: A filter is not in the table.
    """
    conditions = [_compile(name, values, table) for name, values in filters.items()]
    return lambda item: all(condition(item) for condition in conditions)


def _compile(name: str, values: list[str], table: Table) -> Callable[[Any], bool]:
    pattern = re.compile("|".join(_expression(value) for value in values) or r"(?!)", re.DOTALL)
    if name.startswith("tag:"):
        key = name.removeprefix("tag:")
        return lambda item: any(pattern.fullmatch(value) for value in _tags(item, "value", key))
    if name in ("tag-key", "tag-value"):
        return lambda item: any(pattern.fullmatch(text) for text in _tags(item, name.removeprefix("tag-")))
    if name not in table:
        raise UnknownFilterError(name)
    path = [part for part in table[name].split(".") if part]
    return lambda item: any(pattern.fullmatch(_text(value)) for value in _values(item, path))


def _expression(value: str) -> str:
    """Return the regular expression of a filter's value."""
    parts = re.findall(r"\\.|.", value, re.DOTALL)
    wildcards = {"*": ".*", "?": "."}
    return "".join(wildcards.get(part, re.escape(part[-1])) for part in parts)


def _tags(item: Any, half: str, key: str | None = None) -> Iterator[str]:  # noqa: ANN401 - moto's object
    for tag in item.get_tags():
        if key in (None, tag["key"]):
            yield str(tag[half])


def _values(item: Any, path: list[str]) -> Iterable[Any]:  # noqa: ANN401 - moto's object
    """Return the values at a path of attributes and keys; lists on the way are gone into."""
    if not path:
        return ()
    items = [item]
    for part in path:
        items = [value for one in items for value in _child(one, part) if value not in (None, "")]
    return items


def _child(item: Any, part: str) -> Iterable[Any]:  # noqa: ANN401 - moto's object
    value = item.get(part) if isinstance(item, dict) else getattr(item, part, None)
    value = value() if callable(value) else value
    return value if isinstance(value, (list, tuple, set)) else (value,)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.strftime(_ISO) if isinstance(value, datetime) else str(value)


_METADATA = (
    "http-endpoint",
    "http-protocol-ipv4",
    "http-protocol-ipv6",
    "http-put-response-hop-limit",
    "http-tokens",
    "instance-metadata-tags",
    "state",
)
# Filters on what a local instance never has: they are known, and match nothing.
_NEVER = (
    "affinity",
    "capacity-reservation-specification.capacity-reservation-target.capacity-reservation-resource-group-arn",
    "ipv6-address",
    "network-interface.addresses.association.allocation-id",
    "network-interface.addresses.association.association-id",
    "network-interface.addresses.association.carrier-ip",
    "network-interface.addresses.association.customer-owned-ip",
    "network-interface.association.allocation-id",
    "network-interface.association.association-id",
    "network-interface.association.carrier-ip",
    "network-interface.association.customer-owned-ip",
    "network-interface.deny-all-igw-traffic",
    "network-interface.ipv4-prefixes.ipv4-prefix",
    "network-interface.ipv6-address",
    "network-interface.ipv6-addresses.ipv6-address",
    "network-interface.ipv6-addresses.is-primary-ipv6",
    "network-interface.ipv6-native",
    "network-interface.ipv6-prefixes.ipv6-prefix",
    "network-interface.operator.managed",
    "network-interface.operator.principal",
    "network-interface.outpost-arn",
    "operator.principal",
    "outpost-arn",
    "placement-partition-number",
    "platform",
    "product-code.type",
    "requester-id",
    "tpm-support",
)
_PUBLIC_NAME = "network_interfaces.association.publicDnsName"

INSTANCE_FILTERS: Table = {
    **dict.fromkeys(_NEVER, ""),
    **{f"metadata-options.{name}": f"metadata_options.{name.replace('-', '_')}" for name in _METADATA},
    "architecture": "architecture",
    "availability-zone": "placement.zone",
    "availability-zone-id": "placement.availability_zone_id",
    "block-device-mapping.attach-time": "block_device_mappings.Ebs.attach_time",
    "block-device-mapping.delete-on-termination": "block_device_mappings.Ebs.delete_on_termination",
    "block-device-mapping.device-name": "block_device_mappings.DeviceName",
    "block-device-mapping.status": "block_device_mappings.Ebs.status",
    "block-device-mapping.volume-id": "block_device_mappings.Ebs.volume_id",
    "boot-mode": "boot_mode",
    "capacity-reservation-specification.capacity-reservation-preference": (
        "capacity_reservation_specification.CapacityReservationPreference"
    ),
    "capacity-reservation-id": "capacity_reservation_id",
    "capacity-reservation-specification.capacity-reservation-target.capacity-reservation-id": (
        "capacity_reservation_specification.CapacityReservationTarget.CapacityReservationId"
    ),
    "client-token": "client_token",
    "current-instance-boot-mode": "current_instance_boot_mode",
    "dns-name": "public_dns_name",
    "ebs-optimized": "ebs_optimized",
    "ena-support": "ena_support",
    "enclave-options.enabled": "enclave_options.Enabled",
    "group-id": "security_groups.id",
    "group-name": "security_groups.name",
    "hibernation-options.configured": "hibernation_options.Configured",
    "host-id": "placement.host_id",
    "hypervisor": "hypervisor",
    "iam-instance-profile.arn": "iam_instance_profile.Arn",
    "iam-instance-profile.id": "iam_instance_profile.Id",
    "image-id": "image_id",
    "instance-id": "id",
    "instance-lifecycle": "lifecycle",
    "instance-state-code": "state_code",
    "instance-state-name": "state",
    "instance-type": "instance_type",
    "instance.group-id": "security_groups.id",
    "instance.group-name": "security_groups.name",
    "ip-address": "public_ip",
    "kernel-id": "kernel",
    "key-name": "key_name",
    "launch-index": "ami_launch_index",
    "launch-time": "launch_time",
    "maintenance-options.auto-recovery": "maintenance_options.AutoRecovery",
    "monitoring-state": "monitoring_state",
    "network-interface.addresses.association.ip-owner-id": "network_interfaces.association.ipOwnerId",
    "network-interface.addresses.association.public-dns-name": _PUBLIC_NAME,
    "network-interface.addresses.association.public-ip": "network_interfaces.association.publicIp",
    "network-interface.addresses.primary": "network_interfaces.instance_private_ip_address_list.Primary",
    "network-interface.addresses.private-dns-name": "private_dns_name",
    "network-interface.addresses.private-ip-address": (
        "network_interfaces.instance_private_ip_address_list.PrivateIpAddress"
    ),
    "network-interface.association.ip-owner-id": "network_interfaces.association.ipOwnerId",
    "network-interface.association.public-dns-name": _PUBLIC_NAME,
    "network-interface.association.public-ip": "network_interfaces.association.publicIp",
    "network-interface.attachment.attach-time": "network_interfaces.attach_time",
    "network-interface.attachment.attachment-id": "network_interfaces.attachment_id",
    "network-interface.attachment.delete-on-termination": "network_interfaces.delete_on_termination",
    "network-interface.attachment.device-index": "network_interfaces.device_index",
    "network-interface.attachment.instance-id": "network_interfaces.attachment.instance_id",
    "network-interface.attachment.instance-owner-id": "network_interfaces.attachment.instance_owner_id",
    "network-interface.attachment.network-card-index": "network_interfaces.attachment.network_card_index",
    "network-interface.attachment.status": "network_interfaces.attachment.status",
    "network-interface.availability-zone": "network_interfaces.availability_zone",
    "network-interface.description": "network_interfaces.description",
    "network-interface.group-id": "network_interfaces.group_set.id",
    "network-interface.group-name": "network_interfaces.group_set.name",
    "network-interface.mac-address": "network_interfaces.mac_address",
    "network-interface.network-interface-id": "network_interfaces.id",
    "network-interface.owner-id": "network_interfaces.owner_id",
    "network-interface.private-dns-name": "private_dns_name",
    "network-interface.private-ip-address": "network_interfaces.private_ip_address",
    "network-interface.public-dns-name": "public_dns_name",
    "network-interface.requester-id": "network_interfaces.requester_id",
    "network-interface.requester-managed": "network_interfaces.requester_managed",
    "network-interface.source-dest-check": "network_interfaces.source_dest_check",
    "network-interface.status": "network_interfaces.status",
    "network-interface.subnet-id": "network_interfaces.subnet_id",
    "network-interface.tag-key": "network_interfaces.get_tags.key",
    "network-interface.tag-value": "network_interfaces.get_tags.value",
    "network-interface.vpc-id": "network_interfaces.vpc_id",
    "network-performance-options.bandwidth-weighting": "network_performance_options.BandwidthWeighting",
    "operator.managed": "operator.Managed",
    "owner-id": "owner_id",
    "placement-group-name": "placement.group_name",
    "platform-details": "platform_details",
    "private-dns-name": "private_dns_name",
    "private-dns-name-options.enable-resource-name-dns-a-record": (
        "private_dns_name_options.EnableResourceNameDnsARecord"
    ),
    "private-dns-name-options.enable-resource-name-dns-aaaa-record": (
        "private_dns_name_options.EnableResourceNameDnsAAAARecord"
    ),
    "private-dns-name-options.hostname-type": "private_dns_name_options.HostnameType",
    "private-ip-address": "private_ip",
    "product-code": "product_codes",
    "ramdisk-id": "ramdisk",
    "reason": "state_transition_reason",
    "reservation-id": "reservation_id",
    "root-device-name": "root_device_name",
    "root-device-type": "root_device_type",
    "source-dest-check": "source_dest_check",
    "spot-instance-request-id": "spot_instance_request_id",
    "state-reason-code": "state_reason.code",
    "state-reason-message": "state_reason.message",
    "subnet-id": "subnet_id",
    "tenancy": "placement.tenancy",
    "usage-operation": "usage_operation",
    "usage-operation-update-time": "launch_time",
    "virtualization-type": "virtualization_type",
    "vpc-id": "vpc_id",
}

STATUS_FILTERS: Table = {
    **dict.fromkeys(
        (
            "event.code",
            "event.description",
            "event.instance-event-id",
            "event.not-after",
            "event.not-before",
            "event.not-before-deadline",
            "operator.principal",
        ),
        "",
    ),
    "application-status.status": "instance_status.Status",
    "attached-ebs-status.status": "instance_status.Status",
    "availability-zone": "placement.zone",
    "availability-zone-id": "placement.availability_zone_id",
    "instance-state-code": "state_code",
    "instance-state-name": "state",
    "instance-status.reachability": "instance_status.Details.Status",
    "instance-status.status": "instance_status.Status",
    "operator.managed": "operator.Managed",
    "system-status.reachability": "system_status.Details.Status",
    "system-status.status": "system_status.Status",
}
