"""What the controller of a detached cluster may do beside the template of its role, and what bounds it."""

import json
from collections.abc import Sequence
from typing import Any

GIVES_RIGHTS = ("iam:CreateRole", "iam:PutRolePolicy")
"""The actions by which the holder of a policy could give a role any right."""


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


def controller_policy(types: Sequence[str], groups: Sequence[str], region: str) -> str:
    """Return a policy for the role of a cluster's controller, to be joined with its template.

    Whatever the instance runs may use the role: it launches no other types than the recipe's. IAM has no
    condition on how many. Its ARNs are those of the partition `aws`.
    Source: Service Authorization Reference, "Actions, resources, and condition keys for Amazon EC2":
    ec2:InstanceType is there for instances of RunInstances; existing security groups carry no request tag.

    Args:
        types: Those of the recipe.
        groups: The ids of the user's own security groups.
        region: The cluster's.
    """
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
        }
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
