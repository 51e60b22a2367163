"""An experiment as an array job of AWS Batch: each child, run as a job would be, gets its trial's values."""

import json
import subprocess

import pytest
from botocore.session import get_session
from botocore.validate import ParamValidator

from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.batch import batch_job_definition, batch_notes
from dlcloud.recipe.recipe import read_recipe
from tests.needs import needs

SWEEP = """
name: sweep
instances: {types: [c5.large]}
workload: {command: 'sh show.sh', facts: {score: 'score (.*)'}}
experiment:
  matrix: {lr: ["0.1", "it's $HOME"], batch-size: [8]}
  metric: score
  %s
"""
SHOW = """printf "%s|" "$@" "$DLCLOUD_VALUE_LR" "$DLCLOUD_VALUE_BATCH_SIZE" "$DLCLOUD_TRIAL"
cat "$DLCLOUD_VALUES"
"""


def definition_of(text):
    hardware = Catalog().hardware("c5.large")
    definition = batch_job_definition(read_recipe(text, "sweep.yaml"), [hardware])
    model = get_session().get_service_model("batch").operation_model("RegisterJobDefinition")
    report = ParamValidator().validate(definition, model.input_shape)
    assert not report.has_errors(), report.generate_report()
    return definition


def run_child(definition, index, folder):
    (folder / "show.sh").write_text(SHOW)
    environment = {"PATH": "/usr/bin:/bin", "AWS_BATCH_JOB_ARRAY_INDEX": str(index)}
    command = definition["containerProperties"]["command"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@needs("bash")
@pytest.mark.parametrize(("index", "lr"), [(0, "0.1"), (1, "it's $HOME")])
def test_each_child_runs_its_own_trial(index, lr, tmp_path):
    done = run_child(definition_of(SWEEP % ""), index, tmp_path)
    *words, document = done.stdout.split("|")
    assert words == ["--lr", lr, "--batch-size", "8", lr, "8", str(index + 1)], done.stderr
    assert json.loads(document) == {"lr": lr, "batch-size": "8"}


@needs("bash")
def test_values_are_no_arguments_where_the_recipe_wants_none(tmp_path):
    done = run_child(definition_of(SWEEP % "arguments: false"), 0, tmp_path)
    assert done.stdout.startswith("0.1|8|1|")


@needs("bash")
def test_a_child_without_a_trial_fails(tmp_path):
    done = run_child(definition_of(SWEEP % ""), 7, tmp_path)
    assert done.returncode == 64
    assert "no trial 7" in done.stderr


def test_the_size_of_the_array_is_noted():
    notes = "\n".join(batch_notes(read_recipe(SWEEP % "", "sweep.yaml")))
    assert "--array-properties size=2" in notes


@pytest.mark.parametrize(
    ("experiment", "reason"),
    [
        ("search: {space: {lr: {low: 0, high: 1}}, trials: 4}", "depends on those before it"),
        ("list: [{lr: 1}]", "has one trial"),
        (f"list: [{', '.join(f'{{lr: {number}}}' for number in range(900))}]", "have no room"),
    ],
)
def test_what_is_no_array_is_refused(experiment, reason):
    head, _, _ = (SWEEP % "").partition("experiment:")
    with pytest.raises(RecipeError, match=reason):
        definition_of(f"{head}experiment: {{{experiment}, metric: score}}\n")
