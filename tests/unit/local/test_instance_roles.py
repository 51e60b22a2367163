"""An instance's role on the local EC2: its credentials, permissions and sessions."""

import json
import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from botocore.exceptions import ClientError
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dlcloud.cloud.account.roles import POLICY_NAME, Role
from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.compute.images import Images
from dlcloud.cloud.compute.requests import run_instances_arguments, template_data
from dlcloud.cloud.ec2 import Ec2Cloud
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.cloud.offers.instance_types import InstanceTypes
from dlcloud.cloud.offers.prices import Prices
from dlcloud.model.cluster import CLUSTER_TAG, CONTROLLER_TAG, MANAGED_TAG
from dlcloud.model.errors import CloudError, CredentialsError
from dlcloud.model.instance import Image, InstanceState, Market
from dlcloud.planning.launch_request import FleetRequest
from dlcloud.planning.policies import controller_policy, join_policies
from dlcloud.resources.texts import control_policy
from tests.fakes import samples
from tests.fakes.clock import FakeClock
from tests.fakes.local_ec2 import UBUNTU, wait_for

REGION = "us-east-1"
TYPE = "c7i.large"
KEY = "alias/disks"
OWN = {"team": "vision", "cost-center": "0042"}


def cloud_of(clients, clock=None, pause=None):
    catalog, clock = Catalog(), clock or FakeClock()
    return Ec2Cloud(
        clients=clients,
        types=InstanceTypes(clients=clients, catalog=catalog, cache=None, clock=clock),
        images=Images(clients=clients, cache=None, clock=clock),
        prices=Prices(clients=clients, catalog=catalog, cache=None, clock=clock),
        own_cidr=lambda: "127.0.0.1/32",
        control_policy=with_any_image,
        pause=pause or clock.sleep,
    )


def with_any_image(cluster, region, partition="aws"):
    """Return the role's policy with what a recipe adds to it, for any image."""
    image = Image(image_id="*", name="", root_device="", snapshot_ids=["*"])
    own = controller_policy([TYPE], [], region, image=image).replace("@PARTITION@", partition)
    return join_policies([control_policy(cluster, region, partition), own])


def tags(cluster):
    return {MANAGED_TAG: "true", CLUSTER_TAG: cluster}


def request(rig, cloud, cluster, **other):
    values = {
        "instance_type": TYPE,
        "image": cloud.images.resolve("auto", gpu=False),
        "disk_gib": 10,
        "security_group_id": cloud.network.create_group(cluster, tags(cluster)),
        "user_data": rig.user_data(),
        "client_token": secrets.token_hex(16),
        "tags": tags(cluster),
    }
    return samples.request(**{**values, **other})


def fleet(cloud, template, cluster):
    return cloud.fleets.launch(
        FleetRequest(
            template=template,
            pools=((TYPE, "us-east-1a"), (TYPE, "us-east-1b")),
            spot_count=1,
            on_demand_count=0,
            client_token=secrets.token_hex(16),
            tags=tags(cluster),
            requested_at=FakeClock().now(),
        )
    )


def running(rig, cloud, cluster):
    (launched,) = cloud.instances.launch(request(rig, cloud, cluster))
    rig.await_state(launched.instance_id, "running")
    return next(i for i in cloud.instances.find(cluster) if i.instance_id == launched.instance_id)


@pytest.fixture(scope="module")
def owner(rig):
    return cloud_of(rig.clients())


@pytest.fixture(scope="module")
def coordinator(rig, owner):
    instance = running(rig, owner, "mine")
    owner.instances.attach_profile(instance.instance_id, owner.roles.put_control("mine", tags("mine")))
    return instance


@pytest.fixture(scope="module")
def stranger(rig, owner):
    return running(rig, owner, "theirs")


