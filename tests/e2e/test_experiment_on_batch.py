"""`dlcloud up --on batch` on the local EC2: AWS Batch holds the queue, results return through a bucket."""

import json
import os
import signal
import sqlite3
from contextlib import suppress

import pytest
from terminal import wait_until

PROGRAM = """
import json, os, sys, time
values = json.load(open("values.json"))
assert values["x"] == os.environ["DLCLOUD_VALUE_X"] == sys.argv[2]
if int(os.environ["DLCLOUD_TRIAL"]) > 2:
    time.sleep(float(os.environ["SECONDS_EACH"]))
if values["x"] == "bad":
    sys.exit("it diverged")
open("model.txt", "w").write(values["x"])
print("score", float(values["x"]) ** 2)
"""
RECIPE = """
name: {name}
cloud: local
instances: {{types: [c5.xlarge], count: {{min: 1, max: 2}}, market: {market}}}
workload:
  command: python3 train.py
  files: train.py
  facts: {{score: 'score (.*)'}}
  environment: {{SECONDS_EACH: '{seconds}'}}
experiment: {{{experiment}, metric: score}}
{setup}
results: s3://sweeps/mine
keep: {{files: [model.txt]}}
"""


def recipe(user, experiment, *, name="queued", seconds=0.0, market="on-demand", image=""):
    user.run("local", "start")
    user.client("s3").create_bucket(Bucket="sweeps")
    setup = f"setup: {{image: '{image}'}}" if image else ""
    (user.home / "train.py").write_text(PROGRAM)
    path = user.home / f"{name}.yaml"
    path.write_text(
        RECIPE.format(name=name, experiment=experiment, seconds=seconds, market=market, setup=setup)
    )
    return str(path)


def left_over(user):
    """Return what exists of AWS Batch, and the living instances."""
    batch = user.client("batch")
    return [
        *(
            item["computeEnvironmentName"]
            for item in batch.describe_compute_environments()["computeEnvironments"]
        ),
        *(item["jobQueueName"] for item in batch.describe_job_queues()["jobQueues"]),
        *(
            item["jobDefinitionName"]
            for item in batch.describe_job_definitions(status="ACTIVE")["jobDefinitions"]
        ),
        *user.alive(),
    ]


def runs_of(user, name):
    with suppress(sqlite3.OperationalError), sqlite3.connect(user.home / ".dlcloud/store.sqlite") as store:
        return store.execute(
            "SELECT trial, state FROM runs WHERE workload = ? ORDER BY trial", (name,)
        ).fetchall()
    return []


@pytest.mark.long
def test_an_array_runs_each_trial_once_and_leaves_nothing(user):
    path = recipe(user, "matrix: {x: [1, 2, 3], y: [1, 2]}", market="spot")
    done = user.run("up", path, "--on", "batch", "--output", "json")
    assert "one queue and one array job" in done.stderr
    result = json.loads(done.stdout)["result"]
    assert [(r["value_x"], r["value"], r["state"]) for r in result["records"]] == [
        (str(x), float(x * x), "done") for x in (1, 2, 3) for _ in (1, 2)
    ]
    # Seconds are billed, and add up; a trial that ended in the second of the one before costs none.
    assert sum(float(record["usd"]) for record in result["records"]) > 0
    assert left_over(user) == []
    assert sorted(path.read_text() for path in user.home.glob(".dlcloud/runs/*/files/model.txt")) == [
        x for x in "123" for _ in (1, 2)
    ]
    again = user.run("up", path)
    assert "every trial has been run" in again.stderr


@pytest.mark.long
def test_a_failing_trial_is_repeated_and_given_up_with_its_log(user):
    path = recipe(user, "list: [{x: bad}, {x: 5}]", name="failing")
    done = user.run("up", path, "--on", "batch", expect=5)
    assert "1 of 2 trials have a result" in done.stdout
    assert runs_of(user, "failing") == [(1, "failed"), (1, "failed"), (2, "done")]
    (run, *_) = [
        line.split()[-1] for line in done.stderr.splitlines() if "trial 1 failed: dlcloud logs" in line
    ]
    assert "it diverged" in user.run("logs", run).stdout
    assert left_over(user) == []


@pytest.mark.long
def test_why_nothing_starts_is_said_until_there_is_capacity(user):
    path = recipe(user, "list: [{x: 1}, {x: 2}]", name="waiting")
    user.control.set_capacity("c5.xlarge", 0)
    waiting = user.begin("up", path, "--on", "batch")
    lines = []
    for line in waiting.stderr:
        lines.append(line)
        if "AWS Batch starts nothing yet: CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY" in line:
            break
    user.control.set_capacity("c5.xlarge", 8)
    out, _ = waiting.communicate()
    assert waiting.returncode == 0, "".join(lines)
    assert "2 of 2 trials have a result" in out
    assert left_over(user) == []


@pytest.mark.long
def test_a_killed_up_and_a_lost_instance_lose_no_trial(user):
    path = recipe(
        user,
        f"list: [{', '.join(f'{{x: {x}}}' for x in range(8))}]",
        name="cut-off",
        seconds=4.0,
        market="spot",
    )
    killed = user.begin("up", path, "--on", "batch")
    wait_until(lambda: runs_of(user, "cut-off"))
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert len(left_over(user)) >= 4
    (name,) = {record["cluster"] for record in user.json("status")["result"]["records"]}
    assert "AWS Batch runs the instances" in user.run("exec", name, "--", "true", expect=2).stderr
    user.control.interrupt(user.alive()[0], grace_s=0)
    done = user.run("up", path, "--on", "batch")
    assert "8 of 8 trials have a result" in done.stdout
    assert runs_of(user, "cut-off") == [(number, "done") for number in range(1, 9)]
    assert left_over(user) == []


def test_down_brings_results_and_gc_sees_a_forgotten_queue(user):
    path = recipe(
        user, f"list: [{', '.join(f'{{x: {x}}}' for x in range(8))}]", name="forgotten", seconds=4.0
    )
    killed = user.begin("up", path, "--on", "batch")
    wait_until(lambda: runs_of(user, "forgotten"))
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    stored = [*(user.home / ".dlcloud").glob("store.sqlite*")]
    for file in stored:
        file.rename(user.home / file.name)
    report = user.json("gc", "--dry-run", "--cloud", "local", "--all-owners")
    kinds = {record["kind"] for record in report["result"]["records"]}
    assert {"batch-compute-environment", "instance", "iam-role", "security-group"} <= kinds
    for file in (user.home / ".dlcloud").glob("store.sqlite*"):
        file.unlink()
    for file in stored:
        (user.home / file.name).rename(file)
    before = len(runs_of(user, "forgotten"))
    user.run("down", "--all")
    assert left_over(user) == []
    assert len(runs_of(user, "forgotten")) >= before
    assert {state for _, state in runs_of(user, "forgotten")} == {"done"}
    assert "8 of 8 trials have a result" in user.run("up", path, "--on", "batch").stdout
