"""Where the local EC2 answers differently from moto: what it refuses, its filters, its pages and its XML.

Each call of EC2 comes through `MendedResponses.call_action`. It first asks `check_call`: an action that
neither reads nor is in `_CHANGES` is refused by its name, and `REFUSALS` has what EC2 refuses and moto takes.
Then the action's own method answers (here, or in the classes of this package that inherit from
`MendedResponses`), and `serialized` cuts its list into pages and writes the XML, in a third of the time that
moto's serializer needs. A filter that is in no table is refused by its name, too: an answer must never be
silently unfiltered.

Codes are those of the EC2 API reference, "Error codes"; of texts marked [from memory] the words may differ.
"""

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
from dlcloud.local.ec2.launch_checks import check_instance_ids, refuse, root_device

Filters = Mapping[str, list[str]]
Table = Mapping[str, str]
_ISO = "%Y-%m-%dT%H:%M:%S.000Z"


def compile_filters(filters: Filters, table: Table) -> Callable[[Any], bool]:
    """Return the condition that filters state.

    Args:
        filters: The values by the filter's name.
        table: The path of the values in an object, by the filter's name; an empty path has no value.

    Raises:
        EC2ClientError: A filter is not in the table.
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
        raise EC2ClientError("UnsupportedOperation", f"The local EC2 does not support the filter '{name}'.")
    path = [part for part in table[name].split(".") if part]
    return lambda item: any(pattern.fullmatch(_text(value)) for value in _values(item, path))


def _expression(value: str) -> str:
    """Return the regular expression of a filter's value."""
    parts = re.findall(r"\\.|.", value, re.DOTALL)
    wildcards = {"*": ".*", "?": "."}
    return "".join(wildcards.get(part, re.escape(part[-1])) for part in parts)


def _tags(item: Any, half: str, key: str | None = None) -> Iterator[str]:  # noqa: ANN401 - moto's object
    """Yield keys or values of the tags of moto's object, or of an answer about it."""
    shown = item["Tags"] if isinstance(item, dict) else item.get_tags()
    for tag in ({name.lower(): text for name, text in tag.items()} for tag in shown):
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


# Filters that dlcloud and its users ask with; another one is refused by its name.
# Source: EC2 API reference, DescribeInstances and DescribeInstanceStatus.
INSTANCE_FILTERS: Table = {
    "architecture": "architecture",
    "availability-zone": "placement.zone",
    "availability-zone-id": "placement.availability_zone_id",
    "capacity-reservation-id": "capacity_reservation_id",
    "client-token": "client_token",
    "dns-name": "public_dns_name",
    "image-id": "image_id",
    "instance-id": "id",
    "instance-lifecycle": "lifecycle",
    "instance-state-code": "state_code",
    "instance-state-name": "state",
    "instance-type": "instance_type",
    "instance.group-id": "security_groups.id",
    "instance.group-name": "security_groups.name",
    "ip-address": "public_ip",
    "key-name": "key_name",
    "launch-time": "launch_time",
    "metadata-options.http-tokens": "metadata_options.http_tokens",
    "placement-group-name": "placement.group_name",
    "private-dns-name": "private_dns_name",
    "private-ip-address": "private_ip",
    "reservation-id": "reservation_id",
    "root-device-name": "root_device_name",
    "spot-instance-request-id": "spot_instance_request_id",
    "state-reason-code": "state_reason.code",
    "subnet-id": "subnet_id",
    "tenancy": "placement.tenancy",
    "vpc-id": "vpc_id",
}
STATUS_FILTERS: Table = {
    "availability-zone": "placement.zone",
    "instance-state-code": "state_code",
    "instance-state-name": "state",
    "instance-status.status": "instance_status.Status",
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


class MendedResponses(EC2Response):
    """moto's EC2 answers with EC2's filters of instances, and with pages; bound to one site by a subclass."""

    visibility: ClassVar[Visibility]

    def call_action(self) -> TYPE_RESPONSE:
        """Answer a call, unless EC2 refuses it."""
        try:
            check_call(self._get_action(), self.params, self.ec2_backend)
        except EC2ClientError as error:
            return self._refuse(error)
        return super().call_action()

    def describe_snapshots(self) -> ActionResult:
        """Return the snapshots of the owners that the request names, or all."""
        result = cast("dict[str, Any]", super().describe_snapshots().result)
        owners = set(self.params.get("OwnerIds") or ())
        if not owners:
            return ActionResult(result)
        accounts = {self.current_account if owner == "self" else owner for owner in owners}
        chosen = [snapshot for snapshot in result["Snapshots"] if snapshot.owner_id in accounts]
        return ActionResult({**result, "Snapshots": chosen})

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
        return compile_filters(self._filters_from_querystring(), table)  # type: ignore[arg-type]

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


_Params = Mapping[str, Any]
_Check = Callable[[_Params, Any], None]

_NOT_FOUND = {
    "i": ("InvalidInstanceID.NotFound", "The instance ID '{}' does not exist"),
    "vol": ("InvalidVolume.NotFound", "The volume '{}' does not exist."),
    "ami": ("InvalidAMIID.NotFound", "The image id '[{}]' does not exist"),
    "snap": ("InvalidSnapshot.NotFound", "The snapshot '{}' does not exist."),
    "vpc": ("InvalidVpcID.NotFound", "The vpc ID '{}' does not exist"),
    "subnet": ("InvalidSubnetID.NotFound", "The subnet ID '{}' does not exist"),
    "sg": ("InvalidGroup.NotFound", "The security group '{}' does not exist"),
}


def _check_tags(params: _Params, _: Any) -> None:  # noqa: ANN401 - moto's backend, here and below
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


REFUSALS: Mapping[str, tuple[_Check, ...]] = {
    "RunInstances": (_check_tags,),
    "CreateFleet": (_check_tags,),
    "CreateTags": (_check_tags, _check_resources),
    "DeleteSecurityGroup": (_check_group_is_free,),
}


_READING = ("Describe", "Get")
_UNTRUE = frozenset({"DescribeSpotInstanceRequests", "DescribeSpotFleetRequests"})
"""What moto would answer, without what is launched here."""
_CHANGES = frozenset(
    {
        *("RunInstances", "TerminateInstances"),
        *("CreateFleet", "DeleteFleets", "CreateLaunchTemplate", "DeleteLaunchTemplate"),
        *("CreateTags", "DeleteTags", "CreateKeyPair", "ImportKeyPair", "DeleteKeyPair"),
        *("CreateImage", "DeregisterImage", "DeleteSnapshot", "DeleteVolume"),
        *("AssociateIamInstanceProfile", "DisassociateIamInstanceProfile"),
        *("CreateCapacityReservation", "CancelCapacityReservation"),
        *("CreatePlacementGroup", "DeletePlacementGroup"),
        *("CreateInstanceConnectEndpoint", "DeleteInstanceConnectEndpoint"),
        *("CreateSecurityGroup", "DeleteSecurityGroup"),
        *("AuthorizeSecurityGroupIngress", "RevokeSecurityGroupIngress"),
        *("AuthorizeSecurityGroupEgress", "RevokeSecurityGroupEgress"),
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
