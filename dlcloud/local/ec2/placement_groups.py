"""Placement groups: the actions that make, show and delete them, and what a launch into one may do.

Source: EC2 user guide, "Placement groups for your Amazon EC2 instances"; EC2 API reference,
CreatePlacementGroup. Importing this imports moto.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, EC2_RESOURCE_TO_PREFIX

from dlcloud.local.ec2.launch_checks import refuse
from dlcloud.local.ec2.reservation_responses import ReservationResponses

KIND, PREFIX = "placement-group", "pg"
EC2_RESOURCE_TO_PREFIX[KIND] = PREFIX
EC2_PREFIX_TO_RESOURCE[PREFIX] = KIND
CLUSTER = "cluster"
_STRATEGIES = (CLUSTER, "partition", "spread")
_FILTERS = {
    "group-arn": "arn",
    "group-name": "name",
    "spread-level": "",
    "state": "state",
    "strategy": "strategy",
}
_HOME = "dlcloud_placement_groups"


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

    def get_tags(self) -> list[dict[str, str]]:
        """Return the tags in the form of moto's objects, for filters."""
        tags = self.backend.tags.get(self.group_id, {})
        return [{"key": key, "value": value} for key, value in tags.items()]

    def describe(self) -> dict[str, Any]:
        """Return the answer of DescribePlacementGroups."""
        tags = [{"Key": tag["key"], "Value": tag["value"]} for tag in self.get_tags()]
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


class PlacementGroupResponses(ReservationResponses):
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
            _refuse_unknown(groups, name)
        passes = self.condition(_FILTERS)
        shown = [
            group
            for group in groups.values()
            if (not names or group.name in names) and (not ids or group.group_id in ids) and passes(group)
        ]
        return ActionResult({"PlacementGroups": [group.describe() for group in shown]})

    def delete_placement_group(self) -> ActionResult:
        """Delete a group; refused while an instance is in it."""
        groups, name = groups_of(self.ec2_backend), str(self.params.get("GroupName"))
        _refuse_unknown(groups, name)
        self.error_on_dryrun()
        if groups[name].living:
            message = f"The placement group '{name}' is in use and may not be deleted."
            raise refuse("InvalidPlacementGroup.InUse", message)
        self.ec2_backend.tags.pop(groups.pop(name).group_id, None)
        return EmptyResult()


def groups_of(backend: Any) -> dict[str, PlacementGroup]:  # noqa: ANN401 - moto's object
    """Return the placement groups of a region by name."""
    groups: dict[str, PlacementGroup] = vars(backend).setdefault(_HOME, {})
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
    _refuse_unknown(groups, name)
    info = INSTANCE_TYPES.get(instance_type, {}).get("PlacementGroupInfo", {})
    if groups[name].strategy not in info.get("SupportedStrategies", ()):
        kind = groups[name].strategy.capitalize()
        message = (
            f"{kind} placement groups are not supported by the '{instance_type}' instance type. Specify a "
            "supported instance type or change the placement group strategy, and try again."
        )
        raise refuse("InvalidParameterCombination", message)
    return groups[name]


def _refuse_unknown(groups: Mapping[str, PlacementGroup], name: str) -> None:
    if name not in groups:
        raise refuse("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
