"""The policy covers exactly the calls that the code makes: no fewer, and not one more."""

import ast
import json
from pathlib import Path

import boto3
from botocore import xform_name

import dlcloud.cloud
from dlcloud.resources.texts import template

SOURCES = sorted(Path(dlcloud.cloud.__file__).parent.glob("*.py"))
PREFIXES = {"service-quotas": "servicequotas"}
# What EC2 itself does or asks for on the way; no call of ours bears the name.
IMPLIED = {"ec2:CreateTags", "iam:CreateServiceLinkedRole"}
CHANGES = ("Create", "Run", "Delete", "Terminate", "Authorize", "Revoke")


def methods(service):
    """Return the API actions of a service by the names of boto3's methods."""
    model = boto3.Session(region_name="us-east-1").client(service).meta.service_model
    return {xform_name(action): action for action in model.operation_names}


def calls_in(source):
    """Yield (service, method) of every use of a client in a module: read("s").m, launch().m, paginators."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
            service = service_of(node.value)
            if service is not None and node.attr != "get_paginator":
                yield service, node.attr
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get_paginator":
            yield service_of(node.func.value), node.args[0].value


def service_of(call):
    """Return the service of a `….read("service")` or `….launch()`; None for another call."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    if call.func.attr == "launch" and not call.args:
        return "ec2"
    if call.func.attr == "read" and call.args and isinstance(call.args[0], ast.Constant):
        service = call.args[0].value
        return service if isinstance(service, str) else None  # a number: bytes are read, not an account
    return None


def actions_of_the_code():
    found = {call for path in SOURCES for call in calls_in(path.read_text())}
    known = {service: methods(service) for service in {service for service, _ in found}}
    return {f"{PREFIXES.get(service, service)}:{known[service][method]}" for service, method in found}


def statements():
    return json.loads(template("iam_policy.json"))["Statement"]


def actions(statement):
    listed = statement["Action"]
    return [listed] if isinstance(listed, str) else listed


def test_it_allows_exactly_what_the_code_calls():
    allowed = {action for statement in statements() for action in actions(statement)}
    used = actions_of_the_code()
    assert len(used) > 20
    assert allowed - IMPLIED == used


def test_the_reader_of_the_code_sees_every_kind_of_call():
    source = 'a.read("ec2").describe_x()\nb.launch().run_y(**z)\n'
    source += 'c.read("sts").get_paginator("list_z")\nf(g.launch().h)'
    assert set(calls_in(source)) == {("ec2", "describe_x"), ("ec2", "run_y"), ("sts", "list_z"), ("ec2", "h")}


def test_no_wildcard_allows_an_action():
    assert not [action for statement in statements() for action in actions(statement) if "*" in action]


def test_what_changes_or_removes_is_bound_to_our_tag():
    for statement in statements():
        changing = [action for action in actions(statement) if action.partition(":")[2].startswith(CHANGES)]
        bound = json.dumps(statement.get("Condition", {}))
        shared = all(part in json.dumps(statement["Resource"]) for part in ("image/", "subnet/", "vpc/"))
        assert not changing or bound != "{}" or shared, statement["Sid"]
    removing = {
        action
        for statement in statements()
        if "aws:ResourceTag/dlcloud:managed" not in json.dumps(statement)
        for action in actions(statement)
    }
    assert not [each for each in removing if each.partition(":")[2].startswith(("Delete", "Terminate"))]


def test_every_statement_says_what_it_is_for():
    assert len({statement["Sid"] for statement in statements()}) == len(statements())
    assert all(statement["Effect"] == "Allow" for statement in statements())