def on_instance(rig, instance, monkeypatch):
    """Be a program on an instance, as far as boto3 sees."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    entry = rig.entry(instance.instance_id)
    address = f"http://{entry['host']}:{entry['metadata_port']}"
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", address)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")


@pytest.fixture
def controller(rig, coordinator, monkeypatch):
    """The cloud as a program on the coordinator sees it: boto3 finds the role by itself."""
    on_instance(rig, coordinator, monkeypatch)
    return cloud_of(Clients(region=REGION, endpoint_url=rig.endpoint.url, on_instance=True))


def credentials(rig, instance):
    path = "latest/meta-data/iam/security-credentials/"
    _, name = rig.metadata_v2({"InstanceId": instance.instance_id}, path)
    return json.loads(rig.metadata_v2({"InstanceId": instance.instance_id}, path + name)[1])


def client(rig, service, session, **other):
    fields = {"access_key": "AccessKeyId", "secret_key": "SecretAccessKey", "token": "Token"}
    key = [other.get(name, session[field]) for name, field in fields.items()]
    return rig.client(service, key=key)


def refusal(call, **arguments):
    """Return the code that a call is refused with, or None."""
    try:
        call(**arguments)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return None


def test_the_metadata_shows_profile_and_role_and_boto3_finds_them(
    rig, owner, controller, coordinator, stranger
):
    there, elsewhere = ({"InstanceId": instance.instance_id} for instance in (coordinator, stranger))
    info = json.loads(rig.metadata_v2(there, "latest/meta-data/iam/info")[1])
    assert info["InstanceProfileArn"].endswith("instance-profile/dlcloud/us-east-1/dlcloud-mine")
    assert rig.metadata_v2(there, "latest/meta-data/iam/security-credentials/") == (200, "dlcloud-mine")
    assert rig.metadata_v2(elsewhere, "latest/meta-data/iam/info")[0] == 404
    assert controller.caller.identity().arn.endswith(f"assumed-role/dlcloud-mine/{coordinator.instance_id}")
    assert "assumed-role" not in owner.caller.identity().arn
    owner.instances.put_tags([coordinator.instance_id], {CONTROLLER_TAG: "true"})
    instance = {i.instance_id: i for i in owner.instances.find("mine")}[coordinator.instance_id]
    assert (instance.tags[CONTROLLER_TAG], instance.tags[CLUSTER_TAG]) == ("true", "mine")


def test_a_role_that_comes_only_now_is_waited_for(rig, owner, stranger, monkeypatch):
    profile = owner.roles.put_control("late", tags("late"))
    instance = running(rig, owner, "late")
    on_instance(rig, instance, monkeypatch)
    waited = []

    def pause(seconds):
        waited.append(seconds)
        if len(waited) == 2:
            owner.instances.attach_profile(instance.instance_id, profile)

    clients = Clients(region=REGION, endpoint_url=rig.endpoint.url, on_instance=True, pause=pause)
    assert cloud_of(clients).caller.identity().arn.endswith(instance.instance_id)
    assert len(waited) == 2
    on_instance(rig, stranger, monkeypatch)
    without = Clients(region=REGION, endpoint_url=rig.endpoint.url, on_instance=True, pause=waited.append)
    with pytest.raises(CredentialsError, match="no AWS credentials"):
        cloud_of(without).caller.identity()
    assert sum(waited[2:]) == 60


def test_a_controller_does_for_its_cluster_all_that_a_launcher_does(rig, controller, owner):
    group = controller.network.create_group("mine", tags("mine"))
    controller.network.allow_ssh(group, "127.0.0.1/32")
    controller.network.allow_peers(group)
    assert controller.types.zones([TYPE])
    assert controller.prices.find([TYPE], [Market.ON_DEMAND, Market.SPOT])
    (one,) = controller.instances.launch(request(rig, controller, "mine"))
    template = controller.fleets.create_template(request(rig, controller, "mine", market=Market.SPOT))
    (other,) = fleet(controller, template, "mine").instances
    controller.instances.terminate([one.instance_id, other.instance_id])
    controller.fleets.delete(controller.fleets.find("mine"))
    controller.fleets.delete_templates("mine")
    controller.network.revoke_ssh("mine")
    owner.network.allow_ssh(group, "127.0.0.1/32")


def with_tagged_spot_requests(cluster, region):
    """Return a policy that allows spot requests with the cluster's tag only."""
    document = json.loads(with_any_image(cluster, region))
    kind = f"arn:aws:ec2:{region}:*:spot-instances-request/*"
    for statement in document["Statement"]:
        if kind in statement["Resource"]:
            statement["Resource"].remove(kind)
        if statement["Sid"] == "CreateOnlyForItsCluster":
            statement["Resource"].append(kind)
    return json.dumps(document)


