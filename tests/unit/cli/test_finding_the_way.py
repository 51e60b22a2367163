"""What a newcomer types: nearly right names, what there is, and commands without an account."""

import json
import shlex
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dlcloud.app.clusters.down import run as down
from dlcloud.app.clusters.members import find_members
from dlcloud.app.context import Context
from dlcloud.detached.remote_clusters import DetachedClusters
from dlcloud.model.cluster import ClusterState
from dlcloud.model.errors import CloudError, RecipeError
from dlcloud.model.instance import InstanceState
from dlcloud.recipe.recipe import read_recipe
from dlcloud.resources.texts import iam_policy, recipe_names
from dlcloud.runs.matrix import matrix_of_benchmarks
from tests.fakes.samples import RECIPE, cluster, member


def test_a_misspelt_command_is_answered_with_the_nearest(dlcloud):
    assert "Did you mean status?" in dlcloud("stauts").stderr
    assert "Did you mean" not in dlcloud("xyzzy").stderr


def test_a_misspelt_recipe_is_answered_with_the_nearest(dlcloud):
    assert "did you mean quickstart?" in dlcloud("up", "quickstrat").stderr


def test_a_single_value_is_a_list_of_one():
    text = RECIPE.replace("types: [c7i.xlarge, c6i.xlarge]", "types: c7i.xlarge\n  zones: us-east-1a")
    instances = read_recipe(text, "r.yaml").instances
    assert (instances.types, instances.zones) == (["c7i.xlarge"], ["us-east-1a"])


def test_the_bundled_recipes_are_listed_and_printed(dlcloud):
    listed = json.loads(dlcloud("recipes", "-o", "json").stdout)["result"]["records"]
    assert [row["recipe"] for row in listed] == recipe_names()
    assert all(row["about"] for row in listed)
    assert max(map(len, dlcloud("recipes").stdout.splitlines())) <= 80
    assert "name: quickstart\n" in dlcloud("recipes", "quickstart").stdout


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "iam_policy"),
        (["--detach"], "iam_policy_detach"),
        (["--secrets"], "iam_policy_secrets"),
        (["--private"], "iam_policy_private"),
    ],
)
def test_the_policy_is_printed_as_it_is(dlcloud, words, name):
    assert dlcloud("policy", *words).stdout == iam_policy(f"{name}.json")


@pytest.fixture
def context(tmp_path, monkeypatch):
    """A home with two clusters that are up, train-one and train-two, and one that is down."""
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path))
    context = Context("status")
    for name, state in (("train-one", "ready"), ("train-two", "ready"), ("other", "down")):
        context.clusters.add(
            replace(cluster(), cluster_id=f"id-{name}", name=name, state=ClusterState(state))
        )
    return context


def test_the_beginning_of_a_name_means_the_only_cluster_that_has_it(context):
    assert context.find_cluster("train-t").name == "train-two"
    for name, message in (("train", "several clusters"), ("oth", "no cluster oth is up")):
        with pytest.raises(RecipeError, match=message):
            context.find_cluster(name)
    with pytest.raises(RecipeError, match="no cluster trian-one is up") as refusal:
        context.find_cluster("trian-one")
    assert refusal.value.hint == "dlcloud status train-one"


def test_down_takes_the_beginning_of_a_name_and_is_named_in_its_hint(context, monkeypatch):
    monkeypatch.setattr(DetachedClusters, "find", lambda *_: None)
    with pytest.raises(RecipeError, match="several clusters are up: train-one, train-two") as refusal:
        down(replace(context, command="down"), clusters=["train"], show=print)
    assert refusal.value.hint == "name one, as in dlcloud down train-one"


def context_of(members, listed):
    """What `find_members` asks: a store, and an EC2 that lists these instances or does not answer."""

    def find(_):
        if listed is None:
            raise CloudError("EC2 does not answer", "")
        return listed

    cloud = SimpleNamespace(instances=SimpleNamespace(find=find))
    return SimpleNamespace(
        clusters=SimpleNamespace(members=lambda _: members, intents=lambda *_: []),
        accounts=SimpleNamespace(verify=lambda *_, **__: None),
        clouds=SimpleNamespace(cloud_of=lambda _: cloud),
    )


def test_commands_connect_to_no_spot_instance_that_was_taken_back():
    members = [member(1), member(2)]
    taken_back = replace(members[0].instance, state=InstanceState.TERMINATED)
    context = context_of(members, [taken_back, members[1].instance])
    assert find_members(context, cluster(), "") == [members[1]]
    assert find_members(context, cluster(), "1") == [members[1]]
    with pytest.raises(RecipeError, match="has no instance i-1"):
        find_members(context, cluster(), "i-1")
    assert find_members(context_of(members, None), cluster(), "") == members


def test_a_misspelt_region_is_answered_with_the_nearest(dlcloud, home):
    for words in (
        ("up", "quickstart", "--region", "us-esat-1"),
        ("image", "--list", "--region", "us-esat-1"),
    ):
        refused = dlcloud(*words)
        assert refused.status == 2
        assert "there is no region us-esat-1" in refused.stderr
        assert "did you mean us-east-1" in refused.stderr
    assert not (home / "local" / "state.json").exists()


@pytest.mark.parametrize("target", [(), ("quickstart",), ("c7i.xlarge",)])
def test_doctor_asks_aws_unless_it_is_told_otherwise(dlcloud, target):
    done = dlcloud("doctor", *target)
    assert (done.status, done.stdout.splitlines()[0].startswith("AWS, us-east-1: would ")) == (3, True)
    assert "not checked: there are no credentials" in done.stdout
    verdict, hint = done.stderr.splitlines()[-2:]
    assert verdict.startswith(
        f"error: {(*target, 'quickstart')[0]} would not start: checking the credentials"
    )
    assert hint.startswith("hint: aws configure")


def test_selftest_asks_aws_unless_it_is_told_otherwise(dlcloud):
    done = dlcloud("selftest")
    first, *_, verdict, hint = done.stderr.splitlines()
    assert (done.status, first[:29]) == (3, "self-test of AWS, us-east-1: ")
    assert verdict.startswith("error: the self-test of AWS, us-east-1 was not started: ")
    assert hint == "hint: dlcloud doctor --cloud aws"


@pytest.mark.parametrize("named", [("-i", "c7i.xlarge"), ("-b", "language"), ("mixed-precision",)])
def test_bench_without_an_account_offers_what_works_as_pasted(dlcloud, named):
    done = dlcloud("bench", *named, "-i", "c5.18xlarge")
    assert done.status == 3
    assert done.stderr.count("there are no AWS credentials") == 1
    hint = done.stderr.splitlines()[-1].removeprefix("hint: ")
    assert " # about " in hint
    assert "in full about " in hint
    assert "no account is needed" in hint
    command = shlex.split(hint, comments=True)[1:]
    assert command[:1] + command[-3:] == ["bench", "--cloud", "local", "--tiny"]
    offered = dlcloud(*command, "--max-hours", "nonsense")
    assert "nonsense" in offered.stderr.splitlines()[-1], "every other word of it is understood"


def test_bench_runs_the_language_models_only_if_they_are_named():
    for names, runs in (((), False), (("language",), True)):
        matrix = matrix_of_benchmarks(["c7i.xlarge"], names, {"cloud": "local"}, tiny=False)
        assert ("language" in {job.name for job in matrix.jobs}) is runs
