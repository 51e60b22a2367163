"""DescribeInstances and DescribeInstanceStatus with EC2's filters, and pages of every list."""

import base64
import binascii
import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, ClassVar, cast
from xml.sax.saxutils import escape, quoteattr

from moto.core.common_types import TYPE_RESPONSE
from moto.core.constants import MISSING
from moto.core.responses import ActionContext, ActionResult
from moto.core.serialize import AttributePickerContext, EC2Serializer, XFormedAttributePicker
from moto.core.utils import get_pagination_model, get_value
from moto.ec2.exceptions import EC2ClientError, InvalidParameterCombination
from moto.ec2.responses import EC2Response

from dlcloud.local.api.faults import Visibility
from dlcloud.local.ec2.launch_checks import check_instance_ids, root_device

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


_Lookup = tuple[tuple[str, ...], Callable[[Any], Any] | None]
_DECLARATION = '<?xml version="1.0" encoding="utf-8"?>\n'


class Answer(ActionResult):
    """A result of moto that is serialized by `_Serializer`."""

    def execute_result(self, context: ActionContext) -> TYPE_RESPONSE:
        """Return status, headers and body of the answer."""
        transforms = context.response.RESPONSE_KEY_PATH_TO_TRANSFORMER
        answer = _Serializer(context.operation_model, transforms).serialize(self.result)
        return answer["status_code"], dict(answer["headers"]), answer["body"]


class _Serializer(EC2Serializer):
    """moto's serializer of EC2's answers, with quicker ways to find a member and to write the XML."""

    # botocore has one shape by member and action. An entry: the names of a member in objects of a class, and
    # what changes its value.
    _lookups: dict[tuple[object, type], _Lookup] = {}  # noqa: RUF012 - of the process

    def __init__(self, operation_model: Any, transforms: Mapping[str, Callable[[Any], Any]]) -> None:  # noqa: ANN401
        super().__init__(operation_model)
        self._transforms = transforms

    def get_value(self, value: Any, key: str, shape: Any) -> Any:  # noqa: ANN401 - of moto's object
        """Return the value of a member of an object; None if it has none."""
        lookup = self._lookups.get((shape, type(value)))
        if lookup is None:
            lookup = self._lookups[shape, type(value)] = self._look_up(value, key, shape)
        names, transform = lookup
        for name in names:
            member = get_value(value, name, MISSING)
            if member is not MISSING:
                return transform(member) if transform else member
        return transform(None) if transform else None

    def _look_up(self, value: object, key: str, shape: Any) -> _Lookup:  # noqa: ANN401 - botocore has no types
        context = AttributePickerContext(
            obj=value,
            key=key,
            shape=shape,
            operation_model=self.operation_model,
            service_model=self.service_model,
            key_path=".".join(self.path),
        )
        names = tuple(dict.fromkeys(XFormedAttributePicker().get_possible_keys(context)))
        path = f"{context.key_path}.{key}"
        ends = (transform for end, transform in self._transforms.items() if path.endswith(end))
        return names, next(ends, None)

    def _serialize_body(self, body: Mapping[str, Any]) -> str:
        ((name, content),) = body.items()
        namespace = quoteattr(content.pop("@xmlns"))
        parts = [f"{_DECLARATION}<{name} xmlns={namespace}>"]
        _write(content, parts)
        return "".join([*parts, f"</{name}>"])


def _write(content: Mapping[str, Any], parts: list[str]) -> None:
    """Append the XML of elements by their names; a list repeats its element."""
    for name, value in content.items():
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, dict):
                parts.append(f"<{name}>")
                _write(item, parts)
                parts.append(f"</{name}>")
            else:
                parts.append(f"<{name}>{'' if item is None else escape(str(item))}</{name}>")


# Source: EC2 API reference, MaxResults of each action; elsewhere 1 to 1000.
_SMALLEST_PAGE = dict.fromkeys(
    (
        "DescribeInstances",
        "DescribeInstanceStatus",
        "DescribeInstanceTypes",
        "DescribeInstanceTypeOfferings",
        "DescribeSecurityGroups",
        "DescribeSnapshots",
        "DescribeSubnets",
        "DescribeTags",
        "DescribeVolumes",
        "DescribeVpcs",
    ),
    5,
)
_LARGEST_PAGE = {"DescribeInstanceTypes": 100, "DescribeLaunchTemplates": 200}
_DEFAULT_LARGEST_PAGE = 1000
# Actions that answer in pages without being asked to.
_ALWAYS_PAGED = frozenset({"DescribeInstanceTypes", "DescribeInstanceTypeOfferings"})


