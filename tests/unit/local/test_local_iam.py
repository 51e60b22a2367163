"""Users, roles and accounts on the local EC2: what policies allow, and AWS's words where they do not."""

import json
from functools import partial

import pytest
from botocore.exceptions import ClientError

from dlcloud.local.api.policy import AccessRequest, is_allowed
from tests.fakes.local_ec2 import UBUNTU, refusal

RUN = {"ImageId": UBUNTU, "InstanceType": "c7i.large", "MinCount": 1, "MaxCount": 1}
KINDS = ["image", "instance", "network-interface", "security-group", "snapshot", "subnet", "volume"]
KINDS.append("spot-instances-request")
SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}}
MINE = {"StringEquals": {"aws:ResourceTag/team": "a"}}
OTHERS = {"StringEquals": {"aws:ResourceTag/team": "b"}}
FROM_ANYWHERE = {"IpAddress": {"aws:SourceIp": "::/0"}}


def policy(*statements):
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def allow(action="ec2:*", resource="*", **other):
    return {"Effect": "Allow", "Action": action, "Resource": resource, **other}


def deny(action="ec2:*", **other):
    return {**allow(action), "Effect": "Deny", **other}


def asked(**context):
    """Return the request to terminate an instance with the tag team=a, or in another context."""
    context = context or {"aws:ResourceTag/team": ["a"]}
    resource = "arn:aws:ec2:r:1:instance/i-1"
    return AccessRequest(action="ec2:TerminateInstances", resource=resource, context=context)


@pytest.mark.parametrize(
    ("statements", "allowed"),
    [
        ([], False),
        ([allow()], True),
        ([allow("EC2:terminateinstances")], True),
        ([allow("ec2:Terminate")], False),
        ([allow(["ec2:Run*", "ec2:Terminate??stances"])], True),
        ([allow(resource="arn:aws:ec2:*:*:instance/*")], True),
        ([allow(resource="arn:aws:ec2:*:*:volume/*")], False),
        ([allow(Condition=MINE)], True),
        ([allow(Condition={"StringEquals": {"AWS:ResourceTag/Team": ["b", "a"]}})], True),
        ([allow(Condition=OTHERS)], False),
        ([allow(Condition={"StringEquals": {"aws:RequestTag/team": "a"}})], False),
        ([allow(Condition={"StringLike": {"aws:ResourceTag/team": "?"}})], True),
        ([allow(Condition={**MINE, **FROM_ANYWHERE})], False),
        ([allow(), deny(Condition=MINE)], False),
        ([allow(), deny(Condition=OTHERS)], True),
        ([allow(), deny(Condition=FROM_ANYWHERE)], False),
        ([{"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"}], False),
    ],
)
def test_a_statement_applies_where_action_resource_and_conditions_do(statements, allowed):
    assert is_allowed([policy(*statements)], asked()) is allowed


def test_for_all_values_holds_where_there_are_none():
    document = policy(allow(Condition={"ForAllValues:StringEquals": {"aws:TagKeys": ["x", "y"]}}))
    assert is_allowed([document], asked())
    assert is_allowed([document], asked(**{"aws:TagKeys": ["y"]}))
    assert not is_allowed([document], asked(**{"aws:TagKeys": ["y", "z"]}))


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"Statement": 1}', '{"Statement": ["x"]}'])
def test_policies_add_up_and_one_denial_counts_for_all(broken):
    assert not is_allowed([broken], asked())
    assert is_allowed([broken, policy(allow("s3:*")), policy(allow())], asked())
    assert not is_allowed([policy(allow()), policy(deny())], asked())


@pytest.fixture
def user(rig):
    """Return a function that makes a user with these statements, and returns its clients."""
    return lambda *statements: partial(rig.client, key=rig.user(*statements))


def denial(call, **arguments):
    """Return the message of a call that is denied."""
    with pytest.raises(ClientError, match=r"\((UnauthorizedOperation|AccessDenied)\)") as caught:
        call(**arguments)
    return caught.value.response["Error"]["Message"]


def test_a_user_may_do_what_its_policies_say(user):
    client = user(allow("ec2:DescribeInstances"))
    assert client("sts").get_caller_identity()["Arn"].startswith("arn:aws:iam::123456789012:user/user-")
    assert client("ec2").describe_instances()["Reservations"] is not None
    words = "ec2:DescribeVolumes because no identity-based policy allows the ec2:DescribeVolumes"
    assert words in denial(client("ec2").describe_volumes)


