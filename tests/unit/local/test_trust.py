"""Who may assume a role on the local EC2: what AWS refuses is refused."""

import json

import pytest
from botocore.exceptions import ClientError

ROOT = "arn:aws:iam::123456789012:root"
CONDITIONS = {
    "open": {},
    "external": {"StringEquals": {"sts:ExternalId": "0042"}},
    "mfa": {"Bool": {"aws:MultiFactorAuthPresent": "true"}},
}


@pytest.fixture(scope="module")
def roles(rig):
    iam = rig.client("iam")
    arns = {}
    for name, condition in CONDITIONS.items():
        statement = {"Effect": "Allow", "Principal": {"AWS": ROOT}, "Action": "sts:AssumeRole"}
        document = {"Statement": [{**statement, "Condition": condition}]}
        role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(document))
        arns[name] = role["Role"]["Arn"]
    other = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    role = iam.create_role(RoleName="of-ec2", AssumeRolePolicyDocument=json.dumps({"Statement": other}))
    return {**arns, "of-ec2": role["Role"]["Arn"], "missing": f"{ROOT.removesuffix('root')}role/missing"}


@pytest.mark.parametrize(
    ("role", "settings"),
    [
        ("open", {}),
        ("external", {"ExternalId": "0042"}),
        ("mfa", {"SerialNumber": f"{ROOT.removesuffix('root')}mfa/me", "TokenCode": "123456"}),
    ],
)
def test_a_role_that_trusts_the_account_is_assumed(rig, roles, role, settings):
    answer = rig.client("sts").assume_role(RoleArn=roles[role], RoleSessionName="me", **settings)
    assert answer["AssumedRoleUser"]["Arn"].endswith(f":assumed-role/{role}/me")


@pytest.mark.parametrize(
    ("role", "settings"),
    [
        ("missing", {}),
        ("of-ec2", {}),
        ("external", {}),
        ("external", {"ExternalId": "0043"}),
        ("mfa", {}),
        ("open", {"SerialNumber": "GAHT12345678", "TokenCode": "12345a"}),
    ],
)
def test_what_the_trust_policy_does_not_allow_is_denied(rig, roles, role, settings):
    with pytest.raises(ClientError, match=r"\(AccessDenied\)"):
        rig.client("sts").assume_role(RoleArn=roles[role], RoleSessionName="me", **settings)
