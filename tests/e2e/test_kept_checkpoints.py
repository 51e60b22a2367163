"""A script that saves its state and can resume survives the loss of its instance, unchanged."""

import json
import re
import signal

import pytest
from terminal import TIMEOUT_S, wait_until

SCRIPT = """\
import os, pathlib, time
folder = pathlib.Path(os.environ["DLCLOUD_CHECKPOINTS"])
last, total, step = folder / "last", 0, 0
if last.exists():
    step, total = map(int, last.read_text().split())
print("begins at", step, os.environ.get("DLCLOUD_RESUME"), flush=True)
is_first_life = not step
while step < 60:
    time.sleep(0.1)
    if is_first_life and step == 40:
        continue  # it ends on another instance only
    step += 1
    total += step * step
    if step % 10 == 0:
        path = folder / f"step-{step}.txt"
        with path.open("w") as file:  # not atomic
            file.write(f"{step} ")
            file.flush()
            time.sleep(0.2)
            file.write(f"{total}")
        link = folder / "last.new"
        link.symlink_to(path.name)
        link.replace(last)
        for old in folder.glob("step-*.txt"):  # only the newest file is kept
            if old != path:
                old.unlink()
pathlib.Path("result.txt").write_text(str(total))
"""
LOOP = """\
import pathlib, time
import dlcloud_report
total = [0]
first = dlcloud_report.checkpoint(total)
print("begins at", first, flush=True)
for step in range(first, 60):
    while not first and step == 40:
        dlcloud_report.checkpoint(step=step)  # it ends on another instance only
        time.sleep(0.1)
    time.sleep(0.1)
    total[0] += (step + 1) ** 2
    dlcloud_report.checkpoint(step=step + 1)
pathlib.Path("result.txt").write_text(str(total[0]))
"""
RECIPE = """\
name: {name}
cloud: local
instances: {{types: [c5.xlarge, c5.2xlarge], market: spot, count: {count}}}
workload:
  command: python3 train.py
  files: train.py
  checkpoints: [ckpt/]
  resume: {resume}
  {more}
budget: {{max_hours: 1}}
"""


def begin(user, name, *, script=SCRIPT, more="", count=1, top="", resume="auto", is_there=None):
    """Start an `up`; return its process once a checkpoint was copied."""
    (user.home / "train.py").write_text(script)
    path = user.home / f"{name}.yaml"
    path.write_text(RECIPE.format(name=name, more=more, count=count, resume=resume) + top)
    process = user.begin("up", str(path), "--name", name)
    wait_until(is_there or (lambda: kept(user, name)))
    return process


def kept(user, name, number=0):
    return list((user.home / ".dlcloud/checkpoints").glob(f"{name}-*/{number}/state-*.json"))


def end(user, name, process):
    """Wait for the end of a run that has resumed; return what `up` printed."""
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, out + err
    assert re.search(r"restoring checkpoint \d+", err), err
    statement = f"SELECT line FROM records JOIN runs USING (run_id) WHERE cluster_name = '{name}'"
    ((line,),) = user.store(f"{statement} AND kind = 'result'")
    time_s = json.loads(line)["metrics"]["duration"]["value"]
    assert 6 < time_s < 60, "its time is that of all steps, those on other instances included"
    (result,) = (user.home / ".dlcloud/runs").glob(f"{name}-*/files/result.txt")
    assert result.read_text() == str(sum(step * step for step in range(61)))
    return out, err


@pytest.mark.parametrize("grace", [pytest.param("0", marks=pytest.mark.long), "40"])
def test_a_script_resumes_on_the_replacement_with_and_without_a_notice(user, grace):
    name = f"resumes{grace}"
    process = begin(user, name)
    (first,) = user.alive()
    user.run("local", "interrupt", first, "--grace", grace)
    _, err = end(user, name, process)
    assert "interrupted once" in err
    assert re.search(r"the program starts again [0-9.]+ s after the (notice|loss): ", err)
    assert re.search(r"its first output came [0-9.]+ s after the (notice|loss): ", err)
    assert kept(user, name) == [], "the next up starts from the beginning"


def test_ctrl_c_lets_the_program_save_and_the_next_up_resumes(user):
    process = begin(user, "stopped")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert "then its checkpoints are copied" in err
    assert list((user.home / ".dlcloud/runs").glob("stopped-*/files/ckpt/step-*.txt")), "files, too"
    assert user.alive() == []
    plan = user.run("up", "stopped.yaml", "--dry-run").stdout
    assert "continues from checkpoint" in " ".join(plan.split())
    end(user, "stopped", user.begin("up", "stopped.yaml", "--name", "stopped"))


@pytest.mark.long
def test_a_notice_of_one_node_stops_the_job_on_all_and_it_resumes_with_a_replacement(user):
    process = begin(user, "ranks", script=ONLY_RANK_0, more="nodes: all", count=2)
    (rank_1,) = user.store("SELECT instance_id FROM runs WHERE cluster_name = 'ranks' AND rank = 1")
    user.run("local", "interrupt", rank_1[0], "--grace", "60")
    _, err = end(user, "ranks", process)
    assert "an interruption notice of rank 1" in err


