"""IAM policies that depend on a recipe: of instances with data in S3, of a controller, of who detaches.

The fixed parts are templates (`templates/iam_policy*.json`); these are joined with them. The partition in an
ARN is `@PARTITION@`, which `cloud.account.roles` replaces by that of the Region. No policy here gives a
right beyond the cluster that it is for.
"""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dlcloud.model.instance import Image
from dlcloud.recipe.data import split_uri

if TYPE_CHECKING:  # pydantic, which most commands never need
    from dlcloud.recipe.recipe import Recipe

GIVES_RIGHTS = ("iam:CreateRole", "iam:PutRolePolicy")
"""The actions by which the holder of a policy could give a role any right."""


def storage_policy(recipe: "Recipe") -> str:
    """Return the IAM policy by which instances read the recipe's data, and keep its checkpoints.

    Its ARNs are those of the partition `aws`.
    """
    reads = sorted({item.source for item in recipe.data if item.is_remote})
    places = sorted(recipe.checkpoint_places.values())
    statements = [_list(uri) for uri in sorted({*reads, *places})]
    if reads:
        resources = [_objects(uri) for uri in reads]
        statements.append({"Effect": "Allow", "Action": "s3:GetObject", "Resource": resources})
    if places:
        actions = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
        objects = [_objects(f"{uri}/") for uri in places] if len(places) > 1 else _objects(f"{places[0]}/")
        statements.append({"Effect": "Allow", "Action": actions, "Resource": objects})
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def results_policy(uri: str) -> str:
    """Return the IAM policy by which instances exchange files and results below a prefix."""
    objects = {"Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject"], "Resource": _objects(uri)}
    # Of a bucket that a customer's key encrypts. Source: S3 user guide, "Using server-side encryption with
    # AWS KMS keys": Decrypt to read, GenerateDataKey to write.
    keys = {
        "Effect": "Allow",
        "Action": ["kms:Decrypt", "kms:GenerateDataKey"],
        "Resource": "*",
        "Condition": {"StringLike": {"kms:ViaService": "s3.*"}},
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [objects, keys, _list(uri)]})


def join_policies(policies: Iterable[str]) -> str:
    """Return one policy with the statements of several."""
    statements = [statement for policy in policies for statement in json.loads(policy)["Statement"]]
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def with_boundary(policy: str, boundary: str) -> str:
    """Return the policy of the holder of `--detach`, who gives roles no rights beyond a boundary.

    Source: IAM user guide, "Delegating responsibility to others using permissions boundaries".

    Args:
        policy: That of the template.
        boundary: The ARN of a managed policy.
    """
    document = json.loads(policy)
    statements: list[dict[str, Any]] = []
    for statement in document["Statement"]:
        bounded = [action for action in GIVES_RIGHTS if action in statement["Action"]]
        if bounded:
            statements.append(
                {
                    **statement,
                    "Sid": "GiveRolesRightsWithinTheBoundaryOnly",
                    "Action": bounded,
                    "Resource": [name for name in statement["Resource"] if ":role/" in name],
                    "Condition": {"StringEquals": {"iam:PermissionsBoundary": boundary}},
                }
            )
            statement["Action"] = [action for action in statement["Action"] if action not in bounded]
        statements.append(statement)
    return json.dumps({**document, "Statement": statements}, indent=2) + "\n"