@pytest.mark.parametrize("missing", KINDS)
def test_a_launch_is_denied_for_each_resource_it_touches(user, missing):
    allowed = [f"arn:aws:ec2:*:*:{kind}/*" for kind in KINDS if kind != missing]
    message = denial(user(allow("ec2:RunInstances", allowed))("ec2").run_instances, **RUN, **SPOT)
    words = "is not authorized to perform: ec2:RunInstances on resource: arn:aws:ec2:us-east-1:"
    assert (words in message, f":{missing}/" in message) == (True, True)


def test_a_denial_can_be_decoded_by_whom_a_policy_allows_it(user):
    client = user(allow(), deny("ec2:RunInstances"), allow("sts:DecodeAuthorizationMessage"))
    message = denial(client("ec2").run_instances, **RUN)
    assert "with an explicit deny in an identity-based policy. Encoded" in message
    encoded = message.rpartition("Encoded authorization failure message: ")[2]
    decode = client("sts").decode_authorization_message
    decoded = json.loads(decode(EncodedMessage=encoded)["DecodedMessage"])
    assert (decoded["allowed"], decoded["explicitDeny"]) == (False, True)
    assert decoded["context"]["action"] == "ec2:RunInstances"
    assert denial(user(allow())("sts").decode_authorization_message, EncodedMessage=encoded)
    assert refusal(decode, EncodedMessage="nonsense") == "InvalidAuthorizationMessageException"


def test_the_first_spot_request_makes_ec2s_role_in_the_users_name(rig, user):
    path = "aws-service-role/"
    for role in rig.client("iam").list_roles(PathPrefix=f"/{path}")["Roles"]:
        rig.client("iam").delete_role(RoleName=role["RoleName"])
    ec2 = user(allow())("ec2")
    code = refusal(ec2.run_instances, **RUN, **SPOT)
    assert code == "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
    role = f"arn:aws:iam::*:role/{path}spot.amazonaws.com/*"
    first = user(allow(), allow("iam:CreateServiceLinkedRole", role))("ec2")
    for launching in (first, ec2):
        assert launching.run_instances(**RUN, **SPOT)["Instances"]


def test_a_role_that_does_not_exist_is_denied_to_a_policy_with_its_path(user):
    iam = user(allow(["iam:DeleteRole", "iam:CreateRole"], "arn:aws:iam::*:role/mine/*"))("iam")
    assert "iam:DeleteRole on resource: role gone because" in denial(iam.delete_role, RoleName="gone")
    iam.create_role(RoleName="gone", Path="/mine/", AssumeRolePolicyDocument="{}")
    iam.delete_role(RoleName="gone")


def trust(principal=("AWS", "123456789012"), **condition):
    kind, who = principal
    statement = {"Effect": "Allow", "Principal": {kind: who}, "Action": "sts:AssumeRole"}
    return policy({**statement, "Condition": condition} if condition else statement)


