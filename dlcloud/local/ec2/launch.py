"""RunInstances and TerminateInstances: what a launch gets, in which zone, and what it refuses.

`run_instances` checks the request (`launch_checks.py`), chooses the zone that has most room for it within
quota, spot price, reservations and placement group, lets moto make the instances, and boots them
(`instances.py`). All of it happens under `SiteInstances.launching`: what was counted as free must still be
free at the launch.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

from moto.core.responses import ActionResult
from moto.core.types import Base64EncodedString
from moto.ec2.exceptions import EC2ClientError

from dlcloud.local.capacity.pools import OVER_QUOTA
from dlcloud.local.ec2.launch_checks import (
    block_devices,
    check_free_tier,
    check_instance_ids,
    check_launch,
    check_profile,
    check_spot_options,
)
from dlcloud.local.ec2.network import (
    check_default_vpc,
    check_network,
    find_group,
    has_public_address,
)
from dlcloud.local.ec2.record import InstanceRecord, StateReason, template_version
from dlcloud.local.ec2.reservations import ReservationChoice, ReservationResponses, exceeded, read_choice
from dlcloud.local.ec2.services import spot_usd
from dlcloud.model.instance import Market

NO_CAPACITY = "InsufficientInstanceCapacity"
PRICE_TOO_LOW = "SpotMaxPriceTooLow"


# Fields of a launch template that moto reads from the request alone.
_FROM_TEMPLATE = (
    "BlockDeviceMappings",
    "CapacityReservationSpecification",
    "IamInstanceProfile",
    "ImageId",
    "InstanceInitiatedShutdownBehavior",
    "InstanceMarketOptions",
    "MetadataOptions",
    "NetworkInterfaces",
    "Placement",
)
# EC2 shows terminated instances for about an hour.
_SHOWN_AFTER_END = timedelta(hours=1)


class LocalResponses(ReservationResponses):
    """moto's EC2 answers with these actions in place of its own; bound to one site by a subclass."""

    def run_instances(self) -> ActionResult:
        """Launch as many instances as MaxCount asks for and one zone can give, at least MinCount."""
        specification = self.params.get("LaunchTemplate")
        template: dict[str, Any] = {}
        if specification:
            template = template_version(self.ec2_backend, specification).data
        self.params |= {
            name: template[name] for name in _FROM_TEMPLATE if name in template and name not in self.params
        }
        with self.instances.launching:
            self._forget_old()
            instance_type = self.params.get("InstanceType") or template.get("InstanceType") or "m1.small"
            user_data = self.params.get("UserData") or template.get("UserData")
            image = check_launch(self.ec2_backend, {**self.params, "UserData": user_data}, instance_type)
            check_profile(self.current_account, self.params.get("IamInstanceProfile"))
            check_network(self.ec2_backend, {**template, **self.params})
            self.params["BlockDeviceMappings"] = block_devices(
                image, self.params.get("BlockDeviceMappings") or ()
            )
            placement = self.read_placement(self.params, instance_type)
            zones = placement.zones(self._zones(instance_type))
            self.error_on_dryrun()
            if self.quotas.account_plan.is_free:
                check_free_tier(instance_type)  # a dry run does not tell
            self.params["MinCount"] = self._grant(instance_type, zones, placement)
            result = super().run_instances()
            reservation = cast("Any", result.result)
            self._complete(reservation.instances)
            cards = self.params.get("NetworkInterfaces") or template.get("NetworkInterfaces") or ()
            self.boot(reservation, template, cards)
            placement.assign(reservation.instances)
        return result

    def terminate_instances(self) -> ActionResult:
        """Begin to terminate instances; answer with the state of each before and now."""
        self.error_on_dryrun()
        instance_ids = self.params.get("InstanceIds") or []
        check_instance_ids(instance_ids)
        instances: list[Any] = self.ec2_backend.get_multi_instances_by_id(instance_ids)
        previous = [{"Name": instance.state, "Code": instance.state_code} for instance in instances]
        self.instances.terminate([instance.id for instance in instances], StateReason.USER)
        changes = [
            {
                "InstanceId": instance.id,
                "CurrentState": {"Name": instance.state, "Code": instance.state_code},
                "PreviousState": state,
            }
            for instance, state in zip(instances, previous, strict=True)
        ]
        return ActionResult({"TerminatingInstances": changes})

    def get_console_output(self) -> ActionResult:
        """Return the log of the instance's boot."""
        self.error_on_dryrun()
        instance_id = str(self.params["InstanceId"])
        check_instance_ids([instance_id])
        self.ec2_backend.get_instance(instance_id)
        return ActionResult(
            {
                "InstanceId": instance_id,
                "Timestamp": datetime.now(UTC),
                "Output": Base64EncodedString.from_raw_string(self.instances.console(instance_id)),
            }
        )

    def associate_iam_instance_profile(self) -> ActionResult:
        """Give an instance a profile; refuse an unknown profile and an instance that does not run."""
        self.error_on_dryrun()
        profile = self.params.get("IamInstanceProfile") or {}
        (instance,) = self.ec2_backend.get_multi_instances_by_id([self.params["InstanceId"]])
        check_profile(self.current_account, profile)
        if instance.state not in ("running", "stopped"):
            message = f"The instance '{instance.id}' is not in the 'running' or 'stopped' states."
            raise EC2ClientError("IncorrectInstanceState", message)
        return super().associate_iam_instance_profile()

    def create_security_group(self) -> ActionResult:
        """Create a group in a VPC, by default in the default VPC if there is one."""
        if not self.params.get("VpcId"):
            check_default_vpc(self.ec2_backend)
        return super().create_security_group()

    def boot(self, reservation: Any, template: dict[str, Any], cards: Sequence[Mapping[str, Any]]) -> None:  # noqa: ANN401 - moto's object
        """Boot instances that moto has just made; terminate them if there is no address for one.

        Args:
            reservation: Holds the instances.
            template: The data of their launch template.
            cards: The network interfaces that the launch states.
        """
        records = [
            InstanceRecord(instance, template, reservation.id, public=has_public_address(instance, cards))
            for instance in reservation.instances
        ]
        try:
            self.instances.launch(records)
        except OSError as error:
            for instance in reservation.instances:
                instance.terminate()
            self.ec2_backend.reservations.pop(reservation.id, None)  # EC2 shows none of such a launch
            raise EC2ClientError("InsufficientAddressCapacity", str(error)) from error

    def _complete(self, instances: list[Any]) -> None:
        """Give new instances what moto gives the first of them alone, or none."""
        profile = self.params.get("IamInstanceProfile") or {}
        for instance in instances:
            if profile and instance.iam_instance_profile is None:
                self.ec2_backend.associate_iam_instance_profile(
                    instance.id, profile.get("Name"), profile.get("Arn")
                )

    def _forget_old(self) -> None:
        ended = self.instances.forget(datetime.now(UTC) - _SHOWN_AFTER_END)
        reservations = self.ec2_backend.reservations
        for reservation_id, reservation in list(reservations.items()) if ended else ():
            if all(instance.id in ended for instance in reservation.instances):
                del reservations[reservation_id]

    def read_placement(self, request: Mapping[str, Any], instance_type: str) -> ReservationChoice:
        """Return the reservations and the placement group that a launch, or a template, names.

        Raises:
            EC2ClientError: They are not there, or not for such instances.
        """
        return read_choice(
            request,
            self.instances.reservations,
            instance_type=instance_type,
            region=self.region,
            group=find_group(self.ec2_backend, request, instance_type),
        )

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

    def _grant(self, instance_type: str, zones: list[str], placement: ReservationChoice) -> int:
        """Choose the zone that gives most and return how many it gives.

        What a reservation holds is in the quota already, and is taken first.
        """
        low = int(self.params.get("MinCount", 1))
        high = int(self.params.get("MaxCount") or low)
        if not 1 <= low <= high:
            # [from memory]: EC2's code; its text is another.
            message = f"Value ({low}) for parameter minCount is invalid. It is 1 to maxCount ({high})."
            raise EC2ClientError("InvalidParameterValue", message)
        room = {zone: placement.room(zone) for zone in zones}
        if placement.is_only:
            if (most := max(room.values(), default=0)) < low:
                raise exceeded()
            return min(high, most)
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
        left = self.quotas.instances_left(instance_type, market, self.region) + reserved
        if left < low:
            limit = self.quotas.limits()[self.quotas.code(instance_type, market) or ""]
            message = (
                f"You have requested more vCPU capacity than your current vCPU limit of {limit} "
                f"allows for the instance bucket that {instance_type} belongs to."
            )
            raise EC2ClientError(OVER_QUOTA[market], message)
        return min(high, left)
