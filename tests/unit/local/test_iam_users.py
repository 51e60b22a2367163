"""An IAM user on the local EC2: what its policies allow, and AWS's words where they do not."""

import json
from functools import partial

import pytest
from botocore.exceptions import ClientError

from tests.fakes.local_ec2 import UBUNTU

RUN = {"ImageId": UBUNTU, "InstanceType": "c7i.large", "MinCount": 1, "MaxCount": 1}
KINDS = ["image", "instance", "network-interface", "security-group", "snapshot", "subnet", "volume"]
KINDS.append("spot-instances-request")
SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}}


def statement(action, resource="*", effect="Allow", **other):
    return {"Effect": effect, "Action": action, "Resource": resource, **other}


@pytest.fixture
def user(rig):
    """Return a function that makes a user with these statements, and returns its clients."""
    return lambda *statements: partial(rig.client, key=rig.user(*statements))


def denial(call, **arguments):
    with pytest.raises(ClientError) as refusal:
        call(**arguments)
    return refusal.value.response["Error"]


def test_a_user_may_do_what_its_policies_say(user):
    client = user(statement("ec2:DescribeInstances"))
    assert client("sts").get_caller_identity()["Arn"].startswith("arn:aws:iam::123456789012:user/user-")
    assert client("ec2").describe_instances()["Reservations"] is not None
    error = denial(client("ec2").describe_volumes)
    assert error["Code"] == "UnauthorizedOperation"
    assert (
        "ec2:DescribeVolumes because no identity-based policy allows the ec2:DescribeVolumes"
        in error["Message"]
    )


@pytest.mark.parametrize("missing", KINDS)
def test_a_launch_is_denied_for_each_resource_it_touches(user, missing):
    allowed = [f"arn:aws:ec2:*:*:{kind}/*" for kind in KINDS if kind != missing]
    error = denial(user(statement("ec2:RunInstances", allowed))("ec2").run_instances, **RUN, **SPOT)
    assert error["Code"] == "UnauthorizedOperation"
    assert (
        "is not authorized to perform: ec2:RunInstances on resource: arn:aws:ec2:us-east-1:"
        in error["Message"]
    )
    assert f":{missing}/" in error["Message"]


def test_a_denial_can_be_decoded_by_whom_a_policy_allows_it(user):
    may_decode = statement("sts:DecodeAuthorizationMessage")
    client = user(statement("ec2:*"), statement("ec2:RunInstances", effect="Deny"), may_decode)
    message = denial(client("ec2").run_instances, **RUN)["Message"]
    assert "with an explicit deny in an identity-based policy. Encoded" in message
    encoded = message.rpartition("Encoded authorization failure message: ")[2]
    decoded = json.loads(client("sts").decode_authorization_message(EncodedMessage=encoded)["DecodedMessage"])
    assert (decoded["allowed"], decoded["explicitDeny"]) == (False, True)
    assert decoded["context"]["action"] == "ec2:RunInstances"
    other = user(statement("ec2:*"))
    assert denial(other("sts").decode_authorization_message, EncodedMessage=encoded)["Code"] == "AccessDenied"
    error = denial(client("sts").decode_authorization_message, EncodedMessage="nonsense")
    assert error["Code"] == "InvalidAuthorizationMessageException"


def test_the_first_spot_request_makes_ec2s_role_in_the_users_name(rig, user):
    roles = rig.client("iam").list_roles(PathPrefix="/aws-service-role/")["Roles"]
    for role in roles:
        rig.client("iam").delete_role(RoleName=role["RoleName"])
    ec2 = user(statement("ec2:*"))("ec2")
    error = denial(ec2.run_instances, **RUN, **SPOT)
    assert error["Code"] == "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
    more = statement(
        "iam:CreateServiceLinkedRole", "arn:aws:iam::*:role/aws-service-role/spot.amazonaws.com/*"
    )
    launched = [
        user(statement("ec2:*"), more)("ec2").run_instances(**RUN, **SPOT),
        ec2.run_instances(**RUN, **SPOT),
    ]
    rig.ec2.terminate_instances(InstanceIds=[reply["Instances"][0]["InstanceId"] for reply in launched])


def test_a_role_that_does_not_exist_is_denied_to_a_policy_with_its_path(user):
    iam = user(statement(["iam:DeleteRole", "iam:CreateRole"], "arn:aws:iam::*:role/mine/*"))("iam")
    error = denial(iam.delete_role, RoleName="gone")
    assert error["Code"] == "AccessDenied"
    assert "iam:DeleteRole on resource: role gone because" in error["Message"]
    iam.create_role(RoleName="gone", Path="/mine/", AssumeRolePolicyDocument="{}")
    iam.delete_role(RoleName="gone")


TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": {"AWS": "123456789012"}, "Action": "sts:AssumeRole"}],
    }
)


def test_the_boundary_of_a_role_limits_it(rig):
    iam = rig.client("iam")
    document = {"Version": "2012-10-17", "Statement": [statement("ec2:Describe*")]}
    boundary = iam.create_policy(PolicyName="limit", PolicyDocument=json.dumps(document))["Policy"]["Arn"]
    role = iam.create_role(RoleName="limited", AssumeRolePolicyDocument=TRUST, PermissionsBoundary=boundary)[
        "Role"
    ]
    everything = json.dumps({"Version": "2012-10-17", "Statement": [statement("*")]})
    managed = iam.create_policy(PolicyName="all", PolicyDocument=everything)["Policy"]["Arn"]
    iam.attach_role_policy(RoleName="limited", PolicyArn=managed)
    session = rig.client("sts").assume_role(RoleArn=role["Arn"], RoleSessionName="me")["Credentials"]
    key = [session[name] for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")]
    ec2 = rig.client("ec2", key=key)
    assert ec2.describe_instances()["Reservations"] is not None
    message = denial(ec2.create_vpc, CidrBlock="10.9.0.0/16")["Message"]
    assert "because no permissions boundary allows the ec2:CreateVpc action" in message


@pytest.fixture(scope="module")
def profile(rig):
    """An instance profile of the account, whose role a caller must be allowed to pass."""
    iam = rig.client("iam")
    iam.create_role(RoleName="puller", AssumeRolePolicyDocument=TRUST)
    iam.create_instance_profile(InstanceProfileName="pulling")
    iam.add_role_to_instance_profile(InstanceProfileName="pulling", RoleName="puller")
    return {"IamInstanceProfile": {"Name": "pulling"}}


def test_a_launch_with_a_profile_passes_its_role(rig, user, profile):
    error = denial(user(statement("ec2:*"))("ec2").run_instances, **RUN, **profile)
    assert error["Code"] == "UnauthorizedOperation"
    assert (
        "iam:PassRole on resource: arn:aws:iam::123456789012:role/puller because no identity-based policy"
        in error["Message"]
    )
    to_ec2 = {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
    may_pass = statement("iam:PassRole", "arn:aws:iam::*:role/puller", Condition=to_ec2)
    launched = user(statement("ec2:*"), may_pass)("ec2").run_instances(**RUN, **profile)
    rig.ec2.terminate_instances(InstanceIds=[launched["Instances"][0]["InstanceId"]])


def test_a_fleet_passes_the_role_of_its_template(rig, user, profile):
    data = {"ImageId": UBUNTU, "InstanceType": "c7i.large", **profile}
    refused = rig.fleet(data, ec2=user(statement("ec2:*"))("ec2"))["Errors"]
    assert {error["ErrorCode"] for error in refused} == {"UnauthorizedOperation"}
    assert all("iam:PassRole" in error["ErrorMessage"] for error in refused)
