"""What an instance needs to control its cluster: the profile, and the claim that only one can make."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from botocore.exceptions import ClientError

from dlcloud.cloud.clients import Clients
from dlcloud.cloud.control_role import PAUSE_S, TRIES
from dlcloud.cloud.faults import error_code, retry_codes, translate_errors
from dlcloud.cloud.requests import cluster_filter, tag_specification
from dlcloud.model.cluster import CLAIM_TAG, CLUSTER_TAG
from dlcloud.model.errors import CloudError
from dlcloud.planning.control_claim import ControlClaim

NOT_YET = {"InvalidParameterValue", "IncorrectInstanceState", "InvalidInstanceID.NotFound"}
"""EC2's answers before it knows of a new profile, and before an instance runs."""
OCCUPIED = {"IncorrectState"}
TAKEN = "InvalidLaunchTemplateName.AlreadyExistsException"
DATA = {"InstanceType": "t3.nano"}
"""A launch template must have some content; none is launched from this one."""

Pause = Callable[[float], None]


def attach_profile(clients: Clients, instance_id: str, profile: str, *, pause: Pause) -> None:
    """Attach the profile to an instance; EC2 needs some seconds to learn of a new one.

    Raises:
        CloudError: The instance has another profile, or EC2 has not learned of it within a minute.
    """
    arguments = {"InstanceId": instance_id, "IamInstanceProfile": {"Name": profile}}
    is_attached = False
    with translate_errors(
        f"giving {instance_id} the profile {profile} (ec2:AssociateIamInstanceProfile)", ignore=OCCUPIED
    ):
        call = clients.get("ec2").associate_iam_instance_profile
        retry_codes(call, arguments, NOT_YET, pauses_s=[PAUSE_S] * (TRIES - 1), pause=pause)
        is_attached = True
    if not is_attached:
        _check_profile(clients, instance_id, profile)


def claim_control(clients: Clients, term: int, instance_id: str, tags: Mapping[str, str]) -> bool:
    """Claim the control of a cluster for an instance; False if another instance has claimed this term.

    The claim is a launch template: EC2 makes only one of a name, so of several claims one succeeds.
    """
    name = f"dlcloud-{tags[CLUSTER_TAG]}-control-{term}"
    with translate_errors(f"claiming the control of the cluster, {name} (ec2:CreateLaunchTemplate)"):
        try:
            clients.get("ec2").create_launch_template(
                LaunchTemplateName=name,
                LaunchTemplateData=DATA,
                TagSpecifications=[tag_specification("launch-template", {**tags, CLAIM_TAG: instance_id})],
            )
        except ClientError as error:
            if error_code(error) != TAKEN:
                raise
            return False
    return True


def find_claims(clients: Clients, cluster_id: str) -> list[ControlClaim]:
    """Return the claims of a cluster, the oldest first."""
    with translate_errors("listing launch templates (ec2:DescribeLaunchTemplates)"):
        answer = clients.get("ec2").describe_launch_templates(Filters=cluster_filter(cluster_id))
    claims = []
    for template in answer["LaunchTemplates"]:
        tags = {tag["Key"]: tag["Value"] for tag in template.get("Tags", ())}
        _, _, term = template["LaunchTemplateName"].rpartition("-control-")
        if CLAIM_TAG in tags and term.isdecimal():
            at = template.get("CreateTime") or datetime.now(UTC)
            claims.append(ControlClaim(term=int(term), instance_id=tags[CLAIM_TAG], at=at))
    return sorted(claims, key=lambda claim: claim.term)


def _check_profile(clients: Clients, instance_id: str, profile: str) -> None:
    """Refuse an instance that has another profile."""
    with translate_errors(
        f"looking up the profile of {instance_id} (ec2:DescribeIamInstanceProfileAssociations)"
    ):
        answer = clients.get("ec2").describe_iam_instance_profile_associations(
            Filters=[{"Name": "instance-id", "Values": [instance_id]}]
        )
    associations = answer["IamInstanceProfileAssociations"]
    arns = [str(association["IamInstanceProfile"]["Arn"]) for association in associations]
    if not any(arn.endswith(f"/{profile}") for arn in arns):
        raise CloudError(
            f"{instance_id} already has another instance profile: {', '.join(arns) or 'unknown'}",
            "take it off the instance, then run it again",
        )
