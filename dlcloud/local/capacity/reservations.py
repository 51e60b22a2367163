"""Capacity Reservations of one site: what they hold, and who runs in them.

Source: EC2 user guide, "Reserve compute capacity with EC2 On-Demand Capacity Reservations"; EC2 API
reference, CapacityReservation.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dlcloud.local.capacity.pools import Pool

LINUX = "Linux/UNIX"


@dataclass(kw_only=True, eq=False)
class Reservation:
    """A Capacity Reservation; `tags` returns those of now."""

    reservation_id: str
    account: str
    region: str
    zone: str
    zone_id: str
    instance_type: str
    total: int
    created_at: datetime
    platform: str = LINUX
    tenancy: str = "default"
    targeted: bool = False
    placement_group_arn: str = ""
    cancelled: bool = False
    tags: Callable[[], Mapping[str, str]] = field(default=dict)

    @property
    def state(self) -> str:
        """Return EC2's word for the state."""
        return "cancelled" if self.cancelled else "active"

    def describe(self, available: int) -> dict[str, Any]:
        """Return the answer of DescribeCapacityReservations."""
        arn = f"arn:aws:ec2:{self.region}:{self.account}:capacity-reservation/{self.reservation_id}"
        answer: dict[str, Any] = {
            "CapacityReservationId": self.reservation_id,
            "CapacityReservationArn": arn,
            "OwnerId": self.account,
            "AvailabilityZone": self.zone,
            "AvailabilityZoneId": self.zone_id,
            "InstanceType": self.instance_type,
            "InstancePlatform": self.platform,
            "Tenancy": self.tenancy,
            "TotalInstanceCount": 0 if self.cancelled else self.total,
            "AvailableInstanceCount": available,
            "EbsOptimized": False,
            "EphemeralStorage": False,
            "State": self.state,
            "StartDate": self.created_at,
            "CreateDate": self.created_at,
            "EndDateType": "unlimited",
            "InstanceMatchCriteria": "targeted" if self.targeted else "open",
            "ReservationType": "default",
            "Tags": [{"Key": key, "Value": value} for key, value in self.tags().items()],
        }
        if self.placement_group_arn:
            answer["PlacementGroupArn"] = self.placement_group_arn
        return answer


class LocalReservations:
    """The reservations of all regions. Methods may be called from any thread.

    Args:
        records: Returns the instances that take capacity: objects with `reservation_id`.
    """

    def __init__(self, records: Callable[[], Iterable[Any]]) -> None:
        self._records = records
        self._lock = threading.Lock()
        self._reservations: dict[str, Reservation] = {}

    def add(self, reservation: Reservation) -> None:
        with self._lock:
            self._reservations[reservation.reservation_id] = reservation

    def of_region(self, region: str) -> list[Reservation]:
        """Return the reservations of a region, the oldest first."""
        with self._lock:
            every = list(self._reservations.values())
        return [reservation for reservation in every if reservation.region == region]

    def find(self, reservation_id: str, region: str) -> Reservation | None:
        return next((one for one in self.of_region(region) if one.reservation_id == reservation_id), None)

    def instances(self, reservation: Reservation) -> list[Any]:
        """Return the instances that run in a reservation."""
        return [r for r in self._records() if r.reservation_id == reservation.reservation_id]

    def available(self, reservation: Reservation) -> int:
        """Return how many instances can still be launched into a reservation."""
        if reservation.cancelled:
            return 0
        return max(0, reservation.total - len(self.instances(reservation)))

    def describe(self, reservation: Reservation) -> dict[str, Any]:
        return reservation.describe(self.available(reservation))

    def open_to(self, instance_type: str, zone: str, *, group_arn: str = "") -> list[Reservation]:
        """Return the open reservations that an instance of a type runs in by itself, where there is room.

        One that was made for a placement group takes instances of that group only.
        """
        with self._lock:
            every = list(self._reservations.values())
        return [
            one
            for one in every
            if (one.instance_type, one.zone, one.tenancy, one.platform)
            == (instance_type, zone, "default", LINUX)
            and not one.targeted
            and one.placement_group_arn == group_arn
            and self.available(one)
        ]

    def idle(self) -> list[Pool]:
        """Return a pool for each instance that a reservation keeps free."""
        with self._lock:
            every = list(self._reservations.values())
        return [
            Pool(instance_type=one.instance_type, zone=one.zone)
            for one in every
            for _ in range(self.available(one))
        ]

    def cancel(self, reservation: Reservation) -> None:
        """Cancel a reservation; its instances run on outside of it."""
        reservation.cancelled = True
        for record in self.instances(reservation):
            record.leave_reservation()
