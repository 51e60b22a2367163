"""Capacity Reservations: their actions, and in which of them the instances of a launch run.

A launch reads its choice by `read_choice`, and hands its instances over by `ReservationChoice.assign`; what
reservations hold is kept in `capacity/reservations.py`. Source: EC2 API reference,
CapacityReservationSpecification and CreateCapacityReservation; EC2 user guide, "Launch instances into an
existing Capacity Reservation".
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from moto.core.responses import ActionResult
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, EC2_RESOURCE_TO_PREFIX

from dlcloud.local.capacity.pools import OVER_QUOTA, VcpuQuotas
from dlcloud.local.capacity.reservations import LINUX, LocalReservations, Reservation
from dlcloud.local.ec2.launch_checks import refuse
from dlcloud.local.ec2.network import PlacementGroup, PlacementGroupResponses
from dlcloud.model.instance import Market

_PREFERENCES = ("capacity-reservations-only", "open", "none")
_RESERVATION_ID = re.compile(r"cr-([0-9a-f]{8}|[0-9a-f]{17})")
# Source: terraform-provider-aws, pull request 35745.
_EXCEEDED = (
    "The requested reservation does not have sufficient compatible and available capacity for this request."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationChoice:
    """What a launch says of reservations, `target` None if none is named, and of its placement group."""

    reservations: LocalReservations
    instance_type: str
    preference: str = "open"
    target: Reservation | None = None
    group: PlacementGroup | None = None

    def room(self, zone: str) -> int:
        """Return how many instances the reservations of the choice take in a zone."""
        return sum(self.reservations.available(one) for one in self._takers(zone))

    @property
    def is_only(self) -> bool:
        """True if no instance may run outside of a reservation."""
        return self.target is not None or self.preference == "capacity-reservations-only"

    def zones(self, zones: Sequence[str]) -> list[str]:
        """Return the zones of a launch that the choice allows."""
        if self.target is not None and self.target.zone not in zones:
            raise exceeded()
        allowed = list(zones) if self.target is None else [self.target.zone]
        return allowed if self.group is None else self.group.zones(allowed)

    def assign(self, instances: Sequence[Any]) -> None:
        """Put new instances into the placement group and, as far as there is room, into the reservations."""
        if self.group is not None:
            self.group.add(instances)
        shown: dict[str, Any] = {"CapacityReservationPreference": self.preference}
        if self.target is not None:
            shown = {"CapacityReservationTarget": {"CapacityReservationId": self.target.reservation_id}}
        zone = str(instances[0].availability_zone) if instances else ""
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
        return self.reservations.open_to(
            self.instance_type, zone, group_arn=self.group.arn if self.group else ""
        )


def exceeded() -> Exception:
    """Return the refusal of a reservation that is full, or not for such instances."""
    return refuse("ReservationCapacityExceeded", _EXCEEDED)


def read_choice(
    request: Mapping[str, Any],
    reservations: LocalReservations,
    *,
    instance_type: str,
    region: str,
    group: PlacementGroup | None,
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
        _check_target(target, instance_type=instance_type, group_arn=group.arn if group else "")
    return ReservationChoice(
        reservations=reservations,
        instance_type=instance_type,
        preference="none" if market == "spot" else preference or "open",
        target=target,
        group=group,
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


def _check_target(target: Reservation, *, instance_type: str, group_arn: str) -> None:
    if target.cancelled:
        # [from memory]: EC2's code; its text is another.
        message = f"The capacity reservation '{target.reservation_id}' is not active."
        raise refuse("InvalidCapacityReservationState", message)
    launched = (instance_type, "default", LINUX, target.placement_group_arn)
    if launched != (target.instance_type, target.tenancy, target.platform, group_arn):
        raise exceeded()


MOST = 1000
"""Source: boto/boto3, issue 2962."""
EC2_RESOURCE_TO_PREFIX["capacity-reservation"] = "cr"
EC2_PREFIX_TO_RESOURCE["cr"] = "capacity-reservation"
_FILTERS = {
    "availability-zone": "AvailabilityZone",
    "instance-match-criteria": "InstanceMatchCriteria",
    "instance-platform": "InstancePlatform",
    "instance-type": "InstanceType",
    "placement-group-arn": "PlacementGroupArn",
    "state": "State",
    "tenancy": "Tenancy",
}


class ReservationResponses(PlacementGroupResponses):
    """The answers on reservations; bound to one site by a subclass."""

    quotas: ClassVar[VcpuQuotas]

    def create_capacity_reservation(self) -> ActionResult:
        """Reserve capacity of a type in a zone; it takes from what there is, and from the quota."""
        count = int(self.params.get("InstanceCount") or 0)
        if not 1 <= count <= MOST:
            message = f"{count} is an invalid value for InstanceCount. It must be between 1 and {MOST}."
            raise refuse("InvalidParameterValue", message)
        zone = self._zone_of_request()
        instance_type, platform = self._type(), str(self.params.get("InstancePlatform") or "")
        if platform == "":
            raise refuse("MissingParameter", "The request must contain the parameter instancePlatform")
        if self.params.get("EndDateType") == "limited":
            raise refuse("UnsupportedOperation", "The local EC2 has no reservations that end by themselves.")
        self.error_on_dryrun()
        with self.instances.launching:
            self._take(instance_type, zone, count)
            reservation = self._add(
                zone=zone,
                instance_type=instance_type,
                total=count,
                platform=platform,
                tenancy=str(self.params.get("Tenancy") or "default"),
                targeted=self.params.get("InstanceMatchCriteria") == "targeted",
                placement_group_arn=str(self.params.get("PlacementGroupArn") or ""),
            )
        return ActionResult({"CapacityReservation": self.instances.reservations.describe(reservation)})

    def describe_capacity_reservations(self) -> ActionResult:
        """Return the reservations that pass every filter."""
        self.error_on_dryrun()
        reservations = self.instances.reservations
        ids = self.params.get("CapacityReservationIds") or []
        named = [find_reservation(name, reservations, self.region) for name in ids]
        shown = [reservations.describe(one) for one in named or reservations.of_region(self.region)]
        return ActionResult({"CapacityReservations": [*filter(self.condition(_FILTERS), shown)]})

    def cancel_capacity_reservation(self) -> ActionResult:
        """Cancel a reservation; the instances in it run on, as on-demand ones."""
        reservations = self.instances.reservations
        name = str(self.params.get("CapacityReservationId"))
        reservation = find_reservation(name, reservations, self.region)
        if reservation.cancelled:
            # [from memory]: EC2's code; its text is another.
            message = f"The capacity reservation '{name}' is not active."
            raise refuse("InvalidCapacityReservationState", message)
        self.error_on_dryrun()
        reservations.cancel(reservation)
        return ActionResult({"Return": True})

    def _add(self, **properties: Any) -> Reservation:  # noqa: ANN401 - those of a Reservation
        """Make a reservation of the request's tags."""
        reservations, backend = self.instances.reservations, self.ec2_backend
        name = f"cr-{secrets.token_hex(8)}{secrets.choice('0123456789abcdef')}"
        zone_ids = {zone.name: zone.zone_id for zone in backend.describe_availability_zones()}
        reservation = Reservation(
            reservation_id=name,
            account=self.current_account,
            region=self.region,
            zone_id=str(zone_ids.get(properties["zone"], "")),
            created_at=datetime.now(UTC),
            tags=lambda: backend.tags.get(name, {}),
            **properties,
        )
        specified = self.params.get("TagSpecifications") or ()
        tags = {tag["Key"]: tag.get("Value", "") for entry in specified for tag in entry.get("Tags") or ()}
        if tags:
            backend.create_tags([name], tags)
        reservations.add(reservation)
        return reservation

    def _type(self) -> str:
        name = str(self.params.get("InstanceType") or "")
        if name not in INSTANCE_TYPES:
            raise refuse("InvalidInstanceType", f"The instance type {name} does not exist.")
        return name

    def _zone_of_request(self) -> str:
        zones = {zone.name: zone.zone_id for zone in self.ec2_backend.describe_availability_zones()}
        by_id = {zone_id: name for name, zone_id in zones.items()}
        zone = str(
            self.params.get("AvailabilityZone") or by_id.get(self.params.get("AvailabilityZoneId"), "")
        )
        if zone not in zones:
            raise refuse("InvalidParameterValue", f"Invalid availability zone: [{zone}]")
        if zone not in self.offered(self._type()):
            raise refuse("Unsupported", f"The instance type {self._type()} is not offered in {zone}.")
        return zone

    def _take(self, instance_type: str, zone: str, count: int) -> None:
        """Refuse more than the zone or the quota has; a reservation counts as if its instances ran.

        Source: EC2 user guide, "Capacity Reservation limitations".
        """
        if self.quotas.instances_left(instance_type, Market.ON_DEMAND, self.region) < count:
            raise refuse(OVER_QUOTA[Market.ON_DEMAND], "The reservation exceeds your current vCPU limit.")
        if self.instances.left(instance_type, zone, Market.ON_DEMAND) < count:
            message = f"There is not enough capacity of {instance_type} in {zone} for {count} instances."
            raise refuse("InsufficientInstanceCapacity", message)
