"""The policies against AWS's reference, against what recorded calls touch, and against the calls of the code.

Every method of the cloud and of the account is called on moto, in this process; the local EC2's own rules say
about which action on which resource IAM is asked for each of the calls.
"""

import ast
import contextlib
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import boto3
import moto
import pytest
from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends

import dlcloud
import dlcloud.cloud
from dlcloud.cloud.account.billing import Billing
from dlcloud.cloud.account.limits import Ec2Account
from dlcloud.cloud.api.clients import Clients, decode
from dlcloud.cloud.api.partitions import partition_of, service_region
from dlcloud.cloud.compute.capacity import Ec2Capacity
from dlcloud.cloud.compute.images import Ec2OwnImages
from dlcloud.cloud.compute.instances import Ec2Instances
from dlcloud.cloud.ec2 import Ec2Caller
from dlcloud.cloud.network.security_groups import Ec2Network
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
        headers = {
            key.lower(): value.decode() if isinstance(value, bytes) else str(value)
            for key, value in request.headers.items()
        }
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


FORGETFUL = SimpleNamespace(get=lambda *_: None, put=lambda *_: None)


class Tour:
    """Every call of dlcloud, once; what moto does not know is asked for all the same."""

    def __init__(self, clients):
        self.clients = clients
        self.clock = FakeClock()
        self.cloud = cloud_over(clients, cache=FORGETFUL, clock=self.clock, images=FORGETFUL)
        self.account = Ec2Account(clients=clients, catalog=Catalog(), cache=FORGETFUL, clock=self.clock)
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


FURTHER = ("detach", "secrets", "storage", "batch", "private")
OF_REFERENCE = POLICIES | {
    name: [iam_policy(), iam_policy(f"iam_policy_{name}.json")] for name in FURTHER[1:]
}


@pytest.mark.parametrize("documents", OF_REFERENCE.values(), ids=OF_REFERENCE)
def test_every_policy_names_actions_and_resources_of_the_reference(documents):
    given = {(action, kind) for action, kind, _ in grants(documents)}
    for statement in statements(documents[-1]):
        kinds = {action: granted(statement, action) for action in actions_of(statement)}
        assert all(kinds.values()), (statement["Sid"], kinds)
        for pattern in as_list(statement["Resource"]):
            kind = type_of(pattern)
            shown = {type_of(r.arn) for a in kinds for r in resource_types(a).values() if r.arn}
            assert kind in {"", "*"} or kind in shown or any(kind in some for some in kinds.values()), pattern
        for action in kinds:
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


SOURCES = sorted(Path(dlcloud.cloud.__file__).parent.rglob("*.py"))
PREFIXES = {"service-quotas": "servicequotas"}
# What EC2 itself does or asks for on the way; no call of ours bears the name.
IMPLIED = {"ec2:CreateTags", "iam:CreateServiceLinkedRole", "kms:Decrypt"}
# Source: STS API reference, GetCallerIdentity: no permissions are required.
FREE = {"sts:GetCallerIdentity"}
IMPLIED_BY_BATCH = {"batch:TagResource", "iam:PassRole"}
IMPLIED_BY_DETACHING = {"iam:PassRole", "iam:TagInstanceProfile", "iam:TagRole"}
# What no controller on an instance ever does: it looks after its own cluster, and ends where that ends.
ONLY_BY_PEOPLE = {
    "regions": Ec2Caller,
    "admit_key": Ec2Instances,
    "allow_fabric": Ec2Network,
    "create_placement_group": Ec2Capacity,
    "delete_placement_group": Ec2Capacity,
}
# What a controller may do in buckets comes with them: tests/unit/planning/test_storage_policy.py.
MODULES_OF_PEOPLE = {"batch_queues", "billing", "buckets", "roles", "leftovers", "secret_values", "tunnels"}
CHANGES = ("Create", "Run", "Delete", "Terminate", "Authorize", "Revoke", "Put", "Add", "Remove", "Associate")


# Source: Service Authorization Reference, Amazon S3: the actions that these operations need.
ACTIONS = {
    "CompleteMultipartUpload": "PutObject",
    "CopyObject": "PutObject",
    "CreateMultipartUpload": "PutObject",
    "HeadBucket": "ListBucket",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListObjectsV2": "ListBucket",
    "UploadPartCopy": "PutObject",
}


# Signed for a websocket: no call of boto3 bears the name.
TUNNELS = {"ec2-instance-connect:OpenTunnel"}


def methods(service):
    """Return the API actions of a service by the names of boto3's methods."""
    model = boto3.Session(region_name="us-east-1").client(service).meta.service_model
    return {xform_name(action): action for action in model.operation_names}


