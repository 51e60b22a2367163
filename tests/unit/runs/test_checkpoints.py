"""What the plan says of checkpoints that are copied through this machine."""

from types import SimpleNamespace

from dlcloud.recipe.recipe import read_recipe
from dlcloud.runs.checkpoints import Checkpoints, checkpoint_folder, describe_checkpoints
from dlcloud.store.checkpoints import HomeCheckpoints
from dlcloud.store.home import Paths
from tests.fakes.samples import run
from tests.unit.store.test_checkpoints_in_home import sending, state

TEXT = """
name: kept
instances: {types: c5.large, market: spot}
workload: {command: python train.py, checkpoints: ckpt/}
"""
IN_S3 = "checkpoints: s3://bucket/run"


def test_the_plan_says_where_they_are_and_what_their_traffic_costs(tmp_path):
    recipe, paths = read_recipe(TEXT, "r.yaml"), Paths(tmp_path)
    first, traffic = describe_checkpoints(paths, recipe, tmp_path)
    assert first.endswith("there is none yet")
    assert "0.09 USD (traffic out of AWS): 5.40 USD per hour at 1,000 MB each minute" in traffic
    assert "80 s at 100 Mbit/s" in traffic


def test_the_plan_says_from_which_checkpoint_the_run_continues(tmp_path):
    recipe, paths = read_recipe(TEXT, "r.yaml"), Paths(tmp_path)
    HomeCheckpoints(checkpoint_folder(paths, recipe, tmp_path) / "0", paths).add(
        state(7, "seven"), sending("seven")
    )
    first, fresh, _ = describe_checkpoints(paths, recipe, tmp_path)
    assert "continues from checkpoint 7 (1 file, 5 B" in first
    assert "--fresh removes them" in fresh


def test_work_is_lost_after_the_state_that_was_copied_until_the_program_had_stopped(tmp_path):
    managed = SimpleNamespace(
        store=SimpleNamespace(paths=Paths(tmp_path)), connect=lambda *_: None, emit=lambda _: None
    )
    kept = Checkpoints(managed=managed, recipe=read_recipe(TEXT + IN_S3, "r.yaml"), storage=None)
    assert kept.lost_s("i-2", 50) == 50, "nothing was kept"
    lost = {}
    for stopped in ([], [{"record": "stopped", "run_s": 44}], [{"record": "stopped", "run_s": 10**9}]):
        one = run("r-1", instance_id="i-1")
        with kept.copying(SimpleNamespace(), one) as copying:
            copying.note({"record": "checkpoint_stored", "number": 1, "run_s": 41.5})
            for record in stopped:
                copying.note(record)
        lost[len(lost)] = kept.lost_s("i-1", 50)
    assert lost == {0: 8.5, 1: 2.5, 2: 50}, "a program cannot have worked longer than it ran"


def test_another_budget_or_other_types_resume_and_another_command_or_project_does_not(tmp_path):
    paths = Paths(tmp_path)
    folder = checkpoint_folder(paths, read_recipe(TEXT, "r.yaml"), tmp_path)
    same = TEXT.replace("c5.large", "c5.xlarge") + "budget: {max_hours: 9}"
    assert checkpoint_folder(paths, read_recipe(same, "r.yaml"), tmp_path) == folder
    other = TEXT.replace("train", "other")
    assert checkpoint_folder(paths, read_recipe(other, "r.yaml"), tmp_path) != folder
    assert checkpoint_folder(paths, read_recipe(TEXT, "r.yaml"), tmp_path / "other") != folder
