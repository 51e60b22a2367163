"""A script as its syntax tree and its output show it, and the recipe that is made of it."""

import re

import pytest

from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import read_recipe
from dlcloud.recipe.script import read_script, throughput_of_output
from dlcloud.recipe.script_recipe import ScriptRecipe

SCRIPT = """
import argparse, logging
import torch, cv2, mymodel
from sklearn.datasets import load_digits
parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("-b", "--batch-size", default=64)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--out", required=True)
model = torch.nn.Linear(1, 1).to("cuda")
"""


def script(more=""):
    return read_script(SCRIPT + more, "train.py")


def recipe_text(facts):
    return ScriptRecipe(
        name="train",
        script=facts,
        command="python3 train.py",
        files="train.py",
        requirements=["numpy==2.4.6"],
        unpinned=["cv2"],
        throughput=facts.throughput,
        schema="recipe.schema.json",
    ).text()


def test_imports_arguments_and_cuda_are_seen():
    facts = script()
    assert facts.packages({"mymodel"}) == ["opencv-python-headless", "scikit-learn", "torch"]
    assert (facts.framework, facts.uses_cuda) == ("torch", True)
    assert facts.arguments == {"--batch-size": "64", "--amp": ""}
    assert facts.required == ("data", "--out")


def test_files_that_it_writes_are_kept():
    more = """
torch.save(model, "out/model.pt")
torch.save(model, name)
frame.to_csv("/tmp/elsewhere.csv")
open("log.txt", "w").write("x")
open("data.txt").read()
"""
    facts = script(more)
    assert facts.written == ("out/model.pt", "log.txt")
    assert read_recipe(recipe_text(facts), "r.yaml").keep.files == ["out/model.pt", "log.txt"]
    assert "keep" not in recipe_text(script())


@pytest.mark.parametrize(
    ("line", "output", "unit"),
    [
        ('print(f"step {s}: {b / t:.1f} images/s")', "step 3: 12.5 images/s", "images"),
        ('print(f"throughput {x} img/sec, loss {l}")', "throughput 12.5 img/sec, loss 3", "images"),
        ('print("samples/sec: %.2f" % x)', "samples/sec: 12.5", "samples"),
        ('logging.info("{} tokens per second".format(x))', "INFO 12.5 tokens per second", "tokens"),
        ('print("loss", 3)', "epoch 1: 12.5 it/s", "steps"),
    ],
)
def test_a_throughput_is_seen_in_prints_or_in_output(line, output, unit):
    seen = [throughput_of_output(["started", output])]
    seen += [facts.throughput] if (facts := script(line)).throughput else []
    assert len(seen) == (1 if "loss" in line and "3)" in line else 2)
    for throughput in seen:
        assert throughput.unit == unit
        assert re.search(throughput.pattern, output)[1] == "12.5"


def test_output_without_a_throughput_is_none():
    assert throughput_of_output(["epoch 1", "loss 0.5 after 3 s", "images/s unknown"]) is None
    assert script('print("images/s unknown")').throughput is None


def test_what_is_no_python_is_refused_with_its_line():
    with pytest.raises(RecipeError, match="this is no Python"):
        read_script("x = 1\ny = = 2\n", "train.py")


@pytest.mark.parametrize(
    "source",
    [
        SCRIPT,
        'import dlcloud_report\nprint("x")',
        "from dlcloud.trainer import train",
        "import dlcloud.trainer.training",
        'import numpy\nprint(f"it\'s {x} images/s")',
        "",
    ],
)
def test_the_recipe_of_any_script_is_read(source):
    facts = read_script(source, "train.py")
    text = recipe_text(facts)
    assert text.startswith("# yaml-language-server: $schema=recipe.schema.json\n")
    workload = read_recipe(text, "train.yaml").workload
    assert workload.command == "python3 train.py"
    assert (workload.elastic is not None) == ("trainer" in source)
    assert workload.reported == ("dlcloud_report" in source)


def test_the_recipe_of_an_elastic_script_says_what_spot_needs():
    text = recipe_text(read_script("from dlcloud.trainer import train", "train.py"))
    assert "market: on-demand # or spot-then-on-demand, then also on_demand_base: 1," in text
    spot = text.replace("market: on-demand #", "market: spot-then-on-demand\n  on_demand_base: 1 #")
    assert read_recipe(spot, "train.yaml").instances.on_demand_base == 1
