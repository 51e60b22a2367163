"""The EC2 actions that launch, change and end instances, where moto differs from EC2."""

import copy
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar, cast

from moto.core.responses import ActionResult, EmptyResult
from moto.core.types import Base64EncodedString
from moto.ec2.exceptions import EC2ClientError, OperationNotPermitted4
from moto.ec2.utils import filter_iam_instance_profiles
from moto.iam.exceptions import NotFoundException

from dlcloud.core.instance import Market
from dlcloud.local.capacity import OVER_QUOTA, VcpuQuotas
from dlcloud.local.connect_endpoints import ConnectEndpointResponses
from dlcloud.local.launch_checks import (
    block_devices,
    check_instance_ids,
    check_launch,
    check_profile,
    check_spot_options,
)
from dlcloud.local.network import check_default_vpc, check_network, has_public_address
from dlcloud.local.record import InstanceRecord, StateReason, template_version
from dlcloud.local.services import on_demand_price, spot_usd
from dlcloud.local.spot import ONE_TIME, PRICE_TOO_LOW, SpotRequest, SpotRequests

NO_CAPACITY = "InsufficientInstanceCapacity"
# Fields of a launch template that moto reads from the request alone.
_FROM_TEMPLATE = (
    "BlockDeviceMappings",
    "DisableApiTermination",
    "IamInstanceProfile",
    "ImageId",
    "InstanceInitiatedShutdownBehavior",
    "InstanceMarketOptions",
    "MetadataOptions",
    "NetworkInterfaces",
    "Placement",
)
_SHOWN_OF_LAUNCH = (
    "BlockDeviceMappings",
    "ImageId",
    "InstanceType",
    "KeyName",
    "Monitoring",
    "NetworkInterfaces",
    "Placement",
    "SubnetId",
)
# EC2 shows terminated instances for about an hour.
_SHOWN_AFTER_END = timedelta(hours=1)


