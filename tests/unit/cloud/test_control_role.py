"""The role of a cluster: whole again wherever its making broke off, gone wherever its deletion did."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import moto
import pytest
from botocore.exceptions import ClientError

from dlcloud.cloud.account.roles import POLICY_NAME, IamRoles, Role
from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.compute.instances import PROFILE_PAUSES_S, Ec2Instances
from dlcloud.model.account import HOME_TAG, OWNER_TAG, Owner
from dlcloud.model.cluster import CLUSTER_TAG, MANAGED_TAG
from dlcloud.model.errors import CloudError, CredentialsError
from dlcloud.resources.texts import control_policy
from tests.fakes.cloud import Killed

REGION = "us-east-1"
TAGS = {MANAGED_TAG: "true", CLUSTER_TAG: "c0ffee"}
MADE_IN = 4
DELETED_IN = 6
AFTER = {"create_role": "put_role_policy", "create_instance_profile": "add_role_to_instance_profile"}


class Mortal:
    """The clients of a process that is killed after so many calls."""

    def __init__(self, clients, calls):
        self.region = REGION
        self._clients = clients
        self._calls = calls

    def get(self, service):
        self._calls -= 1
        if self._calls < 0:
            raise Killed
        return self._clients.get(service)

    def pages(self, service, *arguments, **keywords):
        self.get(service)
        return self._clients.pages(service, *arguments, **keywords)


ROLE = Role(
    cluster_id="c0ffee", policy=control_policy("c0ffee", REGION), principals=("ec2.amazonaws.com",), tags=TAGS
)


@pytest.fixture
def account():
    """Clients of an account in memory."""
    with moto.mock_aws():
        yield Clients(region=REGION)


@pytest.fixture
def iam(account):
    return account.get("iam")


def never(seconds):
    raise AssertionError(f"waited for {seconds} s")


def roles(clients, pause=never):
    return IamRoles(clients=clients, control_policy=control_policy, pause=pause)


def list_only_the_role(iam):
    role = {
        "Path": "/dlcloud/us-east-1/",
        "RoleName": "dlcloud-c0ffee",
        "RoleId": "A" * 16,
        "Arn": "arn:aws:iam::123456789012:role/dlcloud/us-east-1/dlcloud-c0ffee",
        "CreateDate": datetime(2026, 9, 1, tzinfo=UTC),
    }
    iam.add_response("list_roles", {"Roles": [role]})
    iam.add_response("list_instance_profiles", {"InstanceProfiles": []})


def left(iam):
    profiles = iam.list_instance_profiles()["InstanceProfiles"]
    return [each["RoleName"] for each in iam.list_roles()["Roles"]] + profiles


def assert_whole(iam):
    profile = iam.get_instance_profile(InstanceProfileName="dlcloud-c0ffee")["InstanceProfile"]
    assert profile["Path"] == "/dlcloud/us-east-1/"
    (role,) = profile["Roles"]
    assert iam.list_role_policies(RoleName=role["RoleName"])["PolicyNames"] == ["control-own-cluster"]
    found = iam.list_role_tags(RoleName=role["RoleName"])["Tags"]
    assert {each["Key"]: each["Value"] for each in found} == TAGS
    assert role["AssumeRolePolicyDocument"]["Statement"][0]["Principal"] == {"Service": ["ec2.amazonaws.com"]}


@pytest.mark.parametrize("is_completed", [True, False])
@pytest.mark.parametrize("calls", range(MADE_IN))
def test_a_half_made_role_is_found_completed_and_deleted(account, iam, calls, is_completed):
    with pytest.raises(Killed):
        roles(Mortal(account, calls)).put_role(ROLE)
    found = [each.cluster_id for each in roles(account).find()]
    assert found == (["c0ffee"] if calls else [])
    if is_completed:
        roles(Mortal(account, MADE_IN)).put_role(ROLE)
        assert_whole(iam)
    roles(account).delete_role("c0ffee")
    assert left(iam) == []


@pytest.mark.parametrize("calls", range(DELETED_IN))
def test_a_half_deleted_role_is_found_and_deleted(account, iam, calls):
    roles(account).put_role(ROLE)
    with pytest.raises(Killed):
        roles(Mortal(account, calls)).delete_role("c0ffee")
    assert [each.resource_id for each in roles(account).find()] == ["dlcloud-c0ffee"]
    roles(Mortal(account, DELETED_IN)).delete_role("c0ffee")
    assert left(iam) == []


def test_roles_of_other_regions_and_of_others_are_not_found(account, iam):
    roles(Clients(region="eu-west-1")).put_role(ROLE)
    iam.create_role(RoleName="dlcloud-not-ours", AssumeRolePolicyDocument="{}")
    assert list(roles(account).find()) == []
    (found,) = roles(Clients(region="eu-west-1")).find()
    assert (found.kind, found.region, found.cluster_id) == ("iam-role", "eu-west-1", "c0ffee")


def test_a_role_names_its_owner_where_its_tags_can_be_read(account, clients, stub):
    ours = TAGS | {OWNER_TAG: "0123abcd", HOME_TAG: "4567"}
    roles(account).put_role(replace(ROLE, tags=ours))
    assert roles(account).owner("dlcloud-c0ffee") == Owner(digest="0123abcd", home="4567")
    assert roles(account).owner("dlcloud-gone") == Owner()
    stub(clients.get("iam")).add_client_error("list_role_tags", "AccessDenied")
    assert roles(clients).owner("dlcloud-c0ffee") == Owner()


@pytest.mark.parametrize(
    ("code", "refusals", "least_s"),
    [("UnauthorizedOperation", 1, 0), ("InvalidParameterValue", len(PROFILE_PAUSES_S) + 1, 50)],
)
def test_a_profile_that_ec2_never_learns_of_fails_after_a_minute(clients, stub, code, refusals, least_s):
    ec2, pauses = stub(clients.get("ec2")), []
    for _ in range(refusals):
        ec2.add_client_error("associate_iam_instance_profile", code)
    with pytest.raises(CloudError, match=f"dlcloud-c0ffee.*{code}"):
        Ec2Instances(clients=clients, pause=pauses.append).attach_profile("i-1", "dlcloud-c0ffee")
    assert least_s <= sum(pauses) <= least_s + 10 * bool(least_s)


def test_calls_are_repeated_while_iam_is_not_consistent(clients, stub):
    iam, pauses = stub(clients.get("iam")), []
    for name in ("create_role", "create_instance_profile"):
        iam.add_client_error(name, "EntityAlreadyExists")
        for _ in range(2):
            iam.add_client_error(AFTER[name], "NoSuchEntity")
        iam.add_response(AFTER[name], {})
    roles(clients, pauses.append).put_role(ROLE)
    assert len(pauses) == 4
    list_only_the_role(iam)
    iam.add_response("delete_role_policy", {})
    iam.add_client_error("delete_role", "DeleteConflict")
    iam.add_response("delete_role", {})
    roles(clients, pauses.append).delete_role("c0ffee")
    assert len(pauses) == 5


def test_a_denial_counts_only_where_the_role_exists(clients, stub):
    # IAM denies what concerns a role that does not exist to a caller whose policy names a path.
    iam = stub(clients.get("iam"))
    iam.add_response("list_roles", {"Roles": []})
    iam.add_response("list_instance_profiles", {"InstanceProfiles": []})
    for name in ("delete_role_policy", "delete_role"):
        iam.add_client_error(name, "AccessDenied")
    roles(clients).delete_role("c0ffee")
    list_only_the_role(iam)
    iam.add_client_error("delete_role_policy", "AccessDenied")
    with pytest.raises(CredentialsError, match="DeleteRolePolicy"):
        roles(clients).delete_role("c0ffee")


class Blind:
    """Clients whose IAM denies the policy of a role so often, as it does not see its path yet."""

    region = REGION

    def __init__(self, clients, denials):
        self._clients, self._denials = clients, denials

    def get(self, service):
        self.client = self._clients.get(service)
        return self

    def pages(self, *arguments, **keywords):
        return self._clients.pages(*arguments, **keywords)

    def __getattr__(self, name):
        return getattr(self.client, name)

    def put_role_policy(self, **arguments):
        self._denials -= 1
        if self._denials >= 0:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "PutRolePolicy")
        return self.client.put_role_policy(**arguments)


def test_a_role_that_iam_does_not_see_yet_is_given_its_policy_later(account):
    pauses = []
    assert roles(Blind(account, 2), pauses.append).put_role(ROLE)
    assert pauses == [1.0, 2.0]
    with pytest.raises(CredentialsError):
        roles(Blind(account, 9), pauses.append).put_role(ROLE)


def test_workers_of_a_controller_that_read_buckets_can_stand_by_too(account, iam):
    buckets = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::data/*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [buckets]})
    control = roles(account).put_control("c0ffee", TAGS, storage=policy)
    given = roles(replace(account, on_instance=True)).put_storage("c0ffee", policy, TAGS)
    assert given == control, "EC2 gives an instance one profile"
    document = iam.get_role_policy(RoleName=given, PolicyName=POLICY_NAME)["PolicyDocument"]
    assert buckets in document["Statement"]
    assert [role["RoleName"] for role in iam.list_roles(PathPrefix="/dlcloud/")["Roles"]] == [control]
