"""Which profile a command has, and by whose credentials it works on a cluster."""

from dataclasses import replace

import pytest

from dlcloud.app import recipe_files
from dlcloud.app.context import Context
from dlcloud.launch.acquire import acquire_cluster
from dlcloud.model.errors import RecipeError
from tests.fakes.samples import cluster

RECIPE = """\
name: train
instances: {types: c7i.large}
workload: {command: "true"}
"""
CONFIGURATION = """\
default: work
profiles:
  work: {aws_profile: work-sso, region: eu-central-1, tags: {team: vision}}
  other: {aws_profile: other}
"""


@pytest.fixture
def configuration(tmp_path, monkeypatch):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIGURATION)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    for name in ("DLCLOUD_PROFILE", "DLCLOUD_CONTROLLER", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("DLCLOUD_CONFIG", str(path))
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path / "home"))
    return path


def read(configuration):
    return recipe_files.read_recipe_file(str(configuration.with_name("recipe.yaml")))


def test_a_profile_that_is_missing_lists_those_there_are(configuration, monkeypatch):
    monkeypatch.setenv("DLCLOUD_PROFILE", "wrok")
    with pytest.raises(RecipeError, match="has no profile wrok") as refused:
        read(configuration)
    assert refused.value.hint == "its profiles: other, work"


def test_an_instance_that_controls_its_cluster_has_no_profile(configuration, monkeypatch):
    monkeypatch.setenv("DLCLOUD_CONTROLLER", "i-1")
    monkeypatch.setenv("DLCLOUD_PROFILE", "work")
    assert (read(configuration).profile, read(configuration).recipe.region) == ("", "us-east-1")


def region_of(configuration):
    file = read(configuration)
    return file.recipe.region, file.region_source


def test_the_region_is_that_of_recipe_profile_environment_and_aws_configuration_in_this_order(
    configuration, monkeypatch, tmp_path
):
    aws = tmp_path / "aws-config"
    aws.write_text("[default]\nregion = sa-east-1\n[profile other]\nregion = ap-south-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(aws))
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert region_of(configuration) == ("eu-central-1", "profile work")
    monkeypatch.setenv("DLCLOUD_PROFILE", "other")
    assert region_of(configuration) == ("eu-north-1", "AWS_REGION")
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")
    assert region_of(configuration) == ("eu-west-3", "AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "nowhere")
    with pytest.raises(RecipeError, match="AWS_DEFAULT_REGION: 'nowhere' is no region"):
        region_of(configuration)
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert region_of(configuration) == ("ap-south-1", f"{aws}, profile other")
    assert Context("up").first_region == "ap-south-1"
    own = configuration.with_name("recipe.yaml")
    own.write_text(RECIPE + "region: us-west-2\n")
    assert region_of(configuration) == ("us-west-2", "")
    own.write_text(RECIPE + "cloud: local\n")
    assert region_of(configuration) == ("us-east-1", "")


@pytest.mark.usefixtures("configuration")
def test_a_cluster_is_worked_on_by_the_credentials_that_launched_it():
    context = Context("down")
    launched = replace(cluster(), cloud="aws", profile="other")
    assert context.clouds.cloud_of(launched).network._clients.login.aws_profile == "other"
    assert context.clouds.cloud_of(replace(launched, profile="")).network._clients.login.aws_profile == ""
    assert context.clouds.cloud("aws", "us-east-1").network._clients.login.aws_profile == "work-sso"
    with pytest.raises(RecipeError, match=r"the profile of its clusters: .* has no profile gone"):
        context.clouds.cloud_of(replace(launched, profile="gone"))


def test_an_up_continues_no_cluster_of_another_account(configuration, monkeypatch):
    with Context("up") as context:
        first = acquire_cluster(read(configuration), name="x", store=context.store, clock=context.clock)
        assert first.cluster.tags["team"] == "vision"
        assert context.clusters.find("x") == first.cluster
        first.release()
        monkeypatch.setenv("DLCLOUD_PROFILE", "other")
        file = replace(read(configuration), recipe=read(configuration).recipe)
        with pytest.raises(RecipeError, match="launched with the profile work, not with the profile other"):
            acquire_cluster(file, name="x", store=context.store, clock=context.clock)
