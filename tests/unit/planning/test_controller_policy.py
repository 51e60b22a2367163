"""What a controller's role adds of its recipe, and how a boundary binds who makes such roles."""

import json

import pytest

from dlcloud.local.api.policy import AccessRequest, is_allowed
from dlcloud.model.instance import Image
from dlcloud.planning.policies import controller_policy, join_policies, with_boundary
from dlcloud.resources.texts import control_policy, iam_policy

REGION = "us-east-1"
BOUNDARY = "arn:aws:iam::123456789012:policy/bound"
MINE = {"aws:RequestTag/dlcloud:cluster": ["c0ffee"]}
KEY = f"arn:aws:kms:{REGION}:1:key/k"
USES = ("Decrypt", "DescribeKey", "GenerateDataKeyWithoutPlaintext", "ReEncryptFrom", "ReEncryptTo")


def role(types=("g6.xlarge", "g5.xlarge"), groups=("sg-2", "sg-1"), kms_key="", **image):
    image = Image(image_id="ami-1", name="", root_device="/dev/sda1", snapshot_ids=["snap-1"], **image)
    own = controller_policy(types, groups, REGION, image=image, kms_key=kms_key).replace("@PARTITION@", "aws")
    return [join_policies([control_policy("c0ffee", REGION), own])]


def ec2(kind, action="ec2:RunInstances", **context):
    return AccessRequest(action=action, resource=f"arn:aws:ec2:{REGION}:1:{kind}", context=context)


@pytest.mark.parametrize(
    ("name", "allowed"), [("g6.xlarge", True), ("g5.xlarge", True), ("p5.48xlarge", False)]
)
def test_a_controller_launches_only_the_types_of_its_recipe(name, allowed):
    request = ec2("instance/*", **MINE, **{"ec2:InstanceType": [name]})
    assert is_allowed(role(), request) is allowed
    assert is_allowed(role(), ec2("instance/*", "ec2:CreateFleet", **MINE)), "a fleet names no type"


def test_a_controller_launches_with_the_users_own_groups_and_no_others():
    assert is_allowed(role(), ec2("security-group/sg-1"))
    assert is_allowed(role(), ec2("security-group/sg-2"))
    assert not is_allowed(role(), ec2("security-group/sg-3"))
    assert not is_allowed(role(groups=()), ec2("security-group/sg-1"))


@pytest.mark.parametrize("action", ["ec2:CreateFleet", "ec2:RunInstances"])
def test_a_controller_launches_from_the_recipes_image_only(action):
    for name, allowed in (("image/ami-1", True), ("snapshot/snap-1", True), ("image/ami-2", False)):
        request = AccessRequest(action=action, resource=f"arn:aws:ec2:{REGION}::{name}")
        assert is_allowed(role(), request) is allowed, name
    stolen = AccessRequest(action=action, resource=f"arn:aws:ec2:{REGION}::snapshot/snap-of-another-disk")
    assert not is_allowed(role(), stolen)


@pytest.mark.parametrize("named", ["k", KEY, "alias/mine", f"arn:aws:kms:{REGION}:1:alias/mine"])
def test_a_controller_uses_no_other_key_than_the_recipes(named):
    through = {"kms:ViaService": [f"ec2.{REGION}.amazonaws.com"]}
    own = {**through, "kms:ResourceAliases": ["alias/mine"]}
    for action in USES:
        mine = AccessRequest(action=f"kms:{action}", resource=KEY, context=own)
        other = AccessRequest(action=f"kms:{action}", resource=f"{KEY}2", context=through)
        assert is_allowed(role(kms_key=named), mine)
        assert not is_allowed(role(kms_key=named), other)
        is_reading = action in {"Decrypt", "DescribeKey", "ReEncryptFrom"}
        assert is_allowed(role(kms_key=named, encrypted=True), other) is is_reading


def test_a_controller_uses_keys_of_volumes_through_ec2_only():
    through = {"kms:ViaService": [f"ec2.{REGION}.amazonaws.com"]}
    for action in USES:
        assert is_allowed(role(), AccessRequest(action=f"kms:{action}", resource=KEY, context=through))
        assert not is_allowed(role(), AccessRequest(action=f"kms:{action}", resource=KEY))
    grant = AccessRequest(action="kms:CreateGrant", resource=KEY, context=through)
    assert not is_allowed(role(), grant), "a grant for anyone"
    aws = {**through, "kms:GrantIsForAWSResource": ["true"]}
    assert is_allowed(role(), AccessRequest(action="kms:CreateGrant", resource=KEY, context=aws))


@pytest.mark.parametrize("service", ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"])
def test_a_controller_passes_its_role_on_in_china_too(service):
    arn = f"arn:aws:iam::1:role/dlcloud/{REGION}/dlcloud-c0ffee"
    context = {"iam:PassedToService": [service]}
    assert is_allowed(role(), AccessRequest(action="iam:PassRole", resource=arn, context=context))


def test_under_a_boundary_roles_are_made_with_it_only():
    policy = [with_boundary(iam_policy("iam_policy_detach.json"), BOUNDARY)]
    arn = "arn:aws:iam::1:role/dlcloud/us-east-1/dlcloud-c0ffee"
    for action in ("iam:CreateRole", "iam:PutRolePolicy"):
        bounded = {"iam:PermissionsBoundary": [BOUNDARY]}
        assert is_allowed(policy, AccessRequest(action=action, resource=arn, context=bounded))
        assert not is_allowed(policy, AccessRequest(action=action, resource=arn))
    assert is_allowed(policy, AccessRequest(action="iam:DeleteRole", resource=arn))
    names = [statement["Sid"] for statement in json.loads(policy[0])["Statement"]]
    assert len(names) == len(set(names))
