"""How many instances of a launch there is room for, in which zone, and in which reservation and group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from moto.ec2.exceptions import EC2ClientError

from dlcloud.local.capacity.pools import OVER_QUOTA
from dlcloud.local.ec2.launch_checks import check_spot_options
from dlcloud.local.ec2.placement_groups import PlacementGroup, PlacementGroupResponses, find_group
from dlcloud.local.ec2.reservation_choice import ReservationChoice, exceeded, read_choice
from dlcloud.local.ec2.services import spot_usd
from dlcloud.model.instance import Market

NO_CAPACITY = "InsufficientInstanceCapacity"
PRICE_TOO_LOW = "SpotMaxPriceTooLow"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlacement:
    """The reservations and the placement group of a launch."""

    reservations: ReservationChoice
    group: PlacementGroup | None = None

    def zones(self, zones: Sequence[str]) -> list[str]:
        """Return the zones that both allow."""
        allowed = self.reservations.zones(zones)
        return allowed if self.group is None else self.group.zones(allowed)

    def assign(self, instances: Sequence[Any]) -> None:
        """Put new instances into both."""
        if instances:
            self.reservations.assign(instances, str(instances[0].availability_zone))
        if self.group is not None:
            self.group.add(instances)


class GrantingResponses(PlacementGroupResponses):
    """The part of RunInstances that decides how many there are; bound to one site by a subclass."""

    def read_placement(self, request: Mapping[str, Any], instance_type: str) -> LaunchPlacement:
        """Return the reservations and the placement group that a launch, or a template, names.

        Raises:
            EC2ClientError: They are not there, or not for such instances.
        """
        group = find_group(self.ec2_backend, request, instance_type)
        choice = read_choice(
            request,
            self.instances.reservations,
            instance_type=instance_type,
            region=self.region,
            group_arn="" if group is None else group.arn,
        )
        return LaunchPlacement(reservations=choice, group=group)

    def _zones(self, instance_type: str) -> list[str]:
        """Return the zones a request allows: the one it names, its subnet's, or all that offer the type."""
        subnet_id = self.params.get("SubnetId") or next(
            (card["SubnetId"] for card in self.params.get("NetworkInterfaces", ()) if card.get("SubnetId")),
            None,
        )
        zone = self._get_param("Placement.AvailabilityZone")
        if subnet_id:
            zone = self.ec2_backend.get_subnet(subnet_id).availability_zone
        if zone is None:
            defaults = self.ec2_backend.get_default_subnets()
            return sorted(self.offered(instance_type) & set(defaults)) or sorted(defaults)
        offered = self.offered(instance_type)
        if zone in self.zones_with_types() and offered and zone not in offered:
            message = f"The instance type {instance_type} is not offered in {zone}."
            raise EC2ClientError("Unsupported", message)
        return [zone]

    def _grant(self, instance_type: str, zones: list[str], placement: LaunchPlacement) -> int:
        """Choose the zone that gives most and return how many it gives.

        What a reservation holds is in the quota already, and is taken first.
        """
        low = int(self.params.get("MinCount") or 1)
        high = int(self.params.get("MaxCount") or low)
        if not 1 <= low <= high:
            # [from memory]: EC2's code; its text is another.
            message = f"Value ({low}) for parameter minCount is invalid. It is 1 to maxCount ({high})."
            raise EC2ClientError("InvalidParameterValue", message)
        room = {zone: placement.reservations.room(zone) for zone in zones}
        if placement.reservations.is_only:
            return self._grant_reserved(low, high, max(room.values(), default=0))
        high = self._within_quota(instance_type, low, high, max(room.values(), default=0))
        if not zones:
            return high
        is_free = len(zones) > 1
        zones = self._affordable_zones(instance_type, zones)
        left = {zone: self.instances.left(instance_type, zone, self._market()) + room[zone] for zone in zones}
        zone = max(zones, key=lambda name: min(left[name], high))
        granted = min(left[zone], high)
        if granted < low:
            places = ", ".join(zones)
            message = f"There is not enough capacity of {instance_type} in {places} for {low} instances."
            raise EC2ClientError(NO_CAPACITY, message)
        if is_free:
            self.params["Placement"] = {**self.params.get("Placement", {}), "AvailabilityZone": zone}
        return granted

    def _grant_reserved(self, low: int, high: int, room: int) -> int:
        if room < low:
            raise exceeded()
        return min(high, room)

    def _affordable_zones(self, instance_type: str, zones: list[str]) -> list[str]:
        """Return the zones where a spot instance costs no more than the request's maximum price."""
        options = (self.params.get("InstanceMarketOptions") or {}).get("SpotOptions") or {}
        check_spot_options(options)
        limit = options.get("MaxPrice")
        prices = {
            zone: spot_usd(self.catalog, instance_type, zone, self.instances) or Decimal(0) for zone in zones
        }
        affordable = [zone for zone in zones if not limit or prices[zone] <= Decimal(str(limit))]
        if not affordable:
            message = (
                f"Your Spot request price of {limit} is lower than the minimum required "
                f"Spot request fulfillment price of {min(prices.values())}."
            )
            raise EC2ClientError(PRICE_TOO_LOW, message)
        return affordable

    def _market(self) -> Market:
        options = self.params.get("InstanceMarketOptions") or {}
        return Market.SPOT if options.get("MarketType") == "spot" else Market.ON_DEMAND

    def _within_quota(self, instance_type: str, low: int, high: int, reserved: int) -> int:
        """Return how many of `high` instances the account's quota allows, at least `low`.

        `reserved` more may run in reservations, which the quota has counted.
        """
        market = self._market()
        left = self.quotas.instances_left(instance_type, market) + reserved
        if left < low:
            limit = self.quotas.limits()[self.quotas.code(instance_type, market) or ""]
            message = (
                f"You have requested more vCPU capacity than your current vCPU limit of {limit} "
                f"allows for the instance bucket that {instance_type} belongs to."
            )
            raise EC2ClientError(OVER_QUOTA[market], message)
        return min(high, left)
