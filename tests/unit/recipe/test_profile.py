"""Profiles of the configuration file, and the recipes that they complete."""

import pytest

from dlcloud.model.errors import RecipeError
from dlcloud.recipe.profile import read_configuration
from dlcloud.recipe.recipe import read_recipe

ROLE = "arn:aws:iam::123456789012:role/Launcher"
RECIPE = """\
name: train
instances: {types: c7i.large, market: spot}
workload: {command: "true"}
"""
CONFIGURATION = f"""\
default: work
profiles:
  work:
    aws_profile: work-sso
    role: {ROLE}
    external_id: "0042"
    region: eu-central-1
    tags: {{team: vision, cost-center: "0042"}}
    instance_profile: trainers
    kms_key: alias/disks
    permissions_boundary: arn:aws:iam::123456789012:policy/Boundary
  rehearsal: {{cloud: local, tags: {{team: vision}}}}
"""


def profile(name="work"):
    return read_configuration(CONFIGURATION, "config.yaml").profiles[name]


def test_a_login_is_the_profile_and_its_role():
    login = profile().login
    assert (login.aws_profile, login.role, login.external_id) == ("work-sso", ROLE, "0042")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("default: x\n", "there is no profile x"),
        ("profiles: {a: {external_id: b}}\n", "c.yaml:1: profiles.a: external_id belongs to role"),
        ("profiles: {a: {role: Launcher}}\n", "profiles.a.role"),
        ("profiles: {a: {rolle: x}}\n", "c.yaml:1: profiles.a.rolle: unknown key"),
        (
            "profiles:\n  a:\n    tags: {'aws:x': y}\n",
            "c.yaml:3: profiles.a.tags: the tag 'aws:x' is set by AWS",
        ),
        ("profiles: {a: {tags: {Name: y}}}\n", "the tag 'Name' is set by AWS or by dlcloud"),
        ("- a\n", "is a mapping of keys to values"),
    ],
)
def test_faults_of_a_configuration_have_their_line(text, message):
    with pytest.raises(RecipeError) as refused:
        read_configuration(text, "c.yaml")
    assert message in refused.value.message


def test_an_empty_configuration_has_no_profiles():
    assert read_configuration("# nothing yet\n", "c.yaml").profiles == {}


@pytest.mark.parametrize(
    "line",
    ["tags: {}", "permissions_boundary:", "instances: {types: c7i.large, market: spot, profile:, kms_key:}"],
)
def test_unset_keys_of_an_account_leave_the_hash(line):
    text = line if line.startswith("instances") else f"instances: {{types: c7i.large, market: spot}}\n{line}"
    recipe = read_recipe(f'name: train\nworkload: {{command: "true"}}\n{text}\n', "r.yaml")
    assert recipe.hash == read_recipe(RECIPE, "r.yaml").hash


@pytest.mark.parametrize(
    ("key", "value"),
    [("profile", "a/b"), ("kms_key", "my key"), ("kms_key", "arn:aws:s3:::bucket")],
)
def test_names_that_aws_would_refuse_are_faults(key, value):
    with pytest.raises(RecipeError, match=f"instances.{key}"):
        read_recipe(RECIPE.replace("market: spot", f"{key}: '{value}'"), "r.yaml")
