"""Capacity Reservations as EC2 describes them, and the placement groups of clusters."""

from collections.abc import Callable, Mapping
from typing import Any

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import LATE_PAUSES_S, retry_codes, translate_errors
from dlcloud.cloud.compute.requests import tag_specification
from dlcloud.model.cluster import NEW_GROUP, placement_group_name
from dlcloud.planning.reservations import LINUX, CapacityReservation

LIVE = ["active", "scheduled"]
IN_USE = {"InvalidPlacementGroup.InUse"}
"""Also for a moment after the last instance of a group is terminated."""


class Ec2Capacity:
    """Capacity Reservations and placement groups of one region; `pause` waits some seconds."""

    def __init__(self, *, clients: Clients, pause: Callable[[float], None]) -> None:
        self._clients = clients
        self._pause = pause

    def reservations(self) -> list[CapacityReservation]:
        """Return the reservations that can be used, now or later."""
        with translate_errors("listing reservations (ec2:DescribeCapacityReservations)"):
            answers = self._clients.pages(
                "ec2",
                "describe_capacity_reservations",
                "CapacityReservations",
                Filters=[{"Name": "state", "Values": LIVE}],
            )
        return [read_reservation(answer) for answer in answers]

    def create_placement_group(self, cluster_id: str, tags: Mapping[str, str]) -> str:
        """Return the name of a cluster's placement group, made if it is missing."""
        name = placement_group_name(cluster_id)
        with translate_errors(
            f"creating the placement group {name} (ec2:CreatePlacementGroup)",
            ignore={"InvalidPlacementGroup.Duplicate"},
        ):
            self._clients.get("ec2").create_placement_group(
                GroupName=name,
                Strategy=NEW_GROUP,
                TagSpecifications=[tag_specification("placement-group", tags)],
            )
        return name

    def delete_placement_group(self, cluster_id: str) -> None:
        """Delete a cluster's placement group; its instances are terminated, which EC2 may know only later."""
        name = placement_group_name(cluster_id)
        with translate_errors(
            f"deleting the placement group {name} (ec2:DeletePlacementGroup)",
            ignore={"InvalidPlacementGroup.Unknown"},
        ):
            call = self._clients.get("ec2").delete_placement_group
            retry_codes(call, {"GroupName": name}, IN_USE, pauses_s=LATE_PAUSES_S, pause=self._pause)


def read_reservation(answer: Mapping[str, Any]) -> CapacityReservation:
    """Read an answer of DescribeCapacityReservations."""
    return CapacityReservation(
        reservation_id=answer["CapacityReservationId"],
        instance_type=answer["InstanceType"],
        zone=answer["AvailabilityZone"],
        total=answer["TotalInstanceCount"],
        available=answer["AvailableInstanceCount"],
        state=answer["State"],
        is_open=answer.get("InstanceMatchCriteria") == "open",
        is_block=answer.get("ReservationType") == "capacity-block",
        is_interruptible=bool(answer.get("Interruptible")),
        starts_at=answer.get("StartDate"),
        ends_at=answer.get("EndDate"),
        platform=answer.get("InstancePlatform", LINUX),
        tenancy=answer.get("Tenancy", "default"),
        group=str(answer.get("PlacementGroupArn") or "").rpartition("/")[2],
        tags={tag["Key"]: tag["Value"] for tag in answer.get("Tags") or ()},
    )
