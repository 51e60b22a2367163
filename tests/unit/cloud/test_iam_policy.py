"""The policies cover exactly the calls that the code makes: no fewer, and not one more."""

import ast
import json
from pathlib import Path

import boto3
from botocore import xform_name

import dlcloud.cloud
from dlcloud.cloud.compute.capacity import Ec2Capacity
from dlcloud.cloud.compute.images import Ec2OwnImages
from dlcloud.cloud.compute.instances import Ec2Instances
from dlcloud.cloud.ec2 import Ec2Caller
from dlcloud.cloud.network.security_groups import Ec2Network
from dlcloud.model.instance import KEY_ACTIONS
from dlcloud.resources.texts import control_policy, iam_policy

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
DETACHING = "iam_policy_detach.json"
SECRETS = "iam_policy_secrets.json"
STORAGE = "iam_policy_storage.json"
BATCH = "iam_policy_batch.json"
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
PRIVATE = "iam_policy_private.json"
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


def actions_of(sources):
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


def statements(name="iam_policy.json"):
    return json.loads(iam_policy(name))["Statement"]


def own_statements():
    """Return the policy of a cluster's own controller."""
    return json.loads(control_policy("c0ffee", "eu-west-1"))["Statement"]


def actions(statement):
    listed = statement["Action"]
    return [listed] if isinstance(listed, str) else listed


def allowed(found):
    return {action for statement in found for action in actions(statement)}


ADMINISTRATORS = "sts:AssumeRole"
"""Of the self-test's part `policy`, which makes a role and takes its rights."""
BESIDE = [entry for name in (BATCH, DETACHING, SECRETS, STORAGE, PRIVATE) for entry in statements(name)]
ALL = [*statements(), *BESIDE, *own_statements()]


def test_the_policies_allow_exactly_the_calls_of_the_code():
    used = actions_of(path.read_text() for path in SOURCES)
    detaching = allowed(statements(DETACHING)) - IMPLIED_BY_DETACHING
    assert len(used) > 20
    secrets, private = allowed(statements(SECRETS)), allowed(statements(PRIVATE)) - TUNNELS
    storage, batch = allowed(statements(STORAGE)), allowed(statements(BATCH)) - IMPLIED_BY_BATCH
    printed = (allowed(statements()) | secrets | storage | private | batch) - IMPLIED | detaching
    assert printed == used - FREE - {ADMINISTRATORS}
    # The image of a recipe may be a parameter of the user's own.
    assert allowed(statements()) & (secrets | private) == {"ssm:GetParameters"}
    assert allowed(statements()) & detaching <= IMPLIED


def test_the_controller_of_a_cluster_may_make_exactly_its_calls():
    assert all(hasattr(kind, name) for name, kind in ONLY_BY_PEOPLE.items())
    names = {*ONLY_BY_PEOPLE, Ec2OwnImages.__name__}
    sources = [path.read_text() for path in SOURCES if path.stem not in MODULES_OF_PEOPLE]
    used = actions_of(without(source, names) for source in sources)
    implied = {"iam:CreateServiceLinkedRole", "iam:PassRole", *KEY_ACTIONS}
    assert allowed(own_statements()) - implied == used - FREE


def test_the_controller_is_bound_to_its_cluster_and_region():
    for statement in own_statements():
        changing = [each for each in actions(statement) if each.startswith("ec2:") and is_change(each)]
        shared = names_shared_things(statement)
        bound = json.dumps(statement.get("Condition", {}))
        if changing:
            assert shared or '/dlcloud:cluster": "c0ffee"' in bound, statement["Sid"]
            assert ":eu-west-1:" in json.dumps(statement["Resource"])
    assert "@" not in control_policy("c0ffee", "eu-west-1")


def test_spot_requests_and_snapshots_need_no_tag():
    # A launch template that tags spot requests fails its on-demand part: karpenter-provider-aws, issue 5850.
    kinds = ("spot-instances-request/*", "snapshot/*")
    for found, shared in (
        (statements(), kinds),
        (own_statements(), kinds[:1]),
    ):
        for kind in shared:
            launching = [statement for statement in found if "ec2:RunInstances" in actions(statement)]
            naming = [entry for entry in launching if f":{kind}" in json.dumps(entry["Resource"])]
            assert len(naming) == 1, kind
            assert "Condition" not in naming[0]


def test_the_controller_gives_its_own_rights_to_its_own_instances_only():
    iam = {action for action in allowed(own_statements()) if action.startswith("iam:")}
    assert iam == {"iam:CreateServiceLinkedRole", "iam:PassRole"}
    (passing,) = [found for found in own_statements() if "iam:PassRole" in actions(found)]
    assert passing["Resource"] == "arn:aws:iam::*:role/dlcloud/eu-west-1/dlcloud-c0ffee"
    services = ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"]
    assert passing["Condition"] == {"StringEquals": {"iam:PassedToService": services}}


def test_a_policy_fits_into_the_quotas_of_iam():
    # Source: IAM user guide, "IAM and AWS STS quotas": of a role's own policies, and of a managed one.
    assert len("".join(control_policy("c" * 12, "ap-southeast-2").split())) <= 10_240
    assert all(len("".join(iam_policy(name).split())) <= 6_144 for name in ("iam_policy.json", DETACHING))


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


def test_no_wildcard_allows_an_action():
    assert not [action for statement in ALL for action in actions(statement) if "*" in action]


def is_change(action):
    return action.partition(":")[2].startswith(CHANGES)


def test_changes_and_removals_are_bound_to_our_tag_or_path():
    for statement in [*statements(), *statements(DETACHING)]:
        changing = [action for action in actions(statement) if is_change(action)]
        bound = json.dumps(statement.get("Condition", {}))
        shared = names_shared_things(statement)
        assert not changing or bound != "{}" or shared or ours_by_path(statement), statement["Sid"]
        if "aws:ResourceTag/dlcloud:managed" not in bound and not ours_by_path(statement):
            assert not [
                each for each in changing if each.partition(":")[2].startswith(("Delete", "Terminate"))
            ]


def names_shared_things(statement):
    """True for a statement on what a launch only uses, or makes untagged."""
    listed = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
    kinds = {resource.rsplit(":", 1)[-1].split("/")[0] for resource in listed}
    used = {"capacity-reservation", "image", "placement-group", "security-group", "snapshot"}
    return kinds <= used | {"spot-instances-request", "subnet", "vpc"}


def ours_by_path(statement):
    listed = statement["Resource"]
    return isinstance(listed, list) and all("/dlcloud/*" in resource for resource in listed)


def test_every_statement_has_its_own_name():
    for found in (statements(), statements(DETACHING), own_statements()):
        assert len({statement["Sid"] for statement in found}) == len(found)
    assert all(statement["Effect"] == "Allow" for statement in ALL)
