"""AWS Batch: job definitions, checked against botocore's model, and arrays that fail before they report."""

import json
import subprocess

import pytest
from botocore.session import get_session
from botocore.validate import ParamValidator

from dlcloud.app.clusters.batch import BatchUp
from dlcloud.cloud.compute.batch_queues import BatchJob
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.batch import batch_job_definition, batch_notes
from dlcloud.recipe.recipe import Recipe, read_recipe
from dlcloud.runs.experiment_runner import FIRST_FAILURES
from tests.needs import needs

TRAINING = """
name: training
instances: {types: [g4dn.2xlarge, g5.2xlarge], market: spot}
setup: {commands: "sudo apt-get install -qy jq", requirements: [tqdm==4.67.1]}
workload:
  command: python train.py
  files: .
  settings:
  - {name: small, environment: {SIZE: "1"}, arguments: [--batch, "1 2"]}
  - {name: large}
keep: {files: "*.pt"}
budget: {max_hours: 2}
"""


def definition_of(recipe: Recipe, setting: str = "") -> dict:
    types = [hardware for name in recipe.instances.types if (hardware := Catalog().hardware(name))]
    definition = batch_job_definition(recipe, types, setting)
    model = get_session().get_service_model("batch").operation_model("RegisterJobDefinition")
    report = ParamValidator().validate(definition, model.input_shape)
    assert not report.has_errors(), report.generate_report()
    return definition


def test_a_recipe_becomes_a_job_on_a_whole_instance():
    definition = definition_of(read_recipe(TRAINING, "r.yaml"), "small")
    container = definition["containerProperties"]

    resources = {entry["type"]: int(entry["value"]) for entry in container["resourceRequirements"]}
    assert resources == {"VCPU": 8, "MEMORY": int(32 * 1024 * 0.9), "GPU": 1}
    assert container["environment"] == [{"name": "SIZE", "value": "1"}]
    assert definition["timeout"] == {"attemptDurationSeconds": 7200}
    assert definition["retryStrategy"]["evaluateOnExit"][0] == {
        "onStatusReason": "Host EC2*",
        "action": "RETRY",
    }
    script, *parameters = container["command"][2:]
    assert parameters == ["training", "Ref::files"]
    assert script.endswith("python train.py --batch '1 2'")
    pip = "pip install -q --no-cache-dir -r /dev/stdin"
    assert f"{pip} <<'PACKAGES'\ntqdm==4.67.1\nPACKAGES\n" in script
    assert container["linuxParameters"] == {"sharedMemorySize": resources["MEMORY"] // 2}


@needs("bash")
def test_the_script_runs_set_up_without_sudo_and_then_the_command():
    text = (
        "name: a\ninstances: {types: c5.large}\nsetup: {commands: sudo true}\nworkload: {command: echo ran}"
    )
    command = definition_of(read_recipe(text, "r.yaml"))["containerProperties"]["command"]
    ended = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}, check=True)
    assert ended.stdout == "ran\n"


def test_what_a_job_definition_cannot_say_is_noted():
    notes = "\n".join(batch_notes(read_recipe(TRAINING, "r.yaml")))
    for part in ("type SPOT, instanceTypes g4dn.2xlarge, g5.2xlarge", "aws s3 cp --recursive .", "*.pt"):
        assert part in notes


NODES = """
name: train
instances: {types: [g5.xlarge], count: 4, market: spot-then-on-demand}
workload: {nodes: all, command: %s, environment: {BATCH: "8"}, secrets: [HF_TOKEN]}
"""


