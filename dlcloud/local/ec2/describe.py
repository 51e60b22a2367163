"""DescribeInstances and DescribeInstanceStatus with EC2's filters, and pages of every list."""

import base64
import binascii
import copy
import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, cast

from moto.core.common_types import TYPE_RESPONSE
from moto.core.responses import ActionResult
from moto.core.utils import get_pagination_model
from moto.ec2.exceptions import EC2ClientError, InvalidParameterCombination
from moto.ec2.responses import EC2Response

from dlcloud.local.api.visibility import Visibility
from dlcloud.local.ec2.filters import (
    INSTANCE_FILTERS,
    STATUS_FILTERS,
    Table,
    UnknownFilterError,
    compile_filters,
)
from dlcloud.local.ec2.launch_checks import check_instance_ids, root_device
from dlcloud.local.ec2.serialization import Answer

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