class DescribingResponses(EC2Response):
    """moto's EC2 answers with EC2's filters of instances, and with pages; bound to one site by a subclass."""

    visibility: ClassVar[Visibility]

    def describe_instances(self) -> ActionResult:
        """Return the instances that pass every filter, in their reservations, a page of them if asked."""
        self.error_on_dryrun()
        instance_ids = self.params.get("InstanceIds") or []
        if instance_ids and "MaxResults" in self.params:
            raise InvalidParameterCombination(
                "The parameter instancesSet cannot be used with the parameter maxResults"
            )
        if instance_ids:
            check_instance_ids(instance_ids)
            self.ec2_backend.get_multi_instances_by_id(instance_ids)
        passes = self.condition(INSTANCE_FILTERS)
        matching = [
            (reservation, instance)
            for reservation in list(self.ec2_backend.reservations.values())
            for instance in self.visibility.shown(reservation.instances)
            if (not instance_ids or instance.id in instance_ids) and passes(instance)
        ]
        page, token = self.page("DescribeInstances", matching)
        reservations: dict[str, Any] = {}
        for reservation, instance in page:
            if reservation.id not in reservations:
                reservations[reservation.id] = copy.copy(reservation)
                reservations[reservation.id].instances = []
            reservations[reservation.id].instances.append(instance)
        return ActionResult({"Reservations": list(reservations.values()), "NextToken": token})

    def describe_instance_status(self) -> ActionResult:
        """Return the status of the running instances, or of all, that pass every filter."""
        self.error_on_dryrun()
        statuses = self.ec2_backend.describe_instance_status(
            self.params.get("InstanceIds") or [], bool(self.params.get("IncludeAllInstances")), []
        )
        passes = self.condition(STATUS_FILTERS)
        return ActionResult({"InstanceStatuses": [instance for instance in statuses if passes(instance)]})

    def describe_instance_type_offerings(self) -> ActionResult:
        """Return where types are offered, of those that pass every filter."""
        self.error_on_dryrun()
        passes = self.condition({"instance-type": "InstanceType", "location": "Location"})
        offerings = self.ec2_backend.describe_instance_type_offerings(self.params.get("LocationType"), {})
        return ActionResult({"InstanceTypeOfferings": [entry for entry in offerings if passes(entry)]})

    def describe_images(self) -> ActionResult:
        """Return the images as EC2 shows them."""
        images = cast("dict[str, Any]", super().describe_images().result)["Images"]
        return ActionResult({"Images": [_ShownImage(image) for image in images]})

    def condition(self, table: Table) -> Callable[[Any], bool]:
        """Return the condition that the request's filters state.

        Raises:
            EC2ClientError: The table lacks one.
        """
        try:
            return compile_filters(self._filters_from_querystring(), table)  # type: ignore[arg-type]
        except UnknownFilterError as error:
            raise EC2ClientError("InvalidParameterValue", f"The filter '{error}' is invalid") from error

    def page(self, action: str, items: Sequence[Any]) -> tuple[Sequence[Any], str | None]:
        """Return the page of a list that the request asks for, and the token of the next.

        Raises:
            EC2ClientError: The size or the token is none of the action's.
        """
        size = self._page_size(action)
        start = _offset(action, self.params.get("NextToken"))
        end = len(items) if size is None else start + size
        return items[start:end], _token(action, end) if end < len(items) else None

    def serialized(self, action_result: ActionResult) -> TYPE_RESPONSE:
        """Cut the list of an answer into pages where moto gives it whole, then serialize it."""
        action, result = self._get_action(), action_result.result
        key = _paged_lists().get(action)
        is_page = isinstance(result, dict) and (result.get("NextToken") or action == "DescribeInstances")
        if key is None or not isinstance(result, dict) or is_page:
            return super().serialized(Answer(result))
        try:
            items, token = self.page(action, self.visibility.shown(result.get(key) or ()))
        except EC2ClientError as error:
            return self._refuse(error)
        return super().serialized(Answer({**result, key: items, "NextToken": token}))

    def _refuse(self, error: EC2ClientError) -> TYPE_RESPONSE:
        """Serialize an error, as moto's dispatcher does with those of actions."""
        status, headers, body = super().serialized(ActionResult(error))
        headers["status"] = status
        return status, headers, body

    def _page_size(self, action: str) -> int | None:
        """Return how many items a page has; None for all."""
        largest = _LARGEST_PAGE.get(action, _DEFAULT_LARGEST_PAGE)
        if "MaxResults" not in self.params:
            return largest if action in _ALWAYS_PAGED else None
        size, smallest = int(self.params["MaxResults"]), _SMALLEST_PAGE.get(action, 1)
        if size < smallest:
            message = (
                f"Value ( {size} ) for parameter maxResults is invalid. "
                f"Expecting a value greater than {smallest}."
            )
            raise EC2ClientError("InvalidParameterValue", message)
        return min(size, largest)


class _ShownImage:
    """An image of moto with the fields that moto lacks or shows differently."""

    ena_support = True
    platform_details = "Linux/UNIX"
    usage_operation = "RunInstances"

    def __init__(self, image: Any) -> None:  # noqa: ANN401 - moto's object
        self._image = image
        self.block_device_mappings = [root_device(image)]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - an attribute of moto's object
        return getattr(self._image, name)


@cache
def _paged_lists() -> dict[str, str]:
    """Return the member with the list by each action that EC2 answers in pages."""
    return {
        action: config["result_key"]
        for action, config in get_pagination_model("ec2").items()
        if isinstance(config["result_key"], str) and config.get("output_token") == "NextToken"
    }


def _token(action: str, offset: int) -> str:
    """Return the token of the page that begins at an offset."""
    return base64.urlsafe_b64encode(json.dumps([action, offset]).encode()).decode()


def _offset(action: str, token: str | None) -> int:
    if not token:
        return 0
    try:
        owner, offset = json.loads(base64.urlsafe_b64decode(token))
    except (ValueError, TypeError, binascii.Error):
        owner, offset = "", 0
    if owner != action:
        # Source: EC2 API reference, "Error codes": InvalidNextToken.
        raise EC2ClientError("InvalidNextToken", "The specified NextToken is not valid.")
    return int(offset)