def calls_in(source):
    """Yield (service, method) of every call: get("s").m, get_paginator("m"), pages("s", "m", ...), …"""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
            service = service_of(node.value)
            if service is not None and node.attr != "get_paginator":
                yield service, node.attr
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get_paginator":
            service = service_of(node.func.value)
            if service is not None:
                yield service, node.args[0].value
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "pages":
            yield node.args[0].value, node.args[1].value
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "_change":
            yield "batch", node.args[0].value
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "call_until_visible":
            yield "ec2", node.args[0].value


def service_of(call):
    """Return the service of a `clients.get("service")` or `….get_without_retries()`, else None."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    if call.func.attr == "get_without_retries":
        return call.args[0].value if call.args else "ec2"
    owner = getattr(call.func.value, "attr", getattr(call.func.value, "id", ""))
    if call.func.attr == "get" and owner.endswith("clients"):
        return call.args[0].value
    return None


def actions_called(sources):
    found = {call for source in sources for call in calls_in(source)}
    known = {service: methods(service) for service in {service for service, _ in found}}
    names = {(service, known[service][method]) for service, method in found}
    return {f"{PREFIXES.get(service, service)}:{ACTIONS.get(name, name)}" for service, name in names}


def without(source, names):
    """Return a module's text without the functions and classes of these names."""
    tree = ast.parse(source)
    bodies = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
    for node in bodies:
        node.body = [each for each in node.body if getattr(each, "name", "") not in names]
    return ast.unparse(tree)


def allowed(found):
    return {action for statement in found for action in actions_of(statement)}


PEOPLE, DETACHING, SECRETS, STORAGE, BATCH, PRIVATE = map(
    iam_policy, ("iam_policy.json", *(f"iam_policy_{name}.json" for name in FURTHER))
)
CONTROLLER = control_policy("c0ffee", "eu-west-1")
ADMINISTRATORS = "sts:AssumeRole"
"""Of the self-test's part `policy`, which makes a role and takes its rights."""


def test_the_policies_allow_exactly_the_calls_of_the_code():
    used = actions_called(path.read_text() for path in SOURCES)
    detaching = allowed(statements(DETACHING)) - IMPLIED_BY_DETACHING
    assert len(used) > 20
    secrets, private = allowed(statements(SECRETS)), allowed(statements(PRIVATE)) - TUNNELS
    storage, batch = allowed(statements(STORAGE)), allowed(statements(BATCH)) - IMPLIED_BY_BATCH
    printed = (allowed(statements(PEOPLE)) | secrets | storage | private | batch) - IMPLIED | detaching
    assert printed == used - FREE - {ADMINISTRATORS}
    # The image of a recipe may be a parameter of the user's own.
    assert allowed(statements(PEOPLE)) & (secrets | private) == {"ssm:GetParameters"}
    assert allowed(statements(PEOPLE)) & detaching <= IMPLIED


def test_the_controller_of_a_cluster_may_make_exactly_its_calls():
    assert all(hasattr(kind, name) for name, kind in ONLY_BY_PEOPLE.items())
    names = {*ONLY_BY_PEOPLE, Ec2OwnImages.__name__}
    sources = [path.read_text() for path in SOURCES if path.stem not in MODULES_OF_PEOPLE]
    used = actions_called(without(source, names) for source in sources)
    implied = {"iam:CreateServiceLinkedRole", "iam:PassRole", *KEY_ACTIONS}
    assert allowed(statements(CONTROLLER)) - implied == used - FREE


def test_the_controller_gives_its_own_rights_to_its_own_instances_only():
    iam = {action for action in allowed(statements(CONTROLLER)) if action.startswith("iam:")}
    assert iam == {"iam:CreateServiceLinkedRole", "iam:PassRole"}
    (passing,) = [found for found in statements(CONTROLLER) if "iam:PassRole" in actions_of(found)]
    assert passing["Resource"] == "arn:aws:iam::*:role/dlcloud/eu-west-1/dlcloud-c0ffee"
    services = ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"]
    assert passing["Condition"] == {"StringEquals": {"iam:PassedToService": services}}


def test_the_reader_of_the_code_sees_every_kind_of_call():
    source = 'clients.get("ec2").describe_x()\nb.get_without_retries().run_y(**z)\na.get("k").partition()\n'
    source += 'd.call_until_visible("j")\n'
    source += 'c.pages("sts", "list_z", "Z")\nf(g.get_without_retries().h)\nself._clients.get("ec2").i()'
    assert set(calls_in(source)) == {
        ("ec2", "describe_x"),
        ("ec2", "run_y"),
        ("sts", "list_z"),
        ("ec2", "h"),
        ("ec2", "i"),
        ("ec2", "j"),
    }


def is_change(action):
    return action.partition(":")[2].startswith(CHANGES)


