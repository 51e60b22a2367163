"""Options of `up` that change a recipe: the change is checked like a recipe, faults name the option."""

import pytest

from dlcloud.model.errors import RecipeError
from dlcloud.recipe.overrides import Overrides
from dlcloud.recipe.recipe import read_recipe

TEXT = """\
name: own
region: us-east-1
instances:
  types: [c7i.xlarge, c6i.xlarge]
  count: {min: 1, max: 4}
  market: spot
  on_demand_base: 2
workload:
  command: 'echo "ü 😀" # no comment'
  environment: {A: '1', B: 'yes'}
  settings: [{name: one}, {name: two}, {name: three}]
"""

REHEARSED = """\
name: own
cloud: local
instances: {types: [c7i.xlarge], count: {min: 1, max: 2}}
workload: {command: python3 train.py, elastic: {}}
rehearsal: [{after: 1, interrupt: 0}]
"""


@pytest.fixture
def recipe():
    return read_recipe(TEXT, "r.yaml")


def test_every_option_changes_its_key_and_the_hash_follows(recipe):
    overrides = Overrides(
        types=("g6.xlarge",),
        region="eu-west-1",
        market="spot-then-on-demand",
        count="3",
        settings=("three", "one"),
        environment={"B": "2", "C": "a b"},
        secrets={"TOKEN": "env:MINE"},
    )
    changed, text = overrides.apply(recipe)
    assert read_recipe(text, "again") == changed
    assert changed.hash != recipe.hash
    assert (changed.instances.types, changed.region, changed.instances.count) == (
        ["g6.xlarge"],
        "eu-west-1",
        3,
    )
    assert changed.instances.market == "spot-then-on-demand"
    assert [setting.name for setting in changed.workload.settings] == ["one", "three"]
    assert changed.workload.environment == {"A": "1", "B": "2", "C": "a b"}
    assert changed.workload.secrets == {"TOKEN": "env:MINE"}
    assert changed.workload.command == recipe.workload.command
    assert str(overrides).startswith(
        "--type g6.xlarge --region eu-west-1 --market spot-then-on-demand --count 3"
    )


def test_options_are_stated_as_they_are_typed():
    overrides = Overrides(cloud="local", types=("a", "b"), settings=("one",), secrets={"T": "env:T"})
    assert str(overrides) == "--cloud local --type a --type b --setting one --secret T=env:T"
    assert str(Overrides(region="eu-west-1")) == "--region eu-west-1"


def test_another_cloud_keeps_a_rehearsal_only_where_it_can_be_held():
    rehearsed = read_recipe(REHEARSED, "r.yaml")
    changed, text = Overrides(cloud="local").apply(rehearsed)
    assert (changed.cloud, changed.rehearsal) == ("local", rehearsed.rehearsal)
    assert "\nrehearsal:\n" in text
    changed, text = Overrides(cloud="aws").apply(rehearsed)
    assert (changed.cloud, changed.rehearsal) == ("aws", [])
    assert "rehearsal" not in text
    assert Overrides(cloud="aws").apply(read_recipe(TEXT, "r.yaml"))[0].cloud == "aws"


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ("  settings: [{name: one}, {name: two}]\n", "settings: one, two"),
        ("", "the recipe has no settings"),
    ],
)
def test_an_unknown_setting_is_refused_with_those_that_there_are(settings, hint):
    recipe = read_recipe(TEXT.partition("  settings:")[0] + settings, "r.yaml")
    with pytest.raises(RecipeError) as refused:
        Overrides(settings=("four",)).apply(recipe)
    assert refused.value.hint == hint


@pytest.mark.parametrize(("count", "base"), [("1", 1), ("1-8", 2), ("2", 2)])
def test_fewer_instances_have_a_smaller_base(recipe, count, base):
    changed, _ = Overrides(count=count).apply(recipe)
    assert changed.instances.on_demand_base == base
    assert Overrides(market="on-demand").apply(recipe)[0].instances.on_demand_base == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"types": ("big",)}, "--type: must be an instance type, as c7i.xlarge"),
        ({"region": "Mars"}, "--region: must be a region, as us-east-1"),
        ({"count": "none"}, "--count: "),
        ({"count": "4-2"}, "--count: min (4) is more than max (2)"),
        ({"settings": ("four",)}, "--setting four: there is no such setting"),
        ({"environment": {"DLCLOUD_HOME": "x"}}, "--env DLCLOUD_HOME=x: DLCLOUD_HOME: names that begin"),
        ({"secrets": {"TOKEN": "hf_0123"}}, "--secret TOKEN: this is no source of a secret"),
        ({"secrets": {"A": "env:A"}}, "--secret A=env:A: A is named in both environment and secrets"),
    ],
)
def test_a_fault_names_its_option(recipe, changes, message):
    with pytest.raises(RecipeError) as refused:
        Overrides(**changes).apply(recipe)
    assert message in refused.value.message
    assert "hf_0123" not in refused.value.message


def test_requirements_take_the_place_of_types_and_types_that_of_requirements(recipe):
    needs = Overrides(needs={"gpu": "L4", "vcpus": "4-8", "exclude": ("gr6.*",)})
    changed, _ = needs.apply(recipe)
    assert changed.instances.describe() == "gpu: L4, vcpus: 4-8, exclude: gr6.*"
    assert not changed.instances.types
    assert str(needs) == "--gpu L4 --vcpus 4-8 --exclude 'gr6.*'"
    narrowed, _ = Overrides(needs={"vcpus": "8"}).apply(changed)
    assert narrowed.instances.describe() == "gpu: L4, vcpus: 8, exclude: gr6.*"
    named, _ = Overrides(types=("g5.xlarge",)).apply(changed)
    assert named.instances.types == ["g5.xlarge"]
    assert named.instances.gpu is None
    capped, _ = Overrides(needs={"max_usd_per_hour": "0.5"}).apply(recipe)
    assert capped.instances.types == recipe.instances.types


def test_a_bad_requirement_names_its_option(recipe):
    for read in (lambda bad: bad.apply(recipe), lambda bad: bad.requirements()):
        with pytest.raises(RecipeError, match=r"^--vcpus: must be the least, as 16, or a range"):
            read(Overrides(needs={"vcpus": "many"}))
        with pytest.raises(RecipeError, match=r"^--vcpus: the least is 8, the most 4"):
            read(Overrides(needs={"vcpus": "8-4"}))
        with pytest.raises(RecipeError, match=r"^--gpu: write none for types without a GPU"):
            read(Overrides(needs={"gpu": "L4:0"}))