def test_a_job_over_nodes_becomes_a_multi_node_parallel_job():
    recipe = read_recipe(NODES % "torchrun train.py", "r.yaml")
    definition = definition_of(recipe)
    nodes = definition["nodeProperties"]

    assert (definition["type"], nodes["numNodes"], nodes["mainNode"]) == ("multinode", 4, 0)
    assert "containerProperties" not in definition
    (every,) = nodes["nodeRangeProperties"]
    assert every["targetNodes"] == "0:3"
    assert every["container"]["environment"] == [{"name": "BATCH", "value": "8"}]
    notes = "\n".join(batch_notes(recipe))
    for part in ("type EC2", "no multi-node parallel job on Spot", "TF_CONFIG", "add HF_TOKEN"):
        assert part in notes


@needs("bash")
@pytest.mark.parametrize("rank", [0, 2])
def test_a_node_there_knows_its_rank_the_count_and_the_head(rank):
    recipe = read_recipe(NODES % "env", "r.yaml")
    container = definition_of(recipe)["nodeProperties"]["nodeRangeProperties"][0]["container"]
    head = {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.5"} if rank else {}
    batch = {"AWS_BATCH_JOB_NODE_INDEX": str(rank), "AWS_BATCH_JOB_NUM_NODES": "4", **head}
    environment = {"PATH": "/usr/bin:/bin", **batch}
    ended = subprocess.run(container["command"], capture_output=True, text=True, env=environment, check=True)
    variables = dict(line.split("=", 1) for line in ended.stdout.splitlines() if "=" in line)

    assert variables["RANK"] == variables["PET_NODE_RANK"] == variables["DLCLOUD_NODE_RANK"] == str(rank)
    assert variables["WORLD_SIZE"] == "4"
    assert variables["MASTER_ADDR"] == "10.0.0.5" if rank else variables["MASTER_ADDR"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python -m benchmarks.distributed.mpirun train.py", "own program benchmarks.distributed.mpirun"),
        ("mpirun --hostfile $DLCLOUD_HOST_FILE train.py", "reads DLCLOUD_HOST_FILE"),
    ],
)
def test_a_job_that_needs_what_batch_lacks_is_refused(command, message):
    with pytest.raises(RecipeError, match=message):
        definition_of(read_recipe(NODES % command, "r.yaml"))


def test_every_bundled_recipe_over_nodes_is_refused(dlcloud):
    ended = dlcloud("export", "--as", "batch", "torchrun-ddp")
    assert "own program benchmarks.distributed.ddp" in ended.stderr
    assert "hint: dlcloud up torchrun-ddp runs it" in ended.stderr


@pytest.mark.parametrize(("setting", "message"), [("", "has 2 settings"), ("huge", "no setting 'huge'")])
def test_one_of_several_settings_must_be_named(setting, message):
    with pytest.raises(RecipeError, match=message):
        definition_of(read_recipe(TRAINING, "r.yaml"), setting)


def test_benchmarks_and_elastic_trainings_are_refused(dlcloud):
    assert "the bundled benchmark quantization" in dlcloud("export", "--as", "batch", "quickstart").stderr
    assert "restarted, not resized" in dlcloud("export", "--as", "batch", "dynamic-training").stderr


def test_the_command_prints_the_input_of_register_job_definition(dlcloud, tmp_path):
    (tmp_path / "r.yaml").write_text(TRAINING)
    ended = dlcloud("export", "--as", "batch", str(tmp_path / "r.yaml"), "--setting", "large")
    assert json.loads(ended.stdout)["jobDefinitionName"] == "training"
    assert "# the queue's compute environment" in ended.stderr


@pytest.mark.parametrize(
    ("counts", "is_hopeless"),
    [
        ({"FAILED": FIRST_FAILURES, "RUNNABLE": 9000}, True),
        ({"FAILED": FIRST_FAILURES - 1, "RUNNABLE": 9000}, False),
        ({"FAILED": 50, "SUCCEEDED": 1, "RUNNABLE": 9000}, False),
    ],
)
def test_children_that_all_fail_without_a_result_end_the_array(counts, is_hopeless):
    job = BatchJob(counts=counts, is_over=False, reason="")
    assert bool(BatchUp._is_hopeless(None, job, [])) is is_hopeless