def names_shared_things(statement):
    """True for a statement on what a launch only uses, or makes untagged."""
    listed = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
    kinds = {resource.rsplit(":", 1)[-1].split("/")[0] for resource in listed}
    used = {"capacity-reservation", "image", "placement-group", "security-group", "snapshot"}
    return kinds <= used | {"spot-instances-request", "subnet", "vpc"}


def ours_by_path(statement):
    listed = statement["Resource"]
    return isinstance(listed, list) and all("/dlcloud/*" in resource for resource in listed)


def test_a_policy_fits_into_the_quotas_of_iam_and_no_wildcard_allows_an_action():
    # Source: IAM user guide, "IAM and AWS STS quotas": of a role's own policies, and of a managed one.
    assert len("".join(control_policy("c" * 12, "ap-southeast-2").split())) <= 10_240
    assert all(len("".join(document.split())) <= 6_144 for document in (PEOPLE, DETACHING))
    for document in (PEOPLE, DETACHING, SECRETS, STORAGE, BATCH, PRIVATE, CONTROLLER):
        names = [statement["Sid"] for statement in statements(document)]
        assert len(set(names)) == len(names)
        assert {statement["Effect"] for statement in statements(document)} == {"Allow"}
        assert not any("*" in action for action in allowed(statements(document)))
    assert "@" not in CONTROLLER


@pytest.mark.parametrize(
    "document", [PEOPLE, DETACHING, CONTROLLER], ids=["people", "detaching", "controller"]
)
def test_changes_and_removals_are_bound_to_our_tag_or_path_or_to_the_controllers_cluster(document):
    is_own = document == CONTROLLER
    for statement in statements(document):
        changing = [action for action in actions_of(statement) if is_change(action)]
        if is_own:
            changing = [action for action in changing if action.startswith("ec2:")]
            assert not changing or ":eu-west-1:" in json.dumps(statement["Resource"])
        bound = json.dumps(statement.get("Condition", {}))
        tag = '/dlcloud:cluster": "c0ffee"' if is_own else "aws:ResourceTag/dlcloud:managed"
        is_bound = tag in bound if is_own else bound != "{}"
        of_path = not is_own and ours_by_path(statement)
        assert not changing or is_bound or names_shared_things(statement) or of_path, statement["Sid"]
        if not is_own and tag not in bound and not of_path:
            removing = ("Delete", "Terminate")
            assert not [action for action in changing if action.partition(":")[2].startswith(removing)]


def test_spot_requests_and_snapshots_need_no_tag():
    # A launch template that tags spot requests fails its on-demand part: karpenter-provider-aws, issue 5850.
    spot, snapshot = "spot-instances-request/*", "snapshot/*"
    for document, kind in ((PEOPLE, spot), (PEOPLE, snapshot), (CONTROLLER, spot)):
        launching = [found for found in statements(document) if "ec2:RunInstances" in actions_of(found)]
        (naming,) = [found for found in launching if f":{kind}" in json.dumps(found["Resource"])]
        assert "Condition" not in naming


ROOT = Path(dlcloud.__file__).parents[1]


@pytest.mark.parametrize(
    ("region", "name", "principal", "pricing"),
    [
        ("eu-central-1", "aws", "ec2.amazonaws.com", "us-east-1"),
        ("cn-north-1", "aws-cn", "ec2.amazonaws.com.cn", "cn-northwest-1"),
        ("us-gov-west-1", "aws-us-gov", "ec2.amazonaws.com", ""),
        ("il-south-9", "aws", "ec2.amazonaws.com", "us-east-1"),
    ],
)
def test_a_region_says_its_partition(region, name, principal, pricing):
    partition = partition_of(region)
    assert (partition.name, partition.ec2_principal) == (name, principal)
    assert service_region("api.pricing", region, "us-east-1") == pricing


@pytest.mark.parametrize("name", ["iam_policy.json", "iam_policy_detach.json", "iam_policy_secrets.json"])
def test_a_policy_of_china_names_nothing_of_another_partition(name):
    china = partition_of("cn-north-1")
    text = iam_policy(name, partition=china.name, dns_suffix=china.dns_suffix)
    arns = re.findall(r'"arn:([^:]+):', text + control_policy("c0ffee", "cn-north-1", china.name))
    assert set(arns) == {"aws-cn"}
    assert "@" not in text
    json.loads(text)


def test_no_source_names_the_commercial_partition_in_an_arn():
    sources = [*(ROOT / "dlcloud").rglob("*.py"), *filter(Path.is_file, (ROOT / "templates").iterdir())]
    # The local EC2 is of that partition.
    named = [path for path in sources if "arn:aws:" in path.read_text()]
    assert [path for path in named if "local" not in path.parts] == []