def test_the_boundary_of_a_role_limits_it(rig):
    iam = rig.client("iam")

    def managed(name, *statements):
        return iam.create_policy(PolicyName=name, PolicyDocument=policy(*statements))["Policy"]["Arn"]

    bounded = {"PermissionsBoundary": managed("limit", allow("ec2:Describe*"))}
    role = iam.create_role(RoleName="limited", AssumeRolePolicyDocument=trust(), **bounded)["Role"]
    iam.attach_role_policy(RoleName="limited", PolicyArn=managed("all", allow("*")))
    session = rig.client("sts").assume_role(RoleArn=role["Arn"], RoleSessionName="me")["Credentials"]
    key = [session[name] for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")]
    ec2 = rig.client("ec2", key=key)
    assert ec2.describe_instances()["Reservations"] is not None
    words = "because no permissions boundary allows the ec2:CreateVpc action"
    assert words in denial(ec2.create_vpc, CidrBlock="10.9.0.0/16")


def test_a_launch_or_a_fleet_with_a_profile_passes_its_role(rig, user):
    iam = rig.client("iam")
    iam.create_role(RoleName="puller", AssumeRolePolicyDocument=trust())
    iam.create_instance_profile(InstanceProfileName="pulling")
    iam.add_role_to_instance_profile(InstanceProfileName="pulling", RoleName="puller")
    profile = {"IamInstanceProfile": {"Name": "pulling"}}
    ec2 = user(allow())("ec2")
    words = "iam:PassRole on resource: arn:aws:iam::123456789012:role/puller because no identity-based policy"
    assert words in denial(ec2.run_instances, **RUN, **profile)
    to_ec2 = {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
    may_pass = allow("iam:PassRole", "arn:aws:iam::*:role/puller", Condition=to_ec2)
    assert user(allow(), may_pass)("ec2").run_instances(**RUN, **profile)["Instances"]
    errors = rig.fleet({"ImageId": UBUNTU, "InstanceType": "c7i.large", **profile}, ec2=ec2)["Errors"]
    assert {error["ErrorCode"] for error in errors} == {"UnauthorizedOperation"}
    assert all("iam:PassRole" in error["ErrorMessage"] for error in errors)


ACCOUNT = "arn:aws:iam::123456789012:"


@pytest.fixture(scope="module")
def roles(rig):
    """Make roles that trust the account or EC2, some on a condition."""
    owner = ("AWS", f"{ACCOUNT}root")
    documents = {
        "open": trust(owner),
        "external": trust(owner, StringEquals={"sts:ExternalId": "0042"}),
        "mfa": trust(owner, Bool={"aws:MultiFactorAuthPresent": "true"}),
        "of-ec2": trust(("Service", "ec2.amazonaws.com")),
    }
    for name, document in documents.items():
        rig.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=document)


@pytest.mark.usefixtures("roles")
@pytest.mark.parametrize(
    ("role", "settings", "is_assumed"),
    [
        ("open", {}, True),
        ("external", {"ExternalId": "0042"}, True),
        ("mfa", {"SerialNumber": f"{ACCOUNT}mfa/me", "TokenCode": "123456"}, True),
        ("missing", {}, False),
        ("of-ec2", {}, False),
        ("external", {}, False),
        ("external", {"ExternalId": "0043"}, False),
        ("mfa", {}, False),
        ("open", {"SerialNumber": "GAHT12345678", "TokenCode": "12345a"}, False),
    ],
)
def test_a_role_is_assumed_by_whom_it_trusts(rig, role, settings, is_assumed):
    arguments = {"RoleArn": f"{ACCOUNT}role/{role}", "RoleSessionName": "me", **settings}
    if is_assumed:
        user = rig.client("sts").assume_role(**arguments)["AssumedRoleUser"]
        assert user["Arn"].endswith(f":assumed-role/{role}/me")
    else:
        assert refusal(rig.client("sts").assume_role, **arguments) == "AccessDenied"


OTHER = "222222222222"


@pytest.fixture(scope="module")
def other(rig):
    """Make clients with the access key of another account."""
    return partial(rig.client, key=rig.control.add_account(OTHER))


def listed(ec2):
    reservations = ec2.describe_instances()["Reservations"]
    return [instance["InstanceId"] for reservation in reservations for instance in reservation["Instances"]]


def test_a_caller_is_of_its_own_account_whatever_a_header_says(rig, other):
    assert rig.client("sts").get_caller_identity()["Account"] == "123456789012"
    sts = other("sts")
    identity = sts.get_caller_identity()
    assert (identity["Account"], identity["Arn"].split(":")[4]) == (OTHER, OTHER)

    def add_header(request, **_):
        request.headers["x-moto-account-id"] = "123456789012"

    sts.meta.events.register("before-send", add_header)
    assert sts.get_caller_identity()["Account"] == OTHER


def test_an_account_neither_lists_nor_changes_what_is_anothers(rig, other):
    instance_id, theirs = rig.up()["InstanceId"], other("ec2")
    assert listed(theirs) == []
    for call in (theirs.describe_instances, theirs.terminate_instances):
        assert refusal(call, InstanceIds=[instance_id]) == "InvalidInstanceID.NotFound"
    key = {"InstanceId": instance_id, "InstanceOSUser": "ubuntu", "SSHPublicKey": rig.public_key}
    send = other("ec2-instance-connect").send_ssh_public_key
    assert refusal(send, **key) == "EC2InstanceNotFoundException"
    assert rig.state(instance_id) == "running"
    (own,) = theirs.run_instances(**RUN)["Instances"]
    assert listed(theirs) == [own["InstanceId"]]
    assert own["InstanceId"] not in listed(rig.ec2)
    rig.ec2.create_security_group(GroupName="ours", Description="ours")
    rig.client("iam").create_role(RoleName="ours", AssumeRolePolicyDocument="{}")
    groups = theirs.describe_security_groups()["SecurityGroups"]
    assert "ours" not in {group["GroupName"] for group in groups}
    assert "ours" not in {role["RoleName"] for role in other("iam").list_roles()["Roles"]}
    theirs.terminate_instances(InstanceIds=[own["InstanceId"]])
