"""The EC2 actions that launch, change and end instances, where moto differs from EC2."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

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
# EC2 shows terminated instances for about an hour.
_SHOWN_AFTER_END = timedelta(hours=1)


class LocalResponses(GrantingResponses):
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
        instances = self._named_instances()
        for instance in instances:
            if instance.disable_api_termination is True:
                raise OperationNotPermitted4(instance.id)
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

    def _forget_old(self) -> None:
        ended = self.instances.forget(datetime.now(UTC) - _SHOWN_AFTER_END)
        reservations = self.ec2_backend.reservations
        for reservation_id, reservation in list(reservations.items()) if ended else ():
            if all(instance.id in ended for instance in reservation.instances):
                del reservations[reservation_id]
