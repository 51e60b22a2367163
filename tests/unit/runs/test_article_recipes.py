"""The recipes of the articles' experiments that need no environment to be planned."""

import re
from pathlib import Path

import pytest

from dlcloud.benchmarks.command.output import Pattern
from dlcloud.benchmarks.command.settings import read_settings
from dlcloud.recipe.recipe import read_recipe
from dlcloud.runs.program import program_of

RECIPES = Path(__file__).resolve().parents[3] / "recipes"
PRINTED = """Step\tImg/sec\ttotal_loss
1\timages/sec: 19.9 +/- 0.0 (jitter = 0.0)\tnan
10\timages/sec: 20.1 +/- 0.1 (jitter = 0.2)\tnan
----------------------------------------------------------------
total images/sec: 19.92
----------------------------------------------------------------
"""


def recipe_of(name):
    path = RECIPES / f"{name}.yaml"
    return read_recipe(path.read_text(), str(path))


@pytest.mark.parametrize("name", ["quantization-bigdl", "tf-cnn-benchmarks"])
def test_the_articles_type_comes_first_and_the_program_takes_what_is_said(name):
    recipe = recipe_of(name)
    assert recipe.instances.types[0] == "c5.18xlarge"
    assert program_of(recipe, RECIPES).arguments


def test_bigdl_runs_beside_openvino_with_java_and_its_python():
    recipe = recipe_of("quantization-bigdl")
    assert recipe.workload.parameters["engine"] == ["openvino", "bigdl"]
    assert "openjdk-17-jre-headless" in recipe.setup.commands
    assert "python3.11-venv" in recipe.setup.commands
    assert "openvino==" in program_of(recipe, RECIPES).requirements


def test_tf_cnn_benchmarks_gets_flags_that_its_pinned_commit_knows():
    """Source: the flags.DEFINE_... of benchmark_cnn.py there, and what it checks of the learning rate."""
    recipe = recipe_of("tf-cnn-benchmarks")
    assert "benchmarks.git 8fb79079265933ad39bea628b777af662f5bf15d\n" in recipe.setup.commands
    assert dict(re.findall(r" --([a-z_]+)=(\S+)", recipe.workload.command)) == {
        "device": "cpu",
        "model": "resnet50",
        "batch_size": "32",
        "num_batches": "100",
        "init_learning_rate": "0.001",
        "num_epochs_per_decay": "2",
        "learning_rate_decay_factor": "0.94",
        "optimizer": "rmsprop",
        "num_intra_threads": "$CORES",
        "num_inter_threads": "1",
    }


def test_the_last_line_of_tf_cnn_benchmarks_is_what_counts():
    recipe = recipe_of("tf-cnn-benchmarks")
    reading = Pattern.parse(recipe.workload.throughput)
    assert [value for line in PRINTED.splitlines() for value in reading.values(line)] == [19.92]
    arguments = program_of(recipe, RECIPES).arguments
    settings = read_settings(arguments[arguments.index("--settings") + 1])
    assert [setting.name for setting in settings] == ["stock", "article", "today"]
    assert settings[1].arguments == ("--mkl=True", "--data_format=NCHW")
