"""Secrets: where values come from, what is said where one is missing, and where no value may appear."""

import pytest

from dlcloud.detached.handover import relocate_recipe
from dlcloud.launch.secret_values import LARGEST_VALUE, SecretLookup
from dlcloud.model.errors import CloudError, RecipeError
from dlcloud.recipe.recipe import read_recipe

TEXT = """\
name: own
cloud: local
instances: {{types: [c7i.xlarge]}}
workload:
  command: python3 train.py
{workload}
"""
VALUE = "hf_0123456789abcdef"


def recipe_with(workload):
    return read_recipe(TEXT.format(workload="\n".join(f"  {line}" for line in workload)), "r.yaml")


@pytest.fixture
def look_up(tmp_path):
    def look_up(*workload, environ=None, values=None):
        def fetch(source):
            if source.location not in (values or {}):
                raise CloudError(f"no {source}")
            return values[source.location]

        lookup = SecretLookup(environ=environ or {}, folder=tmp_path, fetch=fetch)
        return lookup.environment_of(recipe_with(workload).workload)

    return look_up


def test_values_come_from_variables_files_and_aws(look_up, tmp_path):
    (tmp_path / "key.txt").write_text(f"{VALUE}\n")
    sources = "secrets: {A: env:MINE, B: file:key.txt, C: ssm:/app/c, D: 'secretsmanager:app#password'}"
    values = {"/app/c": "c-value", "app": '{"password": "d-value", "port": 5432}'}
    found = look_up(sources, "environment: {BATCH: 8}", environ={"MINE": "a-value"}, values=values)
    assert found.secrets == {"A": "a-value", "B": VALUE, "C": "c-value", "D": "d-value"}
    assert found.variables == {"BATCH": "8"}
    for spelling in ("TOKEN", "[TOKEN]", "{TOKEN: env:TOKEN}"):
        assert look_up(f"secrets: {spelling}", environ={"TOKEN": VALUE}).secrets == {"TOKEN": VALUE}
    assert VALUE not in repr(found)
    assert VALUE not in str(found)


def test_all_missing_values_are_named_at_once(look_up):
    with pytest.raises(RecipeError) as refused:
        look_up("secrets: {A: env:MINE, B: file:key.txt, C: ssm:/app/c, D: env:D}", environ={"D": VALUE})
    message = refused.value.message
    assert message.splitlines()[0] == "secret A: the variable MINE is not set here"
    assert "key.txt: No such file" in message
    assert "no ssm:/app/c" in message
    assert VALUE not in message
    assert refused.value.hint.startswith("read -rs MINE && export MINE")


@pytest.mark.parametrize(
    ("value", "fault"),
    [("", "is empty"), ("a\0b", "zero byte"), ("x" * (LARGEST_VALUE + 1), "over 64 KiB")],
)
def test_a_value_that_no_variable_can_hold_is_refused(look_up, value, fault):
    with pytest.raises(RecipeError, match=fault):
        look_up("secrets: {A: ssm:/a}", values={"/a": value})


@pytest.mark.parametrize("value", ["{}", "[1]", VALUE])
def test_a_json_key_that_is_not_there_is_named_without_the_value(look_up, value):
    with pytest.raises(RecipeError) as refused:
        look_up("secrets: {A: 'secretsmanager:app#key'}", values={"app": value})
    assert "secretsmanager:app#key" in refused.value.message
    assert VALUE not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("source", [VALUE, f"vault:{VALUE}", "env:", "env:a b", "ssm:"])
def test_what_is_no_source_is_refused_and_not_repeated(source):
    with pytest.raises(RecipeError) as refused:
        recipe_with([f"secrets: {{A: '{source}'}}"])
    assert "r.yaml:6: workload.secrets.A: " in refused.value.message
    assert VALUE not in refused.value.message


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (["environment: {DLCLOUD_HOME: x}"], "DLCLOUD_HOME: names that begin with DLCLOUD_"),
        (["environment: {A: x}", "secrets: [A]"], "A is named in both environment and secrets"),
        (["settings: [{name: a, environment: {A: x}}]", "secrets: [A]"], "A is named in both"),
        (["secrets: {9A: env:B}"], "9A"),
    ],
)
def test_names_that_clash_are_refused(lines, fault):
    with pytest.raises(RecipeError, match=fault):
        recipe_with(lines)


def test_a_recipe_without_these_keys_keeps_its_hash():
    plain, empty = recipe_with([]), recipe_with(["environment: {}", "secrets: []"])
    assert plain.hash == empty.hash == "995a0bda6de8ad7c"
    assert recipe_with(["environment: {A: x}"]).hash != plain.hash
    assert recipe_with(["secrets: [A]"]).hash != plain.hash


def test_a_detached_controller_reads_secrets_under_names_of_its_own(look_up):
    workload = ["elastic: {}", "secrets: {AWS_ACCESS_KEY_ID: file:key.txt}"]
    on_demand = TEXT.format(workload="\n".join(f"  {line}" for line in workload))
    recipe = read_recipe(on_demand, "r.yaml")
    there = read_recipe(relocate_recipe(recipe), "there.yaml").workload
    assert there.secrets == {"AWS_ACCESS_KEY_ID": "env:DLCLOUD_SECRET_AWS_ACCESS_KEY_ID"}
    environment = look_up("secrets: {AWS_ACCESS_KEY_ID: ssm:/a}", values={"/a": VALUE})
    lookup = SecretLookup(environ=environment.of_controller().secrets, folder=None, fetch=None)
    assert lookup.environment_of(there).secrets == {"AWS_ACCESS_KEY_ID": VALUE}
