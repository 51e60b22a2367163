"""What EC2 shows in every answer and moto leaves out, or shows too early: two tables of members.

A key of the first is the end of a member's path in an answer; the value turns what moto has, or None, into
what is shown. The second has what depends on moto's object: its class, the member, and how it is computed.
"""

from collections.abc import Callable, Mapping
from typing import Any

from moto.ec2.models.availability_zones_and_regions import Zone
from moto.ec2.models.elastic_block_store import Volume, VolumeAttachment
from moto.ec2.models.security_groups import SecurityGroupRule

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
