"""The policies against AWS's Service Authorization Reference, and against what recorded calls touch.

Every method of the cloud and of the account is called on moto, in this process; the local EC2's own rules say
about which action on which resource IAM is asked for each of the calls.
"""

import contextlib
import io
import json
from urllib.parse import urlsplit

import boto3
import moto
import pytest
from botocore.exceptions import BotoCoreError, ClientError
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends

from dlcloud.cloud.account.billing import Billing
from dlcloud.cloud.account.limits import Ec2Account
from dlcloud.cloud.api.clients import Clients, decode
from dlcloud.cloud.network.vpc import ready_endpoints
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.local.api.call import read_call
from dlcloud.local.api.policy import AccessRequest, is_allowed
from dlcloud.local.ec2.network import PlacementGroup, groups_of
from dlcloud.local.iam.access import access_requests, spot_role_request
from dlcloud.model.cluster import IMAGE_TAG
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import KEY_ACTIONS, Image, Market
from dlcloud.model.remote import Access
from dlcloud.planning.launch_request import FleetRequest
from dlcloud.planning.policies import controller_policy, join_policies
from dlcloud.recipe.network import Network
from dlcloud.resources.texts import control_policy, iam_policy
from tests.authorization_data import resource_types, type_of
from tests.fakes.clock import FakeClock
from tests.fakes.samples import cluster
from tests.unit.cloud.conftest import REGION, cloud_over, request

TYPE = "c7i.xlarge"
GROUP = "dlcloud-c0ffee"


def of_controller():
    """Return what the recipe adds to a controller's role, its denial left out; moto's images are random."""
    image = Image(image_id="*", name="", root_device="/dev/sda1", snapshot_ids=["*"])
    content = json.loads(controller_policy([TYPE], [], REGION, image=image).replace("@PARTITION@", "aws"))
    allowed = [statement for statement in content["Statement"] if statement["Effect"] == "Allow"]
    return json.dumps({**content, "Statement": allowed})


POLICIES = {
    "iam_policy.json": [iam_policy()],
    "iam_policy_detach.json": [iam_policy(), iam_policy("iam_policy_detach.json")],
    "control_policy.json": [join_policies([control_policy("c0ffee", REGION), of_controller()])],
}
"""A policy, last, with those that it adds to."""
SHARED = {
    "capacity-reservation",
    "image",
    "network-interface",
    "placement-group",
    "security-group",
    "snapshot",
    "spot-instances-request",
    "subnet",
    "vpc",
}
"""What a launch touches without changing it, or makes without a tag of its own."""


class Recorder:
    """The calls of a session, and the requests to IAM that each implies at its time."""

    def __init__(self, session):
        self.requests = []
        self.actions = set()
        session.events.register_first("before-send", self.record)

    def record(self, request, **_):
        headers = {key.lower(): as_text(value) for key, value in request.headers.items()}
        body = request.body or b""
        call = read_call(
            {
                "wsgi.input": io.BytesIO(body.encode() if isinstance(body, str) else body),
                "HTTP_AUTHORIZATION": headers["authorization"],
                "HTTP_X_AMZ_TARGET": headers.get("x-amz-target", ""),
                "PATH_INFO": urlsplit(request.url).path,
                "QUERY_STRING": urlsplit(request.url).query,
            }
        )
        self.actions.add(f"{call.service}:{call.action}")
        self.requests += access_requests(call, DEFAULT_ACCOUNT_ID)


def as_text(value):
    return value.decode() if isinstance(value, bytes) else str(value)


class Forgetful:
    """A cache that keeps nothing."""

    def get(self, *_):
        return None

    def put(self, *_):
        return None