ONLY_RANK_0 = SCRIPT.replace("import os", "import os, sys", 1).replace(
    "    if step % 10 == 0:", "    if step % 10 == 0 and os.environ['RANK'] == '0':"
)


def test_a_resize_starts_one_job_again_on_all_instances_with_its_checkpoints(user):
    process = begin(user, "grown", script=ONLY_RANK_0, more="nodes: all", resume="none")
    assert "requested 2 instance(s) for grown" in user.run("resize", "grown", "2").stdout
    _, err = end(user, "grown", process)
    assert "starts again on 2 instance(s)" in err
    assert user.store("SELECT MAX(nodes) FROM runs WHERE cluster_name = 'grown'") == [(2,)]


@pytest.mark.long
def test_a_resize_of_a_detached_job_starts_it_again_with_its_checkpoints(user):
    user.run("local", "start")
    s3 = user.client("s3")
    s3.create_bucket(Bucket="left-alone")
    (user.home / "train.py").write_text(ONLY_RANK_0)
    path = user.home / "left.yaml"
    recipe = RECIPE.format(name="left", more="nodes: all", count=1, resume="none")
    recipe = recipe.replace("market: spot", "market: on-demand")
    path.write_text(recipe + "checkpoints: s3://left-alone/run\n")
    user.run("up", str(path), "--detach", "--name", "left")
    wait_until(lambda: s3.list_objects_v2(Bucket="left-alone", Prefix="run/0/state-").get("Contents"))
    assert "requested 2 instance(s) for left" in user.run("resize", "left", "2").stdout
    wait_until(lambda: is_ready(user, "left"))
    down = user.run("down", "left")
    assert user.alive() == []
    (result,) = (user.home / ".dlcloud/runs").glob("left-*/files/result.txt")
    assert result.read_text() == str(sum(step * step for step in range(61))), down.stdout + down.stderr
    assert user.store("SELECT MAX(nodes) FROM runs WHERE cluster_name = 'left'") == [(2,)]
    logs = [path.read_text() for path in (user.home / ".dlcloud/runs").glob("left-*/log")]
    assert any(re.search("begins at [1-6]0", text) for text in logs)


def is_ready(user, name):
    document = json.loads(user.run("status", name, "--output", "json", expect=None).stdout or "{}")
    return {one["cluster_state"] for one in document.get("result", {}).get("records", [])} == {"ready"}


@pytest.mark.long
def test_a_resize_of_runs_by_themselves_stops_only_those_that_leave(user):
    script = SCRIPT.replace("if is_first_life and step == 40:", "if step == 40 and not go.exists():")
    script = script.replace("is_first_life = ", "go = pathlib.Path('/tmp/go')\nis_first_life = ")
    process = begin(
        user, "several", script=script, count=2, is_there=lambda: len(kept(user, "several", "*")) > 1
    )
    user.run("resize", "several", "1")
    wait_until(lambda: len(user.alive()) == 1)
    user.run("resize", "several", "2")
    began = "SELECT run_id FROM runs WHERE cluster_name = 'several'"
    wait_until(lambda: len(user.store(began)) == 3)
    wait_until(lambda: "begins at 40" in user.run("logs", "several").stdout)
    user.run("exec", "several", "--", "touch", "/tmp/go")
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, out + err
    results = (user.home / ".dlcloud/runs").glob("several-*/files/result.txt")
    assert [path.read_text() for path in results] == [str(sum(step * step for step in range(61)))] * 2
    assert "interrupted" not in err


@pytest.mark.long
def test_checkpoints_in_s3_are_those_of_the_next_up_of_any_home(user):
    s3 = user.client("s3")
    s3.create_bucket(Bucket="my-checkpoints")

    def stored():
        listed = s3.list_objects_v2(Bucket="my-checkpoints", Prefix="run/0/state-").get("Contents", [])
        return [
            json.loads(s3.get_object(Bucket="my-checkpoints", Key=one["Key"])["Body"].read())
            for one in listed
        ]

    top = "checkpoints: s3://my-checkpoints/run\n"
    process = begin(user, "remote", top=top, is_there=stored)
    (first,) = user.alive()
    user.run("local", "interrupt", first, "--grace", "0")
    end(user, "remote", process)
    assert kept(user, "remote") == []
    assert max(stored(), key=lambda state: state["number"])["finished"]


@pytest.mark.long
def test_a_loop_of_two_lines_saves_at_the_notice_and_resumes(user):
    """Nothing is saved before the notice: the first state is due after a minute."""
    (user.home / "train.py").write_text(LOOP)
    path = user.home / "loop.yaml"
    path.write_text(RECIPE.format(name="loop", more="", count=1, resume="auto"))
    process = user.begin("up", str(path), "--name", "loop")
    wait_until(lambda: "begins at 0" in user.run("logs", "loop", expect=None).stdout)
    (first,) = user.alive()
    user.run("local", "interrupt", first, "--grace", "40")
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, out + err
    (result,) = (user.home / ".dlcloud/runs").glob("loop-*/files/result.txt")
    assert result.read_text() == str(sum(step * step for step in range(61)))
    logs = [
        path.read_text(errors="replace") for path in (user.home / ".dlcloud").rglob("log*") if path.is_file()
    ]
    assert any("resumes after step" in text for text in [*logs, out, err]), err
