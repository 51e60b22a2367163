"""What a recipe that is right means, and the schema that editors hold it against."""

import json

import jsonschema
import pytest
import yaml

from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import read_recipe, recipe_schema, with_name
from dlcloud.resources.texts import recipe_names, recipe_text, template

FULL = """\
name: full
region: eu-west-1
instances:
  types: [c7i.xlarge, g5.xlarge]
  count: {min: 1, max: 4}
  market: spot-then-on-demand
  zones: [eu-west-1a]
  image: /aws/service/some/ami-id
  user: ec2-user
  disk_gib: 100
setup:
  commands: |
    echo hello
  requirements: [torch==2.4.1, "numpy[x]==1.26"]
workload:
  command: python3 train.py
  files: .
  throughput: 'images/s: ([0-9.]+)'
  settings:
    - name: no
    - name: 3.10
      environment: {OMP_NUM_THREADS: 010, PYTHON: 3.10, DEBUG: no, EMPTY: ""}
      arguments: [0x10, yes, 1e3, 2026-09-01]
budget: {max_usd: 2.50, max_hours: 1.5}
keep: {instances: no, files: ["*.pt"]}
"""


def read(text):
    return read_recipe(text, "r.yaml")


@pytest.mark.parametrize(
    "written", ["[torch==2.4.1]", "torch==2.4.1", "|\n    # of the network\n    torch==2.4.1  # CPU\n"]
)
def test_requirements_are_a_list_or_one_a_line(written):
    text = FULL.replace('[torch==2.4.1, "numpy[x]==1.26"]', written)
    assert read(text).setup.requirements == ["torch==2.4.1"]
    jsonschema.validate(
        yaml.safe_load(text)["setup"], {"$defs": recipe_schema()["$defs"], "$ref": "#/$defs/Setup"}
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{min: 1, max: 4}", "\n    max: 4\n    min: 1"),
        ("name: full", '# a comment\n"name": "full"'),
        ("max_usd: 2.50", "max_usd: 2.5"),
        ("max_hours: 1.5", "max_hours: 1.50"),
        ('DEBUG: no, EMPTY: ""', "EMPTY: '', DEBUG: no"),
        ("keep: {instances: no", "keep: {instances: false"),
        ("region: eu-west-1\n", "cloud: aws\nregion: eu-west-1\n"),
        ("user: ec2-user", "user: ec2-user\n  tenancy: default"),
    ],
)
def test_the_hash_is_of_what_is_said_and_not_of_its_spelling(old, new):
    assert old in FULL
    assert read(FULL.replace(old, new)).hash == read(FULL).hash


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max_usd: 2.50", "max_usd: 2.51"),
        ("PYTHON: 3.10", "PYTHON: 3.1"),
        ("[c7i.xlarge, g5.xlarge]", "[g5.xlarge, c7i.xlarge]"),
        ("name: full", "name: fuller"),
        ("user: ec2-user", "user: ec2-user\n  tenancy: dedicated"),
        ("echo hello", "echo  hello"),
    ],
)
def test_another_meaning_has_another_hash(old, new):
    assert read(FULL.replace(old, new)).hash != read(FULL).hash


def bundled():
    return [(name, recipe_text(name)[0]) for name in recipe_names()] + [("template", template("recipe.yaml"))]


@pytest.mark.parametrize(("name", "text"), bundled())
def test_every_bundled_recipe_is_read_and_fits_the_schema(name, text):
    assert read_recipe(text, name).name
    jsonschema.validate(yaml.safe_load(text), recipe_schema())


def test_the_schema_is_a_schema_and_refuses_what_the_reader_refuses():
    schema = recipe_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(schema)) == schema
    good = yaml.safe_load(recipe_text("quickstart")[0])
    for key, value in (("cloud", "azure"), ("surprise", 1), ("instances", {"types": []})):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**good, key: value}, schema)


