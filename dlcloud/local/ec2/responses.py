"""The EC2 actions that launch, change and end instances, where moto differs from EC2."""

import copy
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, cast

from moto.core.responses import ActionResult, EmptyResult
from moto.core.types import Base64EncodedString
from moto.ec2.exceptions import EC2ClientError, OperationNotPermitted4
from moto.ec2.utils import filter_iam_instance_profiles
from moto.iam.exceptions import NotFoundException

from dlcloud.local.ec2.launch_capacity import NO_CAPACITY, GrantingResponses
from dlcloud.local.ec2.launch_checks import (
    block_devices,
    check_free_tier,
    check_instance_ids,
    check_launch,
    check_profile,
)
from dlcloud.local.ec2.network import check_default_vpc, check_network, has_public_address
from dlcloud.local.ec2.record import InstanceRecord, StateReason, template_version
from dlcloud.local.ec2.services import on_demand_price
from dlcloud.local.ec2.spot import ONE_TIME, SpotRequest, SpotRequests

__all__ = ["NO_CAPACITY", "LocalResponses"]

# Fields of a launch template that moto reads from the request alone.
_FROM_TEMPLATE = (
    "BlockDeviceMappings",
    "CapacityReservationSpecification",
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


class LocalResponses(GrantingResponses):
    """moto's EC2 answers with these actions in place of its own; bound to one site by a subclass."""

    spot: ClassVar[SpotRequests]

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
            placement = self.read_placement(self.params, instance_type)
            zones = placement.zones(self._zones(instance_type))
            self.error_on_dryrun()
            if self.quotas.account_plan.is_free:
                check_free_tier(instance_type)  # a dry run does not tell
            self.params["MinCount"] = self._grant(instance_type, zones, placement)
            original.setdefault("InstanceMarketOptions", self.params.get("InstanceMarketOptions"))
            if self._is_block():
                self.params.pop("InstanceMarketOptions")  # moto takes every market for spot
            result = super().run_instances()
            reservation = cast("Any", result.result)
            self._complete(reservation.instances)
            self.boot(reservation, template, original, request)
            placement.assign(reservation.instances)
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
            self.ec2_backend.reservations.pop(reservation.id, None)  # EC2 shows none of such a launch
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

    def _forget_old(self) -> None:
        ended = self.instances.forget(datetime.now(UTC) - _SHOWN_AFTER_END)
        reservations = self.ec2_backend.reservations
        for reservation_id, reservation in list(reservations.items()) if ended else ():
            if all(instance.id in ended for instance in reservation.instances):
                del reservations[reservation_id]
