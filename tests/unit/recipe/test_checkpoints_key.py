"""`workload.checkpoints` and what goes with it: where they belong, and what they mean."""

import pytest

from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import read_recipe
from dlcloud.runs.checkpoints import first_folder

COMMAND = """
name: kept
instances: {{types: c5.large, market: spot}}
workload: {{command: python train.py, {more}}}
"""


def read(more):
    return read_recipe(COMMAND.format(more=more), "r.yaml")


def test_one_folder_or_several_are_named():
    assert read("checkpoints: ckpt/").workload.checkpoints == ["ckpt/"]
    workload = read("checkpoints: [ckpt/, 'out/*.pt'], resume: auto, on_rebalance: yes").workload
    assert (workload.resume, workload.on_rebalance) == ("auto", True)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("checkpoints: /ckpt", "not below the working folder"),
        ("checkpoints: ../ckpt", "leads out of the working folder"),
        ("checkpoints: ckpt, repeats: 2", "runs once"),
        ("checkpoints: ckpt, elastic: {}", "keeps its own"),
        ("resume: auto", "resume needs checkpoints"),
        ("on_notice: 'true'", "on_notice needs checkpoints"),
        ("on_rebalance: yes", "on_rebalance needs checkpoints"),
    ],
)
def test_what_cannot_be_kept_is_refused(more, message):
    with pytest.raises(RecipeError, match=message):
        read(more)


@pytest.mark.parametrize(
    ("pattern", "folder"),
    [("ckpt/", "ckpt"), ("./out/model", "out/model"), ("out/*.pt", "out"), ("*.pt", "."), ("a/last.pt", "a")],
)
def test_the_program_learns_the_folder_of_the_first_pattern(pattern, folder):
    assert first_folder([pattern]) == folder
