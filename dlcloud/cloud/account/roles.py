"""The IAM roles of a cluster: one to control it from its own instance, and one for its buckets; nothing else.

IAM has no regions: the region stands in the role's path, so that leftovers are found region by region.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import retry_codes, translate_errors
from dlcloud.cloud.api.partitions import partition_of
from dlcloud.cloud.compute.requests import tag_list
from dlcloud.model.account import Owner, owner_of
from dlcloud.model.cluster import Leftover, control_role_name
from dlcloud.planning.policies import join_policies

POLICY_NAME = "control-own-cluster"
STORAGE = "-storage"
CONTAINERS = "ecs-tasks.amazonaws.com"
"""The principal of containers. Source: Amazon ECS developer guide, "Task IAM role"."""
TRIES = 60
PAUSE_S = 1.0
EXISTS = {"EntityAlreadyExists"}
FULL = {"LimitExceeded"}  # a profile holds one role
GONE = {"NoSuchEntity"}
DENIED = {"AccessDenied"}
DENIED_PAUSES_S = (1.0, 2.0, 3.0)
"""Between repetitions of a denied call: few, as most denials are meant."""
NEW_ROLE_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 8.0)
"""Between attempts to assume a role that was created a moment ago."""
IN_USE = {"DeleteConflict"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """The role of one cluster: its policy, who may assume it, and its permissions boundary."""

    cluster_id: str
    policy: str
    principals: tuple[str, ...]
    tags: Mapping[str, str]
    boundary: str = ""
    kind: str = "Service"

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments of CreateRole except name and path."""
        statement = {
            "Effect": "Allow",
            "Principal": {self.kind: list(self.principals)},
            "Action": "sts:AssumeRole",
        }
        boundary = {"PermissionsBoundary": self.boundary} if self.boundary else {}
        trust = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        return {"AssumeRolePolicyDocument": trust, "Tags": tag_list(self.tags), **boundary}


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The credentials of a session of a role, for an hour."""

    arn: str
    key_id: str
    secret: str = field(repr=False)
    token: str = field(repr=False)


class IamRoles:
    """The roles of clusters in one region.

    Args:
        clients: The region's clients.
        control_policy: Renders the policy of a role that controls, from cluster id, region and partition.
        pause: Waits some seconds before a refused call is repeated.
    """

    def __init__(
        self,
        *,
        clients: Clients,
        control_policy: Callable[[str, str, str], str],
        pause: Callable[[float], None],
    ) -> None:
        self._clients = clients
        self._control_policy = control_policy
        self._pause = pause

    def put_control(
        self,
        cluster_id: str,
        tags: Mapping[str, str],
        *,
        boundary: str = "",
        storage: str = "",
        own: str = "",
    ) -> str:
        """Return the name of an instance profile that may control this cluster only; made if missing.

        Args:
            cluster_id: The cluster.
            tags: Of the role and the profile.
            boundary: The ARN of the role's permissions boundary; empty for none.
            storage: The policy of the cluster's buckets; empty if it has none.
            own: The policy that the recipe adds.
        """
        region, partition = self._clients.region, partition_of(self._clients.region)
        policy = self._control_policy(cluster_id, region, partition.name)
        more = [_in_partition(text, partition.name) for text in (own, storage) if text]
        policy = join_policies([policy, *more])
        role = Role(
            cluster_id=cluster_id,
            policy=policy,
            principals=(partition.ec2_principal,),
            tags=tags,
            boundary=boundary,
        )
        return self.put_role(role)

    def put_storage(
        self, cluster_id: str, policy: str, tags: Mapping[str, str], *, boundary: str = ""
    ) -> str:
        """Return the name of the instance profile for a cluster's buckets; made if missing."""
        if self._clients.on_instance:
            # An instance has one profile. With the controller's, which has these rights, it can stand by.
            return control_role_name(cluster_id)
        partition = partition_of(self._clients.region)
        role = Role(
            cluster_id=storage_id(cluster_id),
            policy=_in_partition(policy, partition.name),
            principals=(partition.ec2_principal,),
            tags=tags,
            boundary=boundary,
        )
        return self.put_role(role)

    def put_batch(self, cluster_id: str, policy: str, tags: Mapping[str, str], *, boundary: str = "") -> str:
        """Return the name of the profile of AWS Batch's instances, and of the role of its containers."""
        partition = partition_of(self._clients.region)
        role = Role(
            cluster_id=storage_id(cluster_id),
            policy=_in_partition(policy, partition.name),
            principals=(partition.ec2_principal, CONTAINERS),
            tags=tags,
            boundary=boundary,
        )
        return self.put_role(role)

    def delete(self, cluster_id: str) -> None:
        """Delete the roles of a cluster with their profiles; no error if they are gone."""
        self.delete_role(cluster_id)
        if storage_role_name(cluster_id) in {role.resource_id for role in self.find()}:
            self.delete_role(storage_id(cluster_id))

    def put_role(self, role: Role) -> str:
        """Create those of role, policy and instance profile that are missing; return the profile's name.

        The role is created first and deleted last, so that the others are always found through a role. Calls
        are repeated while IAM does not yet know everywhere what was created a moment ago.
        """
        name, path, tags = self._put_with_policy(role), _path(self._clients.region), tag_list(role.tags)
        with translate_errors(
            f"creating the instance profile {name} (iam:CreateInstanceProfile)", ignore=EXISTS
        ):
            self._clients.get("iam").create_instance_profile(InstanceProfileName=name, Path=path, Tags=tags)
        with translate_errors(
            f"putting the role {name} into its profile (iam:AddRoleToInstanceProfile)", ignore=FULL
        ):
            arguments = {"InstanceProfileName": name, "RoleName": name}
            _repeat(self._clients.get("iam").add_role_to_instance_profile, arguments, GONE, pause=self._pause)
        return name

    def _put_with_policy(self, role: Role) -> str:
        """Create a role and give it its policy, where they are missing; return its name."""
        name, path = control_role_name(role.cluster_id), _path(self._clients.region)
        with translate_errors(f"creating the role {name} (iam:CreateRole)", ignore=EXISTS):
            self._clients.get("iam").create_role(RoleName=name, Path=path, **role.arguments)
        with translate_errors(f"giving the role {name} its policy (iam:PutRolePolicy)"):
            arguments = {"RoleName": name, "PolicyName": POLICY_NAME, "PolicyDocument": role.policy}
            _repeat(self._put_policy, arguments, GONE, pause=self._pause)
        return name

    @contextmanager
    def session_under(
        self, policy: str, account: str, *, name: str, tags: Mapping[str, str]
    ) -> Iterator[Session]:
        """Yield a session of a role that has a policy and no other right; the role is deleted at the end.

        Args:
            policy: A document of IAM.
            account: The id of the caller's account.
            name: Of the role, without its prefix.
            tags: Of the role, by which its owner finds what a killed command left.
        """
        partition = partition_of(self._clients.region).name
        root = f"arn:{partition}:iam::{account}:root"
        role = Role(cluster_id=name, policy=policy, principals=(root,), tags=tags, kind="AWS")
        try:
            path, role_name = _path(self._clients.region), self._put_with_policy(role)
            arn = f"arn:{partition}:iam::{account}:role{path}{role_name}"
            with translate_errors(f"assuming the role {arn} (sts:AssumeRole)"):
                arguments = {"RoleArn": arn, "RoleSessionName": "selftest"}
                assume = self._clients.get("sts").assume_role
                answer = retry_codes(assume, arguments, DENIED, pauses_s=NEW_ROLE_PAUSES_S, pause=self._pause)
            yield Session(
                arn=answer["AssumedRoleUser"]["Arn"],
                key_id=answer["Credentials"]["AccessKeyId"],
                secret=answer["Credentials"]["SecretAccessKey"],
                token=answer["Credentials"]["SessionToken"],
            )
        finally:
            self.delete_role(name)

    def _put_policy(self, **arguments: object) -> None:
        """Give a role its policy; IAM may deny it, for want of the role's path, until it sees the role."""
        retry_codes(
            self._clients.get("iam").put_role_policy,
            arguments,
            DENIED,
            pauses_s=DENIED_PAUSES_S,
            pause=self._pause,
        )

    def delete_role(self, cluster_id: str) -> None:
        """Delete profile, policy and role, as far as they exist; wait while IAM still links them.

        Under a policy that names their path, IAM denies what concerns a role that does not exist, since it
        has none: a denial counts where the role is listed.
        """
        name = control_role_name(cluster_id)
        is_listed = name in {role.resource_id for role in self.find()}
        gone = GONE if is_listed else GONE | DENIED
        holds_role = self._holds_role(name)
        if holds_role:
            with translate_errors(
                f"emptying the profile {name} (iam:RemoveRoleFromInstanceProfile)", ignore=GONE
            ):
                self._clients.get("iam").remove_role_from_instance_profile(
                    InstanceProfileName=name, RoleName=name
                )
        if holds_role is not None:
            with translate_errors(
                f"deleting the instance profile {name} (iam:DeleteInstanceProfile)", ignore=GONE
            ):
                arguments = {"InstanceProfileName": name}
                _repeat(
                    self._clients.get("iam").delete_instance_profile, arguments, IN_USE, pause=self._pause
                )
        with translate_errors(f"deleting the policy of the role {name} (iam:DeleteRolePolicy)", ignore=gone):
            self._clients.get("iam").delete_role_policy(RoleName=name, PolicyName=POLICY_NAME)
        with translate_errors(f"deleting the role {name} (iam:DeleteRole)", ignore=gone):
            _repeat(self._clients.get("iam").delete_role, {"RoleName": name}, IN_USE, pause=self._pause)

    def find(self) -> Iterator[Leftover]:
        """Yield the roles of the region's clusters, by their path."""
        with translate_errors("listing roles of dlcloud (iam:ListRoles)"):
            roles = self._clients.pages("iam", "list_roles", "Roles", PathPrefix=_path(self._clients.region))
        for role in roles:
            yield Leftover(
                kind="iam-role",
                resource_id=role["RoleName"],
                cluster_id=role["RoleName"].removeprefix(control_role_name("")).removesuffix(STORAGE),
                name="",
                region=self._clients.region,
            )

    def owner(self, role: str) -> Owner:
        """Return who made the cluster of a role, by the role's tags; an empty owner if unreadable."""
        tags: list[dict[str, str]] = []
        with translate_errors(f"looking at the tags of {role} (iam:ListRoleTags)", ignore=GONE | DENIED):
            tags = self._clients.pages("iam", "list_role_tags", "Tags", RoleName=role)
        return owner_of({tag["Key"]: tag["Value"] for tag in tags})

    def _holds_role(self, profile: str) -> bool | None:
        """True if a profile holds a role; None if there is no such profile."""
        with translate_errors("listing instance profiles of dlcloud (iam:ListInstanceProfiles)"):
            profiles = self._clients.pages(
                "iam", "list_instance_profiles", "InstanceProfiles", PathPrefix=_path(self._clients.region)
            )
        return next(
            (bool(item["Roles"]) for item in profiles if item["InstanceProfileName"] == profile), None
        )


def storage_id(cluster_id: str) -> str:
    """Return what stands for the cluster in the names of the role for its buckets."""
    return cluster_id + STORAGE


def storage_role_name(cluster_id: str) -> str:
    """Return the name of the role for a cluster's buckets, and of its profile."""
    return control_role_name(storage_id(cluster_id))


def _repeat(
    call: Callable[..., Any],
    arguments: Mapping[str, Any],
    codes: Collection[str],
    *,
    pause: Callable[[float], None],
) -> None:
    """Make a call, repeated for a minute while it is refused with one of `codes`."""
    retry_codes(call, arguments, codes, pauses_s=[PAUSE_S] * (TRIES - 1), pause=pause)


def _path(region: str) -> str:
    return f"/dlcloud/{region}/"


def _in_partition(policy: str, partition: str) -> str:
    """Return a policy whose ARNs name a partition."""
    return policy.replace("@PARTITION@", partition)