def test_env_is_environment_and_commands_may_be_a_list():
    long = read_recipe(
        'name: a\ninstances: {types: c7i.large}\nsetup: {commands: "a\\nb"}\n'
        "workload: {command: x, environment: {A: 1, env: 2}}\n",
        "r.yaml",
    )
    short = read_recipe(
        "name: a\ninstances: {types: c7i.large}\nsetup: {commands: [a, b]}\n"
        "workload: {command: x, env: {A: 1, env: 2}}\n",
        "r.yaml",
    )
    assert short == long
    assert short.hash == long.hash
    assert short.workload.environment == {"A": "1", "env": "2"}


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("train.yaml", "train"),
        ("/a/My Job_2.yml", "my-job-2"),
        ("2024.yaml", "run-2024"),
        ("Größe.yaml", "gr-e"),
        ("x" * 40 + ".yaml", "x" * 31),
        (".yaml", "yaml"),
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        "instances: {types: c7i.large}\nworkload:\n  command: |\n    x",
        "{instances: {types: c7i.large}, workload: {command: x}}",
        "name:\ninstances: {types: c7i.large}\nworkload: {command: x}\n",
        "---\ninstances: {types: c7i.large}\nworkload: {command: x}\n...\n",
    ],
)
def test_a_recipe_without_a_name_has_that_of_its_file(text, file, name):
    recipe = read_recipe(with_name(text, file), file)
    assert recipe.name == name
    assert recipe.workload.command.strip() == "x"


def test_the_schema_knows_what_the_reader_knows():
    schema = recipe_schema()
    recipe = {"instances": {"types": "c7i.large"}, "setup": {"commands": ["a"]}}
    jsonschema.validate({**recipe, "workload": {"command": "x", "env": {"A": "1"}}}, schema)


def test_a_recipe_with_requirements_is_the_same_recipe_whatever_types_they_give():
    text = "name: own\ninstances: {gpu: 'L4:2', max_usd_per_hour: 3}\nworkload: {command: 'true'}\n"
    written = read_recipe(text, "r.yaml")
    assert written.instances.describe() == "gpu: L4:2"
    chosen = written.with_types(["g6.12xlarge"])
    again = read_recipe(chosen.to_yaml(), "again")
    assert (again.instances.types, again.instances.chosen_for) == (["g6.12xlarge"], "gpu: L4:2")
    assert not again.instances.describe()
    hashes = {one.hash for one in (written, chosen, again, written.with_types(["g6.24xlarge"]))}
    assert len(hashes) == 1
    assert read_recipe(text.replace("L4:2", "L4"), "r.yaml").hash not in hashes


@pytest.mark.parametrize("region", ["[us-east-1, us-west-2]", "us-east-1,us-west-2"])
def test_several_regions_are_one_recipe_wherever_its_cluster_is(region):
    text = f"name: own\nregion: {region}\ninstances: {{types: [c7i.large]}}\nworkload: {{command: x}}\n"
    written = read_recipe(text, "r.yaml")
    assert (written.region, written.regions) == ("us-east-1", ["us-east-1", "us-west-2"])
    placed = written.in_region("us-west-2")
    again = read_recipe(placed.to_yaml(), "again")
    assert (again.region, again.regions) == ("us-west-2", written.regions)
    assert written.hash == placed.hash == again.hash
    assert read_recipe(text.replace(region, "us-east-1"), "r.yaml").hash != written.hash


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("network: {vpc: vpc-12345678}", "network is of one region"),
        ("geography: eu", "geography belongs to region: any"),
    ],
)
def test_what_binds_a_recipe_to_a_region_is_named(lines, message):
    text = (
        "name: own\nregion: [us-east-1, us-west-2]\ninstances: {types: [c7i.large]}\nworkload: {command: x}\n"
    )
    with pytest.raises(RecipeError, match=rf"r\.yaml:5: {message}"):
        read_recipe(text + lines, "r.yaml")
    with pytest.raises(RecipeError, match=r"r\.yaml:3: instances\.image is of one region"):
        read_recipe(text.replace("[c7i.large]", "[c7i.large], image: ami-12345678"), "r.yaml")


def test_a_list_of_files_is_answered_with_what_to_write_instead():
    text = "workload:\n  command: python a.py\n  files: [a.py, b.py]\ninstances: {types: [c5.large]}\n"
    with pytest.raises(
        RecipeError, match=r"workload\.files: .*name the folder that has them; \.dlcloudignore"
    ):
        read_recipe(text, "r.yaml")
