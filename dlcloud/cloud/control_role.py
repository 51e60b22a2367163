"""The IAM role by which one instance may control its own cluster, and nothing else.

IAM knows no regions: the region stands in the role's path, so that leftovers are found region by region.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import ClientError

from dlcloud.cloud.clients import Clients
from dlcloud.cloud.faults import error_code, translate_errors
from dlcloud.core.cluster import Leftover
from dlcloud.core.errors import CloudError

POLICY_NAME = "control-own-cluster"
TRIES = 60
PAUSE_S = 1.0
EXISTS = "EntityAlreadyExists"
FULL = "LimitExceeded"  # a profile holds one role
GONE = "NoSuchEntity"
HELD = "DeleteConflict"
# What EC2 answers before it knows of a new profile, and before an instance runs.
NOT_YET = {"InvalidParameterValue", "IncorrectInstanceState"}
OCCUPIED = "IncorrectState"
TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    ],
}

Pause = Callable[[float], None]


def put_role(clients: Clients, cluster_id: str, policy: str, tags: Mapping[str, str], *, pause: Pause) -> str:
    """Make role, policy and instance profile, as far as they are missing; return the profile's name.

    The role is made first and deleted last: where anything of it is, there is a role to find it by. What was
    made a moment ago may not be known everywhere in IAM yet.
    """
    name, path = _name(cluster_id), _path(clients.region)
    labels = [{"Key": key, "Value": value} for key, value in tags.items()]
    with _unless(EXISTS, f"creating the role {name} (iam:CreateRole)"):
        clients.read("iam").create_role(
            RoleName=name, Path=path, AssumeRolePolicyDocument=json.dumps(TRUST), Tags=labels
        )
    with translate_errors(f"giving the role {name} its policy (iam:PutRolePolicy)"):
        given = {"RoleName": name, "PolicyName": POLICY_NAME, "PolicyDocument": policy}
        _repeat(clients.read("iam").put_role_policy, given, {GONE}, pause=pause)
    with _unless(EXISTS, f"creating the instance profile {name} (iam:CreateInstanceProfile)"):
        clients.read("iam").create_instance_profile(InstanceProfileName=name, Path=path, Tags=labels)
    with _unless(FULL, f"putting the role {name} into its profile (iam:AddRoleToInstanceProfile)"):
        joined = {"InstanceProfileName": name, "RoleName": name}
        _repeat(clients.read("iam").add_role_to_instance_profile, joined, {GONE}, pause=pause)
    return name


def attach_profile(clients: Clients, instance_id: str, profile: str, *, pause: Pause) -> None:
    """Give an instance the profile; a new one takes EC2 some seconds to learn of.

    Raises:
        CloudError: The instance has another profile, or EC2 has not learned of it within a minute.
    """
    given = {"InstanceId": instance_id, "IamInstanceProfile": {"Name": profile}}
    attached = False
    with _unless(OCCUPIED, f"giving {instance_id} the profile {profile} (ec2:AssociateIamInstanceProfile)"):
        _repeat(clients.read("ec2").associate_iam_instance_profile, given, NOT_YET, pause=pause)
        attached = True
    if not attached:
        _insist(clients, instance_id, profile)


def delete_role(clients: Clients, cluster_id: str, *, pause: Pause) -> None:
    """Delete profile, policy and role, each where it is there; IAM may hold what was just let go."""
    name = _name(cluster_id)
    held = _held(clients, name)
    if held:
        with _unless(GONE, f"emptying the profile {name} (iam:RemoveRoleFromInstanceProfile)"):
            clients.read("iam").remove_role_from_instance_profile(InstanceProfileName=name, RoleName=name)
    if held is not None:
        with _unless(GONE, f"deleting the instance profile {name} (iam:DeleteInstanceProfile)"):
            profile = {"InstanceProfileName": name}
            _repeat(clients.read("iam").delete_instance_profile, profile, {HELD}, pause=pause)
    with _unless(GONE, f"deleting the policy of the role {name} (iam:DeleteRolePolicy)"):
        clients.read("iam").delete_role_policy(RoleName=name, PolicyName=POLICY_NAME)
    with _unless(GONE, f"deleting the role {name} (iam:DeleteRole)"):
        _repeat(clients.read("iam").delete_role, {"RoleName": name}, {HELD}, pause=pause)


def find_roles(clients: Clients) -> Iterator[Leftover]:
    """Yield the roles of the region's clusters, by their path."""
    with translate_errors("looking for roles that dlcloud made (iam:ListRoles)"):
        pages = clients.read("iam").get_paginator("list_roles").paginate(PathPrefix=_path(clients.region))
        names = [role["RoleName"] for page in pages for role in page["Roles"]]
    for name in names:
        yield Leftover(
            kind="iam-role",
            resource_id=name,
            cluster_id=name.removeprefix(_name("")),
            name="",
            region=clients.region,
        )


def _held(clients: Clients, profile: str) -> bool | None:
    """Tell whether a profile holds a role; None where there is no such profile."""
    roles = None
    with _unless(GONE, f"looking at the instance profile {profile} (iam:GetInstanceProfile)"):
        answer = clients.read("iam").get_instance_profile(InstanceProfileName=profile)
        roles = answer["InstanceProfile"]["Roles"]
    return None if roles is None else bool(roles)


def _insist(clients: Clients, instance_id: str, profile: str) -> None:
    """Accept an instance that has a profile already only if it is the one."""
    with translate_errors(
        f"looking up the profile of {instance_id} (ec2:DescribeIamInstanceProfileAssociations)"
    ):
        answer = clients.read("ec2").describe_iam_instance_profile_associations(
            Filters=[{"Name": "instance-id", "Values": [instance_id]}]
        )
    arns = [str(each["IamInstanceProfile"]["Arn"]) for each in answer["IamInstanceProfileAssociations"]]
    if not any(arn.endswith(f"/{profile}") for arn in arns):
        raise CloudError(
            f"{instance_id} has another instance profile already: {', '.join(arns) or 'unknown'}",
            "take it off the instance, then run it again",
        )


def _repeat(
    call: Callable[..., Any], arguments: Mapping[str, Any], codes: Collection[str], *, pause: Pause
) -> None:
    """Make a call, again and again for a minute where what it needs is not there, or not gone, yet."""
    for _ in range(TRIES - 1):
        try:
            call(**arguments)
        except ClientError as error:
            if error_code(error) not in codes:
                raise
            pause(PAUSE_S)
        else:
            return
    call(**arguments)


@contextmanager
def _unless(code: str, what: str) -> Iterator[None]:
    """Translate what is raised within, except for the refusal that says that it is done already."""
    with translate_errors(what):
        try:
            yield
        except ClientError as error:
            if error_code(error) != code:
                raise


def _name(cluster_id: str) -> str:
    return f"dlcloud-{cluster_id}"


def _path(region: str) -> str:
    return f"/dlcloud/{region}/"