class LocalResponses(ConnectEndpointResponses):
    """moto's EC2 answers with these actions in place of its own; bound to one site by a subclass."""

    spot: ClassVar[SpotRequests]
    quotas: ClassVar[VcpuQuotas]

    def run_instances(self) -> ActionResult:
        """Launch as many instances as MaxCount asks for and one zone can give, at least MinCount."""
        return self._launch(None)

    def spot_request(self, parameters: Mapping[str, Any], template: Mapping[str, Any]) -> SpotRequest:
        """Return a request for a spot instance with the parameters of RunInstances."""
        options = (parameters.get("InstanceMarketOptions") or {}).get("SpotOptions") or {}
        shown = {name: parameters.get(name) or template.get(name) for name in _SHOWN_OF_LAUNCH}
        price = on_demand_price(self.catalog, str(shown["InstanceType"]), self.region)
        return SpotRequest(
            ec2_backend=self.ec2_backend,
            type=options.get("SpotInstanceType") or ONE_TIME,
            spot_price=str(options.get("MaxPrice") or (price.hourly_usd if price else "")),
            launch_specification={name: value for name, value in shown.items() if value},
            launch=lambda request: self._launch_again(parameters, request),
            valid_until=options.get("ValidUntil"),
        )

    def _launch_again(self, parameters: Mapping[str, Any], request: SpotRequest) -> Any:  # noqa: ANN401
        """Launch an instance for a waiting request, and return it."""
        launch = copy.copy(self)
        launch.params = {**copy.deepcopy(dict(parameters)), "MinCount": 1, "MaxCount": 1}
        result = cast("Any", launch._launch(request).result)  # noqa: SLF001 - of this class
        return result.instances[0]

    def _launch(self, request: SpotRequest | None) -> ActionResult:
        """Launch what the parameters ask for, for a waiting request for a spot instance if there is one."""
        original = {
            name: value for name, value in self.params.items() if name not in ("ClientToken", "DryRun")
        }
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
            if not any((self.params.get("IamInstanceProfile") or {}).values()):
                # Some clients name none by an empty name.
                self.params.pop("IamInstanceProfile", None)
            check_profile(self.current_account, self.params.get("IamInstanceProfile"))
            check_network(self.ec2_backend, {**template, **self.params})
            self.params["BlockDeviceMappings"] = block_devices(
                image, self.params.get("BlockDeviceMappings") or ()
            )
            zones = self._zones(instance_type)
            self.error_on_dryrun()
            self.params["MinCount"] = self._grant(instance_type, zones)
            result = super().run_instances()
            reservation = cast("Any", result.result)
            self._complete(reservation.instances)
            original.setdefault("InstanceMarketOptions", self.params.get("InstanceMarketOptions"))
            self.boot(reservation, template, original, request)
        return result

    def terminate_instances(self) -> ActionResult:
        """Begin to terminate instances."""
        instances = self._named_instances()
        for instance in instances:
            if instance.disable_api_termination is True:
                raise OperationNotPermitted4(instance.id)
        return self._change_states(
            "TerminatingInstances", instances, lambda ids: self.instances.terminate(ids, StateReason.USER)
        )

    def stop_instances(self) -> ActionResult:
        """Begin to stop on-demand instances."""
        instances = self._named_instances()
        for instance in instances:
            if instance.lifecycle == "spot":
                message = f"The spot instance {instance.id} cannot be stopped."
                raise EC2ClientError("UnsupportedOperation", message)
        return self._change_states(
            "StoppingInstances", instances, lambda ids: self.instances.stop(ids, StateReason.USER)
        )

    def start_instances(self) -> ActionResult:
        """Begin to start stopped instances."""
        instances = self._named_instances()
        for instance in instances:
            if instance.state not in ("stopped", "pending", "running"):
                message = f"The instance '{instance.id}' is not in a state from which it can be started."
                raise EC2ClientError("IncorrectInstanceState", message)
        return self._change_states("StartingInstances", instances, self.instances.start)

    def reboot_instances(self) -> ActionResult:
        """Accept a reboot, which changes nothing on a local instance."""
        self._named_instances()
        return EmptyResult()

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
        try:
            filter_iam_instance_profiles(
                self.current_account, self.partition, profile.get("Arn"), profile.get("Name")
            )
        except NotFoundException as error:
            name = profile.get("Arn") or profile.get("Name")
            message = f"Value ({name}) for parameter iamInstanceProfile is invalid."
            raise EC2ClientError("InvalidParameterValue", message) from error
        if instance.state not in ("running", "stopped"):
            message = f"The instance '{instance.id}' is not in the 'running' or 'stopped' states."
            raise EC2ClientError("IncorrectInstanceState", message)
        return super().associate_iam_instance_profile()

    def create_security_group(self) -> ActionResult:
        """Create a group in a VPC, by default in the default VPC if there is one."""
        if not self.params.get("VpcId"):
            check_default_vpc(self.ec2_backend)
        return super().create_security_group()

    def associate_address(self) -> ActionResult:
        """Refuse an Elastic IP: it would be an address of the internet, and not reach the instance."""
        raise EC2ClientError(
            "UnsupportedOperation", "Instances of the local EC2 have loopback addresses only."
        )

    def request_spot_fleet(self) -> ActionResult:
        """Refuse Spot Fleets."""
        raise EC2ClientError(
            "UnsupportedOperation", "The local EC2 takes fleets of CreateFleet, not Spot Fleets."
        )

    def boot(
        self,
        reservation: Any,  # noqa: ANN401 - moto's object
        template: dict[str, Any],
        parameters: Mapping[str, Any],
        request: SpotRequest | None = None,
    ) -> None:
        """Boot instances that moto has just made; terminate them if there is no address for one.

        Args:
            reservation: Holds the instances.
            template: The data of their launch template.
            parameters: Those of RunInstances; with them, a persistent spot request launches again.
            request: The waiting spot request that the launch is for.
        """
        cards = parameters.get("NetworkInterfaces") or template.get("NetworkInterfaces") or ()
        records = [
            InstanceRecord(instance, template, reservation.id, public=has_public_address(instance, cards))
            for instance in reservation.instances
        ]
        try:
            self.instances.launch(records)
        except OSError as error:
            for instance in reservation.instances:
                instance.terminate()
            raise EC2ClientError("InsufficientAddressCapacity", str(error)) from error
        for instance in reservation.instances:
            if instance.lifecycle == "spot":
                fulfilled = request or self.spot_request(parameters, template)
                fulfilled.fulfil(instance)
                self.spot.add(fulfilled)

    def _complete(self, instances: list[Any]) -> None:
        """Give new instances what moto gives the first of them alone, or none."""
        profile = self.params.get("IamInstanceProfile") or {}
        for instance in instances:
            instance.disable_api_termination = bool(self.params.get("DisableApiTermination"))
            if profile and instance.iam_instance_profile is None:
                self.ec2_backend.associate_iam_instance_profile(
                    instance.id, profile.get("Name"), profile.get("Arn")
                )

    def _named_instances(self) -> list[Any]:
        """Return moto's instances by the request's ids, unless it is a dry run."""
        self.error_on_dryrun()
        instance_ids = self.params.get("InstanceIds") or []
        check_instance_ids(instance_ids)
        instances: list[Any] = self.ec2_backend.get_multi_instances_by_id(instance_ids)
        return instances

    def _change_states(
        self, result: str, instances: list[Any], change: Callable[[list[str]], None]
    ) -> ActionResult:
        """Change the states of instances and answer with each one's state before and after."""
        previous = [(instance, instance.state, instance.state_code) for instance in instances]
        change([instance.id for instance in instances])
        changes = [
            {
                "InstanceId": instance.id,
                "CurrentState": {"Name": instance.state, "Code": instance.state_code},
                "PreviousState": {"Name": state, "Code": code},
            }
            for instance, state, code in previous
        ]
        return ActionResult({result: changes})

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
        offerings = self.offerings.get(self.region, {})
        is_known = any(zone in zones for zones in offerings.values())
        if is_known and instance_type in offerings and zone not in offerings[instance_type]:
            message = f"The instance type {instance_type} is not offered in {zone}."
            raise EC2ClientError("Unsupported", message)
        return [zone]

    def _grant(self, instance_type: str, zones: list[str]) -> int:
        """Choose the zone that gives most and return how many it gives."""
        low = int(self.params.get("MinCount") or 1)
        high = int(self.params.get("MaxCount") or low)
        if not 1 <= low <= high:
            # [from memory]: EC2's code; its text is another.
            message = f"Value ({low}) for parameter minCount is invalid. It is 1 to maxCount ({high})."
            raise EC2ClientError("InvalidParameterValue", message)
        high = self._within_quota(instance_type, low, high)
        if not zones:
            return high
        is_free = len(zones) > 1
        zones = self._affordable_zones(instance_type, zones)
        left = {zone: self.instances.left(instance_type, zone, self._market()) for zone in zones}
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

    def _within_quota(self, instance_type: str, low: int, high: int) -> int:
        """Return how many of `high` instances the account's quota allows, at least `low`."""
        market = self._market()
        left = self.quotas.instances_left(instance_type, market)
        if left < low:
            limit = self.quotas.limits()[self.quotas.code(instance_type, market) or ""]
            message = (
                f"You have requested more vCPU capacity than your current vCPU limit of {limit} "
                f"allows for the instance bucket that {instance_type} belongs to."
            )
            raise EC2ClientError(OVER_QUOTA[market], message)
        return min(high, left)

    def _forget_old(self) -> None:
        ended = self.instances.forget(datetime.now(UTC) - _SHOWN_AFTER_END)
        reservations = self.ec2_backend.reservations
        for reservation_id, reservation in list(reservations.items()) if ended else ():
            if all(instance.id in ended for instance in reservation.instances):
                del reservations[reservation_id]