def assume(rig, name):
    """Assume a role of an instance as the account's owner, whom it is made to trust."""
    statement = {"Effect": "Allow", "Principal": {"AWS": "123456789012"}, "Action": "sts:AssumeRole"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    rig.client("iam").update_assume_role_policy(RoleName=name, PolicyDocument=document)
    arn = rig.client("iam").get_role(RoleName=name)["Role"]["Arn"]
    session = rig.client("sts").assume_role(RoleArn=arn, RoleSessionName="me")["Credentials"]
    return {**session, "Token": session["SessionToken"]}


def test_a_spot_request_of_a_fleet_is_authorized_without_tags(rig, owner):
    owner.roles.put_control("untagged", tags("untagged"))
    rig.client("iam").put_role_policy(
        RoleName="dlcloud-untagged",
        PolicyName=POLICY_NAME,
        PolicyDocument=with_tagged_spot_requests("untagged", REGION),
    )
    ec2 = client(rig, "ec2", assume(rig, "dlcloud-untagged"))
    template = owner.fleets.create_template(request(rig, owner, "untagged"))
    overrides = [{"InstanceType": TYPE, "AvailabilityZone": "us-east-1a"}]
    own = [{"Key": key, "Value": text} for key, text in tags("untagged").items()]
    tagged = [{"ResourceType": kind, "Tags": own} for kind in ("fleet", "instance")]

    def answer(market):
        reply = rig.fleet(template, overrides, market=market, ec2=ec2, TagSpecifications=tagged)
        return [error["ErrorCode"] for error in reply["Errors"]], len(reply["Instances"])

    # EC2 answers such a call with success: the denial is an error of each pool.
    assert answer("spot") == (["UnauthorizedOperation"], 0)
    assert answer("on-demand") == ([], 1)


def test_a_controller_does_nothing_for_another_cluster(rig, controller, owner, stranger):
    template = owner.fleets.create_template(request(rig, owner, "theirs"))
    group = owner.network.create_group("theirs", tags("theirs"))
    owner.network.allow_ssh(group, "127.0.0.1/32")
    own_group = owner.network.create_group("mine", tags("mine"))
    launch = request(rig, owner, "mine")
    other = request(rig, owner, "theirs")
    attempts = [
        lambda: controller.instances.terminate([stranger.instance_id]),
        lambda: controller.instances.launch(other),
        lambda: controller.instances.launch(request(rig, owner, "mine", tags=tags("theirs"))),
        lambda: controller.instances.launch(request(rig, owner, "mine", security_group_id=group)),
        lambda: controller.fleets.create_template(other),
        lambda: fleet(controller, template, "mine"),
        lambda: fleet(controller, template, "theirs"),
        lambda: controller.network.create_group("theirs", tags("theirs")),
        lambda: controller.network.allow_ssh(group, "0.0.0.0/0"),
        lambda: controller.network.revoke_ssh("theirs"),
        lambda: controller.fleets.delete_templates("theirs"),
        lambda: controller.network.delete_groups("theirs"),
        lambda: controller.instances.put_tags([stranger.instance_id], tags("mine")),
        lambda: controller.instances.put_tags([stranger.instance_id], {CONTROLLER_TAG: "true"}),
        lambda: controller.roles.put_control("mine", tags("mine")),
        lambda: controller.roles.delete("mine"),
        lambda: controller.instances.attach_profile(stranger.instance_id, "dlcloud-mine"),
        lambda: controller.instances.admit_key(stranger, "ubuntu", rig.public_key),
        controller.leftovers.find,
    ]
    for number, attempt in enumerate(attempts):
        with pytest.raises(CredentialsError, match=r"UnauthorizedOperation|AccessDenied"):
            pytest.fail(f"attempt {number} was allowed: {attempt()}")
    assert stranger.instance_id in {i.instance_id for i in owner.instances.find("theirs") if i.alive}
    assert launch.security_group_id == own_group


def test_a_controller_cannot_reach_beyond_what_is_listed(rig, coordinator):
    ec2 = client(rig, "ec2", credentials(rig, coordinator))
    assert refusal(ec2.create_vpc, CidrBlock="10.9.0.0/16") == "UnauthorizedOperation"
    assert refusal(ec2.reboot_instances, InstanceIds=[coordinator.instance_id]) == "UnauthorizedOperation"
    ssm = client(rig, "ssm", credentials(rig, coordinator))
    assert refusal(ssm.get_parameters, Names=["/mine"]) == "AccessDeniedException"
    forged = client(rig, "ec2", credentials(rig, coordinator), secret_key="wrong")
    assert refusal(forged.describe_instances) == "AuthFailure"
    sts = client(rig, "sts", credentials(rig, coordinator))
    assert refusal(sts.assume_role, RoleArn="arn:aws:iam::1:role/x", RoleSessionName="me") == "AccessDenied"


def test_short_credentials_are_renewed_and_end(rig, owner):
    instance = running(rig, owner, "short")
    owner.instances.attach_profile(instance.instance_id, owner.roles.put_control("short", tags("short")))
    rig.control.set_role_session(2.0)
    try:
        first = credentials(rig, instance)
        wait_for(lambda: credentials(rig, instance)["AccessKeyId"] != first["AccessKeyId"], "new ones")
        old = client(rig, "ec2", first)
        wait_for(lambda: refusal(old.describe_instances) == "RequestExpired", "the end of the first")
        assert refusal(client(rig, "sts", first).get_caller_identity) == "ExpiredToken"
    finally:
        rig.control.set_role_session(6 * 3600)
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    wait_for(lambda: credentials(rig, instance)["Expiration"] > soon, "long ones")
    newest = credentials(rig, instance)
    assert refusal(client(rig, "ec2", newest).describe_instances) is None
    assert refusal(client(rig, "ec2", newest, token="wrong").describe_instances) == "AuthFailure"


def test_a_role_is_made_and_attached_once_and_deleted_from_any_state(rig, owner, coordinator):
    for _ in range(2):
        assert owner.roles.put_control("again", tags("again")) == "dlcloud-again"
    with pytest.raises(CloudError, match="another instance profile"):
        owner.instances.attach_profile(coordinator.instance_id, "dlcloud-again")
    owner.instances.attach_profile(coordinator.instance_id, "dlcloud-mine")
    iam = rig.client("iam")
    iam.remove_role_from_instance_profile(InstanceProfileName="dlcloud-again", RoleName="dlcloud-again")
    roles = {left.cluster_id: left for left in owner.leftovers.find() if left.kind == "iam-role"}
    assert set(roles) >= {"again", "mine"}
    assert roles["again"].resource_id == "dlcloud-again"
    elsewhere = cloud_of(rig.clients("eu-west-1"))
    assert not elsewhere.leftovers.find()
    for _ in range(2):
        owner.roles.delete("again")
    assert "again" not in {left.cluster_id for left in owner.leftovers.find()}


def test_a_new_profile_is_awaited_and_a_missing_one_is_an_error(rig, owner, stranger):
    clock = FakeClock()
    waiting = cloud_of(rig.clients(), clock)
    profile = owner.roles.put_control("theirs", tags("theirs"))
    rig.control.add_fault("AssociateIamInstanceProfile", "InvalidParameterValue", times=3)
    began = clock.monotonic()
    waiting.instances.attach_profile(stranger.instance_id, profile)
    assert clock.monotonic() - began == 3.0
    ec2 = client(rig, "ec2", credentials(rig, stranger))
    assert ec2.describe_instances()["Reservations"]
    owner.roles.delete("theirs")
    assert refusal(ec2.describe_instances) == "AuthFailure"
    with pytest.raises(CloudError, match="dlcloud-never"):
        waiting.instances.attach_profile(stranger.instance_id, "dlcloud-never")


def test_a_key_is_let_in_through_instance_connect(rig, owner, stranger):
    there = rig.describe(stranger.instance_id)
    owner.network.allow_ssh(owner.network.find_group("theirs"), "127.0.0.1/32")  # else packets are dropped
    mine, rig.key = rig.key, Ed25519PrivateKey.generate()
    try:
        with pytest.raises(Exception, match="Authentication failed"):
            rig.on(there, "true")
        owner.instances.admit_key(stranger, "ubuntu", rig.public_key)
        assert rig.on(there, "echo in")[:2] == (0, "in\n")
    finally:
        rig.key = mine
    with pytest.raises(CloudError, match="InvalidArgsException"):
        owner.instances.admit_key(stranger, "ubuntu", "ssh-ed25519 " + "nonsense" * 10)
    (ended,) = owner.instances.launch(request(rig, owner, "theirs"))
    assert ended.state is InstanceState.PENDING
    owner.instances.terminate([ended.instance_id])
    with pytest.raises(CloudError, match=r"EC2InstanceStateInvalidException|EC2InstanceNotFound"):
        owner.instances.admit_key(ended, "ubuntu", rig.public_key)


def own_request(**others):
    tags = replace(samples.cluster(), own_tags=json.dumps(OWN)).tags
    image = Image(image_id=UBUNTU, name="Ubuntu", root_device="/dev/sda1")
    return samples.request(**{"image": image, "tags": tags, "security_group_id": "", **others})


def test_a_launch_has_the_accounts_own_profile_key_and_tags(rig):
    rig.client("iam").create_instance_profile(InstanceProfileName="trainers")
    own = own_request(profile="trainers", kms_key=KEY)
    (instance,) = rig.ec2.run_instances(**run_instances_arguments(own))["Instances"]
    shown = rig.describe(instance["InstanceId"])
    assert shown["IamInstanceProfile"]["Arn"].endswith("/trainers")
    volume_id = shown["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    (volume,) = rig.ec2.describe_volumes(VolumeIds=[volume_id])["Volumes"]
    assert (volume["Encrypted"], volume["KmsKeyId"]) == (True, KEY)
    for thing in (shown, volume):
        shown_tags = {tag["Key"]: tag["Value"] for tag in thing["Tags"]}
        assert OWN.items() <= shown_tags.items()
        assert shown_tags[CLUSTER_TAG] == samples.cluster().cluster_id
    rig.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    data = template_data(own, "")
    assert data["IamInstanceProfile"] == {"Name": "trainers"}
    assert data["BlockDeviceMappings"][0]["Ebs"]["KmsKeyId"] == KEY
    plain = template_data(own_request(), "")
    assert "IamInstanceProfile" not in plain
    assert "KmsKeyId" not in plain["BlockDeviceMappings"][0]["Ebs"]


def test_a_role_of_dlcloud_has_the_boundary_and_the_tags(rig, owner):
    boundary, policy = "arn:aws:iam::123456789012:policy/Boundary", control_policy("bounded", REGION)
    names = {"cluster_id": "bounded", "policy": policy, "principals": ("ec2.amazonaws.com",)}
    name = owner.roles.put_role(Role(tags=OWN, boundary=boundary, **names))
    shown = rig.client("iam").get_role(RoleName=name)["Role"]
    assert shown["PermissionsBoundary"]["PermissionsBoundaryArn"] == boundary
    assert {tag["Key"]: tag["Value"] for tag in shown["Tags"]} == OWN
    owner.roles.delete_role("bounded")
