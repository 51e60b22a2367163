"""AWS's words for a denial, and the statements that would allow what was denied."""

import json

import pytest

from dlcloud.model.errors import Denial, missing_statements, read_decoded, read_denial
from dlcloud.resources.texts import iam_policy

WHO = "User: arn:aws:sts::1:assumed-role/x/y"
SPOT = "arn:aws:ec2:us-east-1:1:spot-instances-request/*"


REASONS = {
    "because no identity-based policy allows the {action} action": ("identity-based policy", False),
    "because no permissions boundary allows the {action} action": ("permissions boundary", False),
    "with an explicit deny in a service control policy": ("service control policy", True),
    "with an explicit deny in an identity-based policy": ("identity-based policy", True),
    "with an explicit deny": ("", True),
}


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("end", ["", ". Encoded authorization failure message: abc-def"])
@pytest.mark.parametrize(
    ("action", "resource"),
    [("ec2:RunInstances", SPOT), ("iam:GetRole", "role mine"), ("ec2:DescribeImages", "")],
)
def test_a_denial_is_read(action, resource, reason, end):
    where = f" on resource: {resource}" if resource else ""
    text = f"{WHO} is not authorized to perform: {action}{where} {reason.format(action=action)}{end}"
    policy, is_explicit = REASONS[reason]
    expected = Denial(action=action, resource=resource, policy=policy, is_explicit=is_explicit)
    assert read_denial(f"You are not authorized to perform this operation. {text}") == expected


def test_a_decoded_message_is_read_like_any_other():
    context = {"action": "ec2:RunInstances", "resource": SPOT}
    decoded = {"allowed": False, "explicitDeny": True, "context": context}
    denial = read_denial(read_decoded(json.dumps(decoded)))
    assert denial == Denial(action="ec2:RunInstances", resource=SPOT, is_explicit=True)
    decoded["explicitDeny"] = False
    assert read_denial(read_decoded(json.dumps(decoded))).is_explicit is False


def test_the_advice_names_whose_policy_decides():
    values = {"action": "ec2:RunInstances", "resource": SPOT}
    assert "--fix-hint" in Denial(**values, policy="identity-based policy").advise()
    denied = Denial(**values, policy="identity-based policy", is_explicit=True)
    assert "remove the Deny statement on ec2:RunInstances" in denied.advise()
    assert denied.describe().endswith("an explicit deny in the identity-based policy")
    assert "administrator" in Denial(**values, policy="service control policy", is_explicit=True).advise()
    assert Denial(**values).resource_type == "spot-instances-request"
    assert Denial(action="iam:GetRole", resource="role mine").resource_type == ""


def test_the_missing_statement_is_the_templates():
    known = json.loads(iam_policy())["Statement"]
    (statement,) = missing_statements(Denial(action="ec2:RunInstances", resource=SPOT), known)
    assert statement["Sid"] == "LaunchIntoAnyNetworkFromAnyImage"
    (other,) = missing_statements(Denial(action="ec2:DescribeHosts"), known)
    assert other == {"Effect": "Allow", "Action": "ec2:DescribeHosts", "Resource": "*"}
