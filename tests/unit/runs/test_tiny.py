"""The tiny form of every bundled recipe, which `dlcloud up --cloud local` runs."""

from pathlib import Path

import pytest

from dlcloud.recipe.overrides import Overrides
from dlcloud.recipe.recipe import read_recipe
from dlcloud.resources.texts import recipe_names, recipe_text
from dlcloud.runs.program import describe_tiny, has_tiny_form, program_of, tiny_form

RECIPES = Path(__file__).resolve().parents[3] / "recipes"


def recipe_of(name):
    return read_recipe(recipe_text(name)[0], name)


OF_AWS = [name for name in recipe_names() if recipe_of(name).cloud == "aws"]


@pytest.mark.parametrize("name", OF_AWS)
def test_every_recipe_for_aws_has_a_tiny_form_that_its_program_takes(name):
    recipe = recipe_of(name)
    assert has_tiny_form(recipe.workload)
    tiny = recipe.model_copy(update={"workload": tiny_form(recipe.workload)})
    rehearsed, text = Overrides(cloud="local").apply(tiny)
    assert (rehearsed.cloud, rehearsed.instances) == ("local", recipe.instances)
    assert read_recipe(text, "again") == rehearsed
    assert program_of(rehearsed, RECIPES).arguments


def test_a_command_runs_once_with_its_arguments_appended():
    workload = recipe_of("mpi").workload
    tiny = tiny_form(workload)
    assert tiny.command == f"{workload.command} --steps 20 --batch 16"
    assert (tiny.repeats, tiny.tiny) == (1, [])
    assert describe_tiny(workload) == "its tiny form: the command with --steps 20 --batch 16, once"


def test_a_benchmark_takes_the_parameters_of_its_tiny_form():
    workload = recipe_of("quantization-int8").workload
    tiny = tiny_form(workload)
    assert tiny.parameters["network"] == "tiny"
    assert tiny.parameters["engine"] == workload.parameters["engine"]
    assert tiny.parameters["isa"] == ["native", "avx512_core"]
    assert "network tiny" in describe_tiny(workload)


def test_a_command_without_a_tiny_form_runs_once_and_says_so():
    workload = recipe_of("mpi").workload.model_copy(update={"tiny": []})
    assert not has_tiny_form(workload)
    assert tiny_form(workload).command == workload.command
    assert "no workload.tiny" in describe_tiny(workload)


def test_a_rehearsal_that_is_launched_on_aws_leaves_its_incidents_out():
    launched, _ = Overrides(cloud="aws").apply(recipe_of("dynamic-training"))
    assert (launched.cloud, launched.rehearsal) == ("aws", [])
