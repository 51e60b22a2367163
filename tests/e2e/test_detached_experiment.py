"""An experiment and a plain workload that are left to one of their own instances, which may be lost."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from terminal import wait_until

RECIPE = """\
name: {name}
cloud: local
instances: {{types: [c5.xlarge], count: {count}, market: on-demand}}
workload:
  command: sh trial.sh
  files: trial.sh
  facts: {{score: 'score (.*)'}}
experiment: {{matrix: {{x: [{values}]}}, metric: score}}
"""
TRIAL = "echo score $2\n"
# The first one runs until `~/go` is there, so that the experiment lasts that long.
FIRST_WAITS = """
while [ "$2" = 0 ] && [ ! -e ~/go ]; do sleep 0.2; done
echo score $2
"""


# Fails where no controller runs.
FAILS_ELSEWHERE = "[ -e ~/dlcloud/runs/control/log ] && sleep 1 && echo score $2\n"


def write(user, name, *, trials, count=2, program=TRIAL):
    path = user.home / f"{name}.yaml"
    values = ", ".join(map(str, range(trials)))
    path.write_text(RECIPE.format(name=name, count=count, values=values))
    (user.home / "trial.sh").write_text(program)
    return str(path)


def controller_of(user):
    found = user.ec2.describe_instances(
        Filters=[
            {"Name": "tag-key", "Values": ["dlcloud:controller"]},
            {"Name": "instance-state-name", "Values": ["running"]},
        ]
    )
    ids = [one["InstanceId"] for group in found["Reservations"] for one in group["Instances"]]
    return ids[0] if ids else ""


def cluster_state(user, name):
    document = json.loads(user.run("status", name, "--output", "json", expect=None).stdout or "{}")
    records = document.get("result", {}).get("records", [])
    return records[0]["cluster_state"] if records else ""


@pytest.mark.long
def test_an_experiment_is_left_alone_and_its_results_come_home(user):
    first = write(user, "left", trials=1, count=1)
    user.run("up", first)
    path = write(user, "left", trials=6)
    printed = " ".join(user.run("up", path, "--detach").stdout.split())
    assert "this machine may be off" in printed
    assert "dlcloud training" not in printed
    assert "is controlled by its own instance" in user.run("up", path, expect=2).stderr
    wait_until(lambda: cluster_state(user, "left") == "ready")
    assert "score" in user.run("logs", "left").stdout
    down = user.run("down", "left").stdout
    assert "6 of 6 trials have a result" in down
    assert user.alive() == []
    again = user.run("up", path)
    assert "every trial has been run" in again.stderr
    assert runs_of(user, "left") == [1, 2, 3, 4, 5, 6]


@pytest.mark.long
def test_another_instance_takes_over_where_the_controller_is_lost(user):
    path = write(user, "lost", trials=12, program=FIRST_WAITS)
    user.run("up", path, "--detach")
    wait_until(lambda: "stands by" in control_log(user, "lost"))
    lost = controller_of(user)
    user.ec2.terminate_instances(InstanceIds=[lost])
    wait_until(lambda: controller_of(user) not in {"", lost})
    wait_until(lambda: go_on(user) and cluster_state(user, "lost") == "ready")
    down = user.run("down", "lost").stdout
    assert "12 of 12 trials have a result" in down
    assert runs_of(user, "lost") == [*range(1, 13)]
    assert user.alive() == []


def go_on(user):
    """Let the first trial end, wherever it runs now."""
    user.run("exec", "lost", "--", "touch go", expect=None)
    return True


def control_log(user, name):
    words = ["exec", name, "--", "cat dlcloud/runs/control/log"]
    return user.run(*words, expect=None).stdout


@pytest.mark.long
def test_a_plain_workload_is_left_alone_too(user):
    path = user.recipe(name="alone.yaml")
    user.run("up", path, "--detach", "--name", "alone")
    wait_until(lambda: cluster_state(user, "alone") == "ready")
    down = user.json("down", "alone")["result"]
    assert down["records"][0]["state"] == "down"
    assert "quick" in user.run("cost-report").stdout
    assert user.alive() == []


@pytest.mark.long
def test_the_instance_of_a_failed_run_is_kept_for_a_while(user):
    path = Path(write(user, "looked-at", trials=4, program=FAILS_ELSEWHERE))
    path.write_text(path.read_text().replace("metric: score}", "metric: score, attempts: 1}"))
    with path.open("a") as recipe:
        recipe.write("keep: {failed: 30m}\n")
    user.run("up", str(path), "--detach")
    wait_until(lambda: cluster_state(user, "looked-at") == "ready")
    assert "is kept up for 30 minutes" in " ".join(control_log(user, "looked-at").split())
    assert len(user.alive()) == 2
    user.run("down", "looked-at", expect=None)
    assert user.alive() == []


def runs_of(user, name):
    query = "SELECT trial FROM runs WHERE workload = ? AND state = 'done' ORDER BY trial"
    with closing(sqlite3.connect(user.home / ".dlcloud" / "store.sqlite")) as store:
        return [trial for (trial,) in store.execute(query, (name,))]


def test_results_are_in_the_bucket_where_the_controller_is_lost(user):
    user.run("local", "start")
    user.client("s3").create_bucket(Bucket="closed-laptop")
    path = write(user, "gone", trials=3, count=1)
    with Path(path).open("a") as recipe:
        recipe.write("results: s3://closed-laptop/mine\n")
    user.run("up", path, "--detach")
    wait_until(lambda: cluster_state(user, "gone") == "ready")
    user.ec2.terminate_instances(InstanceIds=user.alive())
    wait_until(lambda: not user.alive())
    down = user.run("down", "--all")
    assert "3 run(s) came from s3://closed-laptop/mine" in down.stderr
    assert "3 of 3 trials have a result" in down.stdout
    assert len([*user.home.glob(".dlcloud/runs/gone-*/log")]) == 3
    assert "every trial has been run" in user.run("up", path).stderr
