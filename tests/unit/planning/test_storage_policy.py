"""Data and checkpoints in a recipe: what is refused, what the role may do, and what the plan says."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import PurePosixPath

import pytest

from dlcloud.detached.handover import check_detachable, relocate_recipe
from dlcloud.local.api.policy import AccessRequest, is_allowed
from dlcloud.model.errors import CloudError, RecipeError
from dlcloud.model.instance import Image
from dlcloud.planning.policies import storage_policy
from dlcloud.planning.storage import copy_key, describe_data, describe_replicas, describe_room, run_name
from dlcloud.recipe.data import DataSet
from dlcloud.recipe.recipe import read_recipe
from tests.fakes.samples import hardware
from tests.fakes.samples import plan as sample_plan

TEXT = """\
name: stored
instances: {types: [c7i.large]}
workload: {command: python3 train.py, elastic: {}}
"""
DATA = "data: [{from: s3://bucket-a/sets/one/, to: data/one}, {from: ./own, to: data/own}]\n"
CHECKPOINTS = "checkpoints: s3://bucket-b/runs/x\n"


def recipe(more=""):
    return read_recipe(TEXT + more, "r.yaml")


def test_data_and_checkpoints_are_read_and_change_the_hash():
    read = recipe(DATA + CHECKPOINTS)
    assert [(item.source, item.to, item.mode) for item in read.data] == [
        ("s3://bucket-a/sets/one/", "data/one", "copy"),
        ("./own", "data/own", "copy"),
    ]
    assert read.hash != recipe().hash
    assert relocate_recipe(recipe(CHECKPOINTS)).count("s3://bucket-b/runs/x") == 1
    assert "from: ./own" in relocate_recipe(read)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("data: [{from: s3://B, to: a}]", "is not s3://BUCKET/PREFIX"),
        ("data: [{from: 's3://bucket/a*', to: a}]", "is not s3://BUCKET/PREFIX"),
        ("data: [{from: https://x/y, to: a}]", "only s3:// and folders"),
        ("data: [{from: ./a, to: a, mode: mount-point}]", "belongs to an s3:// source"),
        ("data: [{from: ./a, to: ../a}]", "not a folder below"),
        ("data: [{from: ./a, to: /a}]", "to"),
        ("data: [{from: ./a, to: a}, {from: ./b, to: a/b}]", "two items are copied to a"),
        ("checkpoints: ./here", "checkpoints"),
    ],
)
def test_a_faulty_place_is_refused(text, fault):
    with pytest.raises(RecipeError) as refusal:
        recipe(text + "\n")
    assert fault in refusal.value.message


def test_checkpoints_in_s3_are_of_something_and_data_of_a_command():
    plain = TEXT.replace(", elastic: {}", "")
    with pytest.raises(RecipeError, match="or an elastic workload"):
        read_recipe(plain + CHECKPOINTS, "r.yaml")
    with pytest.raises(RecipeError, match="data belongs to a command"):
        read_recipe(plain.replace("command: python3 train.py", "benchmark: quantization") + DATA, "r.yaml")


def test_what_comes_from_or_to_this_machine_cannot_be_detached():
    with pytest.raises(RecipeError, match="folder of this machine"):
        check_detachable(recipe(DATA))
    check_detachable(recipe(CHECKPOINTS))
    kept = TEXT.replace(", elastic: {}", ", checkpoints: ckpt")
    with pytest.raises(RecipeError, match="would be copied to this machine"):
        check_detachable(read_recipe(kept, "r.yaml"))
    check_detachable(read_recipe(kept + CHECKPOINTS, "r.yaml"))


@pytest.mark.parametrize(
    ("action", "resource", "prefix", "allowed"),
    [
        ("s3:GetObject", "bucket-a/sets/one/file", None, True),
        ("s3:GetObject", "bucket-a/sets/one-other/file", None, False),
        ("s3:PutObject", "bucket-a/sets/one/file", None, False),
        ("s3:ListBucket", "bucket-a", "sets/one/", True),
        ("s3:ListBucket", "bucket-a", "", False),
        ("s3:PutObject", "bucket-b/runs/x/step", None, True),
        ("s3:DeleteObject", "bucket-b/runs/x/step", None, True),
        ("s3:DeleteObject", "bucket-b/runs/y/step", None, False),
        ("s3:ListBucket", "bucket-b", "runs/x/manifest", True),
    ],
)
def test_the_role_is_limited_to_the_prefixes(action, resource, prefix, allowed):
    context = {} if prefix is None else {"s3:prefix": [prefix]}
    request = AccessRequest(action=action, resource=f"arn:aws:s3:::{resource}", context=context)
    policy = storage_policy(recipe(DATA + CHECKPOINTS)).replace("@PARTITION@", "aws")
    assert is_allowed([policy], request) is allowed
    assert all("*" not in str(statement["Action"]) for statement in json.loads(policy)["Statement"])


def test_a_training_with_checkpoints_has_one_name_on_every_cluster():
    read = recipe(CHECKPOINTS)
    assert (
        run_name(read, "a") == run_name(read, "b") != run_name(recipe("checkpoints: s3://bucket-b/z\n"), "a")
    )
    assert run_name(recipe(), "a") == "a"


REPLICATED = """\
region: [us-east-1, eu-west-1]
checkpoints: {to: "s3://runs-{region}/x", replicate: yes}
"""


def test_replicated_checkpoints_are_in_the_bucket_of_the_clusters_region():
    written = recipe(REPLICATED)
    placed = written.in_region("eu-west-1")
    again = read_recipe(placed.to_yaml(), "again")
    assert [one.checkpoints for one in (written, placed, again)] == [
        "s3://runs-us-east-1/x",
        "s3://runs-eu-west-1/x",
        "s3://runs-eu-west-1/x",
    ]
    assert written.hash == placed.hash == again.hash
    assert run_name(written, "a") == run_name(again, "b")
    for region in ("us-east-1", "eu-west-1"):
        request = AccessRequest(action="s3:PutObject", resource=f"arn:aws:s3:::runs-{region}/x/a", context={})
        assert is_allowed([storage_policy(again).replace("@PARTITION@", "aws")], request)


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ("", "replicate needs regions by name"),
        ("region: any\n", "replicate needs regions by name"),
        ("region: [us-east-1, us-west-2]\ncheckpoints: {to: s3://one/x, replicate: yes}\n", "in each region"),
        ("region: [us-east-1, us-west-2]\ncheckpoints: {replicate: yes}\n", "in each region|write s3://"),
        (
            "region: [us-east-1, us-west-2]\ncheckpoints: {to: 's3://a-{region}/x', copy: yes}\n",
            "write s3://",
        ),
    ],
)
def test_checkpoints_that_cannot_be_replicated_are_refused(more, fault):
    place = "" if "checkpoints" in more else REPLICATED.partition("\n")[2]
    with pytest.raises(RecipeError, match=fault):
        recipe(more + place)


def test_the_plan_states_the_traffic_of_copies():
    text, usd = describe_replicas(10**9, recipe(REPLICATED + "budget: {max_hours: 2}\n"))
    assert "traffic 0.02 USD per GB: 1.20 USD per hour, 2.40 at most" in text
    assert usd == Decimal("2.40")


def test_a_copy_is_named_by_source_and_place():
    assert copy_key("./own", "/a") != copy_key("./own", "/b")
    assert PurePosixPath(copy_key("s3://x/y")).name == copy_key("s3://x/y")


def test_the_plan_names_size_and_the_price_of_traffic_between_regions():
    near = DataSet(uri="s3://a/b", region="us-east-1", files=3, size=5 * 10**9)
    far = DataSet(uri="s3://c/d", region="eu-west-1", files=1, size=10 * 10**9)
    first, second = describe_data([near, far], "us-east-1", 4)
    assert first == (
        "data: 3 file(s), 5.0 GB from s3://a/b, once per instance; traffic from S3 within us-east-1 is free"
    )
    assert "its bucket is in eu-west-1: traffic to us-east-1 costs about 0.80 USD for 4 instance(s)" in second


@pytest.mark.parametrize(
    ("gib", "local_gb", "refusal", "note"),
    [
        (10, 0, "", ""),
        (45, 0, "", "may not fit next to the image"),
        (60, 0, "root disk of 50 GiB", ""),
        (60, 100, "", ""),
        (100, 100, "instance store of 93 GiB", ""),
    ],
)
def test_data_that_no_disk_holds_are_refused_before_anything_is_launched(gib, local_gb, refusal, note):
    image = Image(image_id="ami-1", name="", root_device="", snapshot_gib=8)
    plan = sample_plan()
    plan = replace(plan, machine=replace(plan.machine, disk_gib=50, image=image))
    types = {pool.instance_type: replace(hardware(), local_disks_gb=local_gb) for pool in plan.pools}
    if refusal:
        with pytest.raises(CloudError, match=refusal) as refused:
            describe_room(gib * 2**30, plan, types)
        assert "instances.disk_gib: 88" in refused.value.hint or local_gb
        return
    assert [note in text for text in describe_room(gib * 2**30, plan, types)] == ([True] if note else [])