class Tour:
    """Every call of dlcloud, once; what moto does not know is asked for all the same."""

    def __init__(self, clients):
        self.clients = clients
        self.clock = FakeClock()
        self.cloud = cloud_over(clients, cache=Forgetful(), clock=self.clock, images=Forgetful())
        self.account = Ec2Account(clients=clients, catalog=Catalog(), cache=Forgetful(), clock=self.clock)
        self.ec2 = boto3.client("ec2", region_name=REGION)
        self.tags = cluster().tags
        # A controller makes no dry runs: its cluster has launched.
        self.is_of_people = False

    def of_controller(self):
        """Make the calls of a cluster's own controller; returns an instance that still runs."""
        cloud = self.cloud
        self._ask_everything()
        group = cloud.network.create_group("c0ffee", self.tags)
        cloud.network.create_group("c0ffee", self.tags)
        cloud.network.allow_ssh(group, "203.0.113.7/32")
        cloud.network.allow_peers(group)
        image = self.ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
        what = {
            "image": Image(image_id=image, name="", root_device="/dev/sda1"),
            "security_group_id": group,
            "tags": self.tags,
        }
        (instance, *_) = cloud.instances.launch(request(**what))
        self._before_the_launch(request(**{**what, "security_group_id": ""}))
        cloud.instances.launch(request(**what, market=Market.SPOT, client_token="s" * 64))
        reserved = {"reservation_id": "cr-0123456789abcdef0", "placement_group": GROUP}
        ask(lambda: cloud.instances.launch(request(**what, **reserved, client_token="r" * 64)))
        name = cloud.fleets.create_template(request(**what))
        for spot in (1, 0):
            ask(lambda spot=spot: cloud.fleets.launch(self._fleet(name, spot)))
        others = [other.instance_id for other in cloud.instances.find("c0ffee")]
        cloud.instances.terminate([other for other in others if other != instance.instance_id])
        ask(lambda: cloud.fleets.delete(cloud.fleets.find("c0ffee")))
        self._stand_by(instance)
        cloud.fleets.delete_templates("c0ffee")
        cloud.network.revoke_ssh("c0ffee")
        cloud.network.delete_groups("c0ffee")
        return instance

    def _stand_by(self, instance):
        """Make the calls of controllers that prepare another one, or take over."""
        self._make_profile()
        for _ in range(2):
            ask(lambda: self.cloud.instances.attach_profile(instance.instance_id, "dlcloud-c0ffee"))
            ask(lambda: self.cloud.claims.claim(1, instance.instance_id, self.tags))
        ask(lambda: self.cloud.claims.find("c0ffee"))
        self.cloud.instances.put_tags(
            [instance.instance_id], {"dlcloud:controller": "ubuntu", "dlcloud:host-key": "x"}
        )

    @staticmethod
    def _make_profile():
        """Make a profile of the cluster's role, as the launcher did."""
        iam, name, path = boto3.client("iam"), "dlcloud-c0ffee", f"/dlcloud/{REGION}/"
        iam.create_role(RoleName=name, Path=path, AssumeRolePolicyDocument="{}")
        iam.create_instance_profile(InstanceProfileName=name, Path=path)
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)

    def of_people(self):
        """Make the calls of every command."""
        cloud, clock = self.cloud, self.clock
        self.is_of_people = True
        instance = self.of_controller()
        self._leave_parts()
        cloud.caller.regions()
        profile = cloud.roles.put_control("c0ffee", self.tags)
        for _ in range(2):
            cloud.instances.attach_profile(instance.instance_id, profile)
        cloud.instances.put_tags(
            [instance.instance_id], {"dlcloud:controller": "true", "dlcloud:host-key": "x"}
        )
        ask(lambda: cloud.instances.admit_key(instance, "ubuntu", f"ssh-ed25519 {'A' * 68}"))
        ask(lambda: cloud.capacity.create_placement_group("c0ffee", self.tags))
        ask(lambda: cloud.network.allow_fabric(cloud.network.create_group("c0ffee", self.tags)))
        self._make_placement_group()
        image, snapshot = self._make_images(instance.instance_id)
        ask(cloud.leftovers.find)
        cloud.own_images.delete([image])
        cloud.own_images.delete_snapshots([snapshot])
        volume, interface = self._leave_parts()
        cloud.leftovers.delete_volumes([volume])
        cloud.leftovers.delete_interfaces([interface])
        ask(lambda: Billing(self.clients).by_cluster(["c0ffee"], since=clock.now(), now=clock.now()))
        ask(lambda: Billing(self.clients)._is_tag_active())
        ask(lambda: cloud.roles.owner("dlcloud-c0ffee"))
        cloud.instances.terminate([instance.instance_id])
        cloud.network.delete_groups("c0ffee")
        ask(lambda: cloud.capacity.delete_placement_group("c0ffee"))
        cloud.roles.delete("c0ffee")

    def _ask_everything(self):
        cloud, account = self.cloud, self.account
        questions = [
            lambda: decode(self.clients, "encoded"),
            cloud.caller.identity,
            cloud.capacity.reservations,
            lambda: cloud.types.hardware([TYPE]),
            lambda: cloud.types.zones([TYPE]),
            lambda: cloud.types.hardware([TYPE]),
            lambda: cloud.images.resolve("auto", gpu=False),
            lambda: cloud.images.resolve("auto", gpu=True),
            lambda: cloud.images.resolve("ami-0123456789abcdef0", gpu=False),
            lambda: cloud.prices.find([TYPE], [*Market]),
            lambda: account.limits(["L-1216C47A"]),
            account.account_plan,
            account.usage,
            account.subnets,
            self.clients.get("ec2").describe_vpc_block_public_access_exclusions,
            lambda: ready_endpoints(self.clients, "vpc-1"),
            lambda: cloud.instances.healthy(["i-0123456789abcdef0"]),
            lambda: account.network(Network(access=Access.INSTANCE_CONNECT_ENDPOINT)),
            lambda: account.spot_scores([TYPE], 1),
        ]
        for question in questions:
            ask(question)

    def _before_the_launch(self, launch):
        if self.is_of_people:
            for action in ("CreateSecurityGroup", "RunInstances", "CreateLaunchTemplate", "CreateFleet"):
                ask(lambda action=action: self.account.dry_run(action, launch))

    def _leave_parts(self):
        """Leave a volume and a network interface of a cluster behind, as its owner; returns their ids."""
        tags = [{"Key": key, "Value": value} for key, value in self.tags.items()]
        subnet = self.ec2.describe_subnets()["Subnets"][0]
        volume = self.ec2.create_volume(
            AvailabilityZone=subnet["AvailabilityZone"],
            Size=1,
            TagSpecifications=[{"ResourceType": "volume", "Tags": tags}],
        )
        interface = self.ec2.create_network_interface(
            SubnetId=subnet["SubnetId"],
            TagSpecifications=[{"ResourceType": "network-interface", "Tags": tags}],
        )
        return volume["VolumeId"], interface["NetworkInterface"]["NetworkInterfaceId"]

    def _make_images(self, instance_id):
        """Make an image as dlcloud does, and as its owner one that moto can tag; return it and a snapshot."""
        tags = {**self.tags, IMAGE_TAG: "dlcloud-sample"}
        ask(lambda: self.cloud.own_images.create(instance_id, "dlcloud-sample-c0ffee", tags))
        pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
        image = self.ec2.create_image(InstanceId=instance_id, Name="of its owner")["ImageId"]
        (volume, _), answer = self._leave_parts(), self.ec2.describe_images(ImageIds=[image])["Images"][0]
        snapshot = self.ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
        own = answer["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
        self.ec2.create_tags(Resources=[image, own, snapshot], Tags=pairs)
        return image, snapshot

    def _make_placement_group(self):
        """Make the cluster's placement group, which moto cannot."""
        backend = ec2_backends[DEFAULT_ACCOUNT_ID][REGION]
        group = PlacementGroup(
            backend=backend, name=GROUP, group_id="pg-01234567", arn="", strategy="cluster"
        )
        backend.create_tags([group.group_id], dict(self.tags))
        groups_of(backend)[GROUP] = group

    def _fleet(self, name, spot):
        return FleetRequest(
            template=name,
            pools=((TYPE, "us-east-1a"),),
            spot_count=spot,
            on_demand_count=1 - spot,
            client_token=f"f{spot}" * 16,
            tags=self.tags,
            requested_at=self.clock.now(),
        )


def ask(question):
    """Ask what moto may not know; the call is recorded before it answers."""
    with contextlib.suppress(CloudError, ClientError, BotoCoreError, NotImplementedError, KeyError):
        question()


def record(tour):
    with moto.mock_aws(), pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        clients = Clients(region=REGION)
        recorder = Recorder(clients._session_of(REGION))
        tour(Tour(clients))
        recorder.requests.append(spot_role_request(DEFAULT_ACCOUNT_ID))
        return recorder


@pytest.fixture(scope="module")
def recorded():
    """What each policy must allow: of people without and with `--detach`, and of a controller."""
    people, controller = record(Tour.of_people), record(Tour.of_controller)
    return {
        "iam_policy.json": [r for r in people.requests if not is_of_detaching(r)],
        "iam_policy_detach.json": [r for r in people.requests if is_of_detaching(r)],
        "control_policy.json": [*controller.requests, *key_requests()],
    }


def key_requests():
    """Return what EC2 asks in the caller's name of the key of an encrypted volume.

    Source: EBS user guide, "Requirements for Amazon EBS encryption".
    """
    arn = f"arn:aws:kms:{REGION}:{DEFAULT_ACCOUNT_ID}:key/0123"
    through = {"kms:ViaService": [f"ec2.{REGION}.amazonaws.com"]}
    for action in KEY_ACTIONS:
        is_grant = action == "kms:CreateGrant"
        context = {**through, "kms:GrantIsForAWSResource": ["true"]} if is_grant else through
        yield AccessRequest(action=action, resource=arn, context=context)


def is_of_detaching(asked):
    actions = {
        action
        for statement in statements(iam_policy("iam_policy_detach.json"))
        for action in actions_of(statement)
    }
    kept = {"ec2:CreateTags"} if "ec2:CreateAction" in asked.context else set()
    return asked.action in actions - kept


def statements(document):
    return json.loads(document)["Statement"]


def as_list(value):
    return value if isinstance(value, list) else [value]


def actions_of(statement):
    return as_list(statement["Action"])


def condition_keys(statement):
    return {key.split("/")[0] for keys in statement.get("Condition", {}).values() for key in keys}


def granted(statement, action):
    """Return the types of resources that a statement allows an action on, by the reference."""
    patterns = {type_of(pattern) for pattern in as_list(statement["Resource"])}
    kinds = resource_types(action).values()
    # A revision of a job definition has the ARN of the definition, with its number.
    named = [kind for kind in kinds if kind.name and (patterns & {kind.name, type_of(kind.arn), "*", ""})]
    if not any(kind.name for kind in kinds):
        named = [kind for kind in kinds if "" in patterns]
    return {kind.name for kind in named if condition_keys(statement) <= kind.keys}


def grants(documents):
    """Yield every action and type of resource that policies allow, with the statement."""
    for statement in (statement for document in documents for statement in statements(document)):
        for action in actions_of(statement):
            for kind in granted(statement, action):
                yield action, kind, statement


@pytest.fixture(params=POLICIES)
def name(request):
    return request.param


def test_every_part_of_a_statement_has_an_effect(name):
    has_effect(POLICIES[name][-1])


def has_effect(document):
    for statement in statements(document):
        kinds = {action: granted(statement, action) for action in actions_of(statement)}
        assert all(kinds.values()), (statement["Sid"], kinds)
        for pattern in as_list(statement["Resource"]):
            kind = type_of(pattern)
            shown = {type_of(r.arn) for a in kinds for r in resource_types(a).values() if r.arn}
            assert kind in {"", "*"} or kind in shown or any(kind in some for some in kinds.values()), pattern


def test_every_resource_that_an_action_always_has_is_allowed(name):
    allowed = {(action, kind) for action, kind, _ in grants(POLICIES[name])}
    for action in {action for action, _ in allowed}:
        required = {kind.name for kind in resource_types(action).values() if kind.required}
        assert required <= {kind for other, kind in allowed if other == action}, action


FURTHER = [f"iam_policy_{name}.json" for name in ("batch", "detach", "private", "secrets", "storage")]


@pytest.mark.parametrize("further", FURTHER)
def test_every_policy_that_is_printed_names_actions_and_resources_of_the_reference(further):
    policies = [iam_policy(), iam_policy(further)]
    has_effect(policies[-1])
    given = {(action, kind) for action, kind, _ in grants(policies)}
    for action in {action for statement in statements(policies[-1]) for action in actions_of(statement)}:
        required = {kind.name for kind in resource_types(action).values() if kind.required}
        assert required <= {kind for other, kind in given if other == action}, action


def test_the_local_ec2_asks_for_what_the_reference_lists(name, recorded):
    asked = {}
    for one in recorded[name]:
        kind = resource_types(one.action).get(type_of(one.resource))
        assert kind is not None, one
        assert {key.split("/")[0] for key in one.context} <= kind.keys, one
        asked.setdefault(one.action, set()).add(kind.name)
    for action, kinds in asked.items():
        required = {kind.name for kind in resource_types(action).values() if kind.required}
        assert required <= kinds, action


def test_every_call_is_allowed(name, recorded):
    assert len(recorded[name]) > 10
    refused = [request for request in recorded[name] if not is_allowed(POLICIES[name], request)]
    assert not refused, {(request.action, request.resource) for request in refused}


def test_nothing_is_allowed_that_no_call_needs(name, recorded):
    *others, document = POLICIES[name]
    content = json.loads(document)
    for index, statement in enumerate(content["Statement"]):
        asked = [request for request in recorded[name] if request.action in actions_of(statement)]
        for key in ("Action", "Resource"):
            for part in as_list(statement[key]):
                smaller = {**statement, key: [other for other in as_list(statement[key]) if other != part]}
                changed = [*content["Statement"][:index], smaller, *content["Statement"][index + 1 :]]
                policies = [*others, json.dumps({"Statement": changed})]
                refused = not all(is_allowed(policies, request) for request in asked)
                assert refused, (statement["Sid"], part)


def test_without_our_tags_only_what_is_shared_is_allowed(name, recorded):
    for one in recorded[name]:
        if one.action.startswith("ec2:") and one.context and type_of(one.resource) not in SHARED:
            bare = AccessRequest(action=one.action, resource=one.resource)
            assert not is_allowed(POLICIES[name], bare), one
