"""The instances of clusters in one Region: launched, found, tagged, terminated.

`launch.provision` launches, `launch.members` and `status` list, `launch.down` terminates. A repeated launch
has the same token and is harmless; terminating what is gone is no error.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import error_code, retry_codes, retry_launch, translate_errors
from dlcloud.cloud.compute.requests import read_instance, run_instances_arguments, tag_filter, tag_list
from dlcloud.model.cluster import CLUSTER_TAG, MANAGED_TAG
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import Instance

if TYPE_CHECKING:  # most commands launch nothing
    from dlcloud.planning.launch_request import LaunchRequest

ENDS_A_CALL = 500
"""The most instances that one call terminates.

Source: EC2 API reference, TerminateInstances: up to 1,000, and rather fewer.
"""
CHECKED_A_CALL = 100
MOST_NAMED = 5
NOT_YET = {"InvalidParameterValue", "IncorrectInstanceState", "InvalidInstanceID.NotFound"}
"""EC2's answers before it knows of a new profile, and before an instance runs."""
OCCUPIED = {"IncorrectState"}
PROFILE_PAUSES_S = [1.0] * 59
log = logging.getLogger(__name__)


class Ec2Instances:
    """Instances of one region.

    Args:
        clients: The region's clients.
        pause: Waits some seconds before a refused call is repeated.
        inside: The caller reaches the instances by private addresses, as one of them does.
    """

    def __init__(self, *, clients: Clients, pause: Callable[[float], None], inside: bool = False) -> None:
        self._clients = clients
        self._pause = pause
        self._inside = inside

    def find(self, cluster_id: str = "") -> list[Instance]:
        """Return a cluster's instances, terminated ones included while EC2 still lists them."""
        tag = (CLUSTER_TAG, cluster_id) if cluster_id else (MANAGED_TAG, "true")
        with translate_errors("listing instances (ec2:DescribeInstances)"):
            reservations = self._clients.pages(
                "ec2", "describe_instances", "Reservations", Filters=tag_filter(*tag)
            )
        instances = [
            self._with_host(read_instance(answer))
            for reservation in reservations
            for answer in reservation["Instances"]
        ]
        return sorted(instances, key=lambda instance: (instance.launched_at, instance.instance_id))

    def healthy(self, instance_ids: Sequence[str]) -> set[str]:
        """Return those that EC2's status checks reach; none where the question is denied."""
        healthy: set[str] = set()
        for start in range(0, len(instance_ids), CHECKED_A_CALL):
            try:
                with translate_errors("looking up status checks (ec2:DescribeInstanceStatus)"):
                    answer = self._clients.get("ec2").describe_instance_status(
                        InstanceIds=list(instance_ids[start : start + CHECKED_A_CALL])
                    )
            except CloudError as error:
                log.info("%s", error.message)
                return set()
            healthy |= {
                status["InstanceId"]
                for status in answer["InstanceStatuses"]
                if status["InstanceStatus"]["Status"] == status["SystemStatus"]["Status"] == "ok"
            }
        return healthy

    def launch(self, request: "LaunchRequest") -> list[Instance]:
        """Make one RunInstances call; its token makes a repeated one harmless."""
        action = f"launching {request.max_count} {request.instance_type} {request.market}"
        zone = f" in {request.zone}" if request.zone else ""
        with translate_errors(f"{action}{zone} (ec2:RunInstances)"):
            answer = retry_launch(
                self._clients.get_without_retries().run_instances,
                run_instances_arguments(request),
                pause=self._pause,
            )
        return [read_instance(instance) for instance in answer["Instances"]]

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """Terminate instances; no error for one that is gone."""
        for start in range(0, len(instance_ids), ENDS_A_CALL):
            self._terminate(list(instance_ids[start : start + ENDS_A_CALL]))

    def put_tags(self, resource_ids: Sequence[str], tags: Mapping[str, str]) -> None:
        """Add tags to what exists, or change them."""
        with translate_errors(f"tagging {', '.join(resource_ids)} (ec2:CreateTags)"):
            self._clients.call_until_visible("create_tags", Resources=list(resource_ids), Tags=tag_list(tags))

    def attach_profile(self, instance_id: str, profile: str) -> None:
        """Attach the profile to an instance; EC2 needs some seconds to learn of a new one.

        Raises:
            CloudError: The instance has another profile, or EC2 has not learned of it within a minute.
        """
        arguments = {"InstanceId": instance_id, "IamInstanceProfile": {"Name": profile}}
        is_attached = False
        with translate_errors(
            f"giving {instance_id} the profile {profile} (ec2:AssociateIamInstanceProfile)", ignore=OCCUPIED
        ):
            call = self._clients.get("ec2").associate_iam_instance_profile
            retry_codes(call, arguments, NOT_YET, pauses_s=PROFILE_PAUSES_S, pause=self._pause)
            is_attached = True
        if not is_attached:
            self._check_profile(instance_id, profile)

    def admit_key(self, instance: Instance, user: str, public_key: str) -> None:
        """Send a public key to the instance (EC2 Instance Connect)."""
        action = f"sending a key to {instance.instance_id} (ec2-instance-connect:SendSSHPublicKey)"
        with translate_errors(action):
            self._clients.get("ec2-instance-connect").send_ssh_public_key(
                InstanceId=instance.instance_id,
                InstanceOSUser=user,
                SSHPublicKey=public_key,
                AvailabilityZone=instance.zone,
            )

    def _terminate(self, instance_ids: list[str]) -> None:
        shown = ", ".join(instance_ids[:MOST_NAMED])
        more = f" and {len(instance_ids) - MOST_NAMED} more" if len(instance_ids) > MOST_NAMED else ""
        with translate_errors(f"terminating {shown}{more} (ec2:TerminateInstances)"):
            try:
                self._clients.get("ec2").terminate_instances(InstanceIds=instance_ids)
            except ClientError as error:
                if error_code(error) != "InvalidInstanceID.NotFound":
                    raise
                # EC2 refuses the whole call for one id that is gone: halves are asked for, down to that id.
                middle = len(instance_ids) // 2
                for part in (instance_ids[:middle], instance_ids[middle:]) if middle else ():
                    self._terminate(part)

    def _check_profile(self, instance_id: str, profile: str) -> None:
        """Refuse an instance that has another profile."""
        with translate_errors(
            f"looking up the profile of {instance_id} (ec2:DescribeIamInstanceProfileAssociations)"
        ):
            answer = self._clients.get("ec2").describe_iam_instance_profile_associations(
                Filters=[{"Name": "instance-id", "Values": [instance_id]}]
            )
        associations = answer["IamInstanceProfileAssociations"]
        arns = [str(association["IamInstanceProfile"]["Arn"]) for association in associations]
        if not any(arn.endswith(f"/{profile}") for arn in arns):
            raise CloudError(
                f"{instance_id} already has another instance profile: {', '.join(arns) or 'unknown'}",
                "take it off the instance, then run it again",
            )

    def _with_host(self, instance: Instance) -> Instance:
        """A security group's rule for its own instances holds for their private addresses only."""
        return replace(instance, host=instance.private_host) if self._inside else instance
