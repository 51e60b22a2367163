"""Which reservation the instances of a launch run in, by its CapacityReservationSpecification.

Source: EC2 API reference, CapacityReservationSpecification; EC2 user guide, "Launch instances into an
existing Capacity Reservation" and "Launch instances using Capacity Blocks". Importing this imports moto.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlcloud.local.capacity.reservations import LINUX, LocalReservations, Reservation
from dlcloud.local.ec2.launch_checks import refuse

_PREFERENCES = ("capacity-reservations-only", "open", "none")
_RESERVATION_ID = re.compile(r"cr-([0-9a-f]{8}|[0-9a-f]{17})")
# Source: terraform-provider-aws, pull request 35745.
_EXCEEDED = (
    "The requested reservation does not have sufficient compatible and available capacity for this request."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationChoice:
    """What a launch says of reservations; `target` None: none is named."""

    reservations: LocalReservations
    instance_type: str
    preference: str = "open"
    target: Reservation | None = None
    group_arn: str = ""

    def room(self, zone: str) -> int:
        """Return how many instances the reservations of the choice take in a zone."""
        return sum(self.reservations.available(one) for one in self._takers(zone))

    @property
    def is_only(self) -> bool:
        """True if no instance may run outside of a reservation."""
        return self.target is not None or self.preference == "capacity-reservations-only"

    def zones(self, zones: Sequence[str]) -> list[str]:
        """Return the zones of a launch that the choice allows."""
        if self.target is None:
            return list(zones)
        if self.target.zone not in zones:
            raise exceeded()
        return [self.target.zone]

    def assign(self, instances: Sequence[Any], zone: str) -> None:
        """Let new instances run in the reservations, as far as there is room."""
        shown: dict[str, Any] = {"CapacityReservationPreference": self.preference}
        if self.target is not None:
            shown = {"CapacityReservationTarget": {"CapacityReservationId": self.target.reservation_id}}
        free = [one for one in self._takers(zone) for _ in range(self.reservations.available(one))]
        for number, instance in enumerate(instances):
            instance.capacity_reservation_specification = shown
            if number < len(free):
                instance.capacity_reservation_id = free[number].reservation_id

    def _takers(self, zone: str) -> list[Reservation]:
        if self.target is not None:
            return [self.target] if self.target.zone == zone else []
        if self.preference == "none":
            return []
        return self.reservations.open_to(self.instance_type, zone, group_arn=self.group_arn)


def exceeded() -> Exception:
    """Return the refusal of a reservation that is full, or not for such instances."""
    return refuse("ReservationCapacityExceeded", _EXCEEDED)


def read_choice(
    request: Mapping[str, Any],
    reservations: LocalReservations,
    *,
    instance_type: str,
    region: str,
    group_arn: str = "",
) -> ReservationChoice:
    """Return what RunInstances, or a launch template, says of reservations.

    Raises:
        EC2ClientError: It makes no sense, or the reservation is not there, or not for such instances.
    """
    specification = request.get("CapacityReservationSpecification") or {}
    market = (request.get("InstanceMarketOptions") or {}).get("MarketType") or ""
    preference = specification.get("CapacityReservationPreference") or ""
    if market not in ("", "spot"):
        raise refuse("UnsupportedOperation", f"The local EC2 has no market {market}.")
    named = specification.get("CapacityReservationTarget") or {}
    if preference and preference not in _PREFERENCES:
        # [from memory]: EC2's code; its text is another.
        raise refuse("InvalidParameterValue", f"{preference} is no Capacity Reservation preference.")
    if named.get("CapacityReservationResourceGroupArn"):
        raise refuse("UnsupportedOperation", "The local EC2 has no groups of Capacity Reservations.")
    if named and (preference in {"open", "none"} or market == "spot"):
        # [from memory]: EC2's code; its text is another.
        other = "a Spot Instance" if market == "spot" else f"the preference {preference}"
        raise refuse("InvalidParameterCombination", f"A reservation target does not go with {other}.")
    target = None
    if named:
        target = find_reservation(str(named.get("CapacityReservationId")), reservations, region)
        _check_target(target, reservations, instance_type=instance_type, group_arn=group_arn)
    return ReservationChoice(
        reservations=reservations,
        instance_type=instance_type,
        preference="none" if market == "spot" else preference or "open",
        target=target,
        group_arn=group_arn,
    )


def find_reservation(reservation_id: str, reservations: LocalReservations, region: str) -> Reservation:
    """Return a reservation by its id.

    Raises:
        EC2ClientError: It is no such id, or there is none. Source: EC2 API reference, "Error codes".
    """
    if not _RESERVATION_ID.fullmatch(reservation_id):
        message = f"Invalid id: '{reservation_id}' (expecting 'cr-...')"
        raise refuse("InvalidCapacityReservationId.Malformed", message)
    reservation = reservations.find(reservation_id, region)
    if reservation is None:
        message = f"The capacity reservation '{reservation_id}' does not exist"
        raise refuse("InvalidCapacityReservationId.NotFound", message)
    return reservation


def _check_target(
    target: Reservation, reservations: LocalReservations, *, instance_type: str, group_arn: str
) -> None:
    if target.state(reservations.now()) != "active":
        # [from memory]: EC2's code; its text is another.
        message = f"The capacity reservation '{target.reservation_id}' is not active."
        raise refuse("InvalidCapacityReservationState", message)
    launched = (instance_type, "default", LINUX, target.placement_group_arn)
    if launched != (target.instance_type, target.tenancy, target.platform, group_arn):
        raise exceeded()