def controller_policy(
    types: Sequence[str], groups: Sequence[str], region: str, *, image: Image, kms_key: str = ""
) -> str:
    """Return a policy for the role of a cluster's controller, to be joined with its template.

    Whatever the instance runs may use the role: it launches no other types than the recipe's, from no other
    image or snapshot, and with no other key. IAM has no condition on how many. Its ARNs are those of the
    partition `aws`.
    Source: Service Authorization Reference, "Actions, resources, and condition keys for Amazon EC2":
    ec2:InstanceType is there for instances of RunInstances; existing security groups carry no request tag.

    Args:
        types: Those of the recipe.
        groups: The ids of the user's own security groups.
        region: The cluster's.
        image: The image of the plan.
        kms_key: The key of the recipe's disks; empty for that of the account.
    """
    disks = [f"image/{image.image_id}", *(f"snapshot/{name}" for name in image.snapshot_ids)]
    statements: list[dict[str, Any]] = [
        {
            "Sid": "LaunchNoOtherTypes",
            "Effect": "Deny",
            "Action": "ec2:RunInstances",
            "Resource": f"arn:@PARTITION@:ec2:{region}:*:instance/*",
            "Condition": {
                "Null": {"ec2:InstanceType": "false"},
                "StringNotEquals": {"ec2:InstanceType": sorted(types)},
            },
        },
        {
            "Sid": "LaunchFromTheRecipesImageOnly",
            "Effect": "Allow",
            "Action": ["ec2:CreateFleet", "ec2:RunInstances"],
            "Resource": [f"arn:@PARTITION@:ec2:{region}::{name}" for name in disks],
        },
        *_key_statements(region, kms_key, is_image_encrypted=image.encrypted),
    ]
    if groups:
        arn = f"arn:@PARTITION@:ec2:{region}:*:security-group/"
        statements.append(
            {
                "Sid": "LaunchWithTheUsersGroups",
                "Effect": "Allow",
                "Action": "ec2:RunInstances",
                "Resource": [arn + name for name in sorted(groups)],
            }
        )
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def _key_statements(region: str, kms_key: str, *, is_image_encrypted: bool) -> list[dict[str, Any]]:
    """Return the rights on the key of a cluster's disks, which EC2 alone uses in the controller's name.

    Without a key in the recipe it is the account's, which its user may not be allowed to look up. A snapshot
    that is encrypted may have another key, with which it is read only.
    Source: EBS user guide, "Requirements for Amazon EBS encryption"; KMS developer guide,
    "kms:ResourceAliases".
    """
    every = f"arn:@PARTITION@:kms:{region}:*:key/*"
    through: dict[str, Any] = {"StringLike": {"kms:ViaService": f"ec2.{region}.amazonaws.com*"}}
    key, of_key = every, through
    if "alias/" in kms_key:
        alias = kms_key[kms_key.index("alias/") :]
        of_key = {**through, "ForAnyValue:StringEquals": {"kms:ResourceAliases": [alias]}}
    elif kms_key:
        key = kms_key if kms_key.startswith("arn:") else f"arn:@PARTITION@:kms:{region}:*:key/{kms_key}"
    reading = ["kms:Decrypt", "kms:DescribeKey", "kms:ReEncryptFrom"]
    statements = [
        {
            "Sid": "EncryptItsVolumesThroughEc2Only",
            "Effect": "Allow",
            "Action": [*reading, "kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncryptTo"],
            "Resource": key,
            "Condition": of_key,
        },
        {
            "Sid": "GrantTheKeyOfItsVolumesToAwsOnly",
            "Effect": "Allow",
            "Action": "kms:CreateGrant",
            "Resource": key,
            "Condition": {**of_key, "Bool": {"kms:GrantIsForAWSResource": "true"}},
        },
    ]
    if kms_key and is_image_encrypted:
        statements.append(
            {
                "Sid": "ReadItsEncryptedImageThroughEc2Only",
                "Effect": "Allow",
                "Action": reading,
                "Resource": every,
                "Condition": through,
            }
        )
    return statements


def _list(uri: str) -> dict[str, Any]:
    bucket, prefix = split_uri(uri)
    statement: dict[str, Any] = {
        "Effect": "Allow",
        "Action": "s3:ListBucket",
        "Resource": f"arn:@PARTITION@:s3:::{bucket}",
    }
    if prefix:
        statement["Condition"] = {"StringLike": {"s3:prefix": [prefix, f"{prefix}/*"]}}
    return statement


def _objects(uri: str) -> str:
    bucket, prefix = split_uri(uri)
    return f"arn:@PARTITION@:s3:::{bucket}/{prefix}/*" if prefix else f"arn:@PARTITION@:s3:::{bucket}/*"
