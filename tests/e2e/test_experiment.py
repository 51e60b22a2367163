"""`experiment:` on the local EC2: every trial once, whatever ends in between."""

import os
import signal
import sqlite3
from contextlib import suppress

import pytest
from terminal import wait_until

PROGRAM = """
import json, os, sys, time
values = json.load(open("values.json"))
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert values == {name.removeprefix("--"): value for name, value in arguments.items()}
assert values["x"] == os.environ["DLCLOUD_VALUE_X"]
time.sleep(float(values.get("seconds", 0)))
if values["x"] == "bad":
    sys.exit("it diverged")
print("score", float(values["x"]) ** 2)
"""


LAGGING = """
import os, sys, time
import dlcloud_report
x = float(os.environ["DLCLOUD_VALUE_X"])
os.chdir("/")
dlcloud_report.intermediate(x)
deadline = time.monotonic() + 300
low = 50  # below it, a run is ended before it is over
while x < low and time.monotonic() < deadline and int(os.environ["DLCLOUD_TRIAL"]) > 5:
    time.sleep(0.1)
print("score", x)
"""


def recipe(user, experiment, *, count=2, name="sweep"):
    (user.home / "train.py").write_text(PROGRAM)
    path = user.home / f"{name}.yaml"
    path.write_text(
        f"name: {name}\ncloud: local\n"
        f"instances: {{types: [c5.xlarge], count: {{min: 1, max: {count}}}}}\n"
        "workload: {command: python3 train.py, files: train.py, facts: {score: 'score (.*)'}}\n"
        f"experiment: {{{experiment}, metric: score}}\n"
    )
    return str(path)


def test_a_matrix_is_run_once_and_the_next_up_has_nothing_left(user):
    path = recipe(user, "matrix: {x: [1, 2, 3], y: [1, 2]}")
    document = user.json("up", path)["result"]
    assert [(record["value_x"], record["value"]) for record in document["records"]] == [
        (str(x), float(x * x)) for x in (1, 2, 3) for _ in (1, 2)
    ]
    assert document["best"]["value"] == 9.0
    assert user.alive() == []
    again = user.run("up", path)
    assert "every trial has been run: --fresh runs all again" in again.stderr
    assert "6 of 6 trials have a result" in again.stdout
    grown = recipe(user, "matrix: {x: [1, 2, 3, 4], y: [1]}")
    done = user.run("up", grown)
    assert "1 of 4 trials are left" in done.stderr
    assert "4 of 4 trials have a result" in done.stdout
    table = user.run("cost-report").stdout
    assert "x=4 y=1" in table


@pytest.mark.long
def test_a_trial_that_fails_is_given_up_and_the_others_go_on(user):
    path = recipe(user, "list: [{x: bad}, {x: 5}], attempts: 2", name="failing")
    done = user.run("up", path, expect=5)
    assert "trial 1 (x=bad) failed, 1 attempt(s) left" in done.stderr
    assert "trial 1 (x=bad) failed, it is given up" in done.stderr
    assert "1 of 2 trials have a result" in done.stdout
    assert user.alive() == []
    assert user.run("up", path, expect=5).stderr.count("given up") == 0
    retried = user.run("up", path, "--retry-failed", expect=5)
    assert retried.stderr.count("trial 1 (x=bad) failed") == 2
    assert runs_of(user, "failing").count((2, "done")) == 1


@pytest.mark.long
def test_a_search_with_several_trials_on_an_instance(user):
    search = "search: {trials: 12, space: {x: {low: -5, high: 5}}}, goal: minimize, per_instance: 3"
    path = recipe(user, search, count=1, name="search")
    document = user.json("up", path)["result"]
    values = [record["value"] for record in document["records"]]
    assert len(values) == 12
    assert min(values) == document["best"]["value"] < 4


@pytest.mark.long
def test_a_trial_that_lags_is_pruned_and_named_so(user):
    search = "search: {trials: 10, space: {x: {low: 1, high: 100}}, sampler: random, pruner: median}"
    path = recipe(user, search, count=1, name="pruned")
    (user.home / "train.py").write_text(LAGGING)
    done = user.run("up", path)
    assert "is pruned: it lags behind the others" in done.stderr
    assert "trial(s) were pruned" in done.stdout
    states = [state for _, state in runs_of(user, "pruned")]
    assert len(states) == 10
    assert states.count("done") + states.count("pruned") == 10
    assert states.count("pruned") > 0
    assert "every trial has been run" in user.run("up", path).stderr
    assert user.alive() == []


@pytest.mark.long
def test_no_finished_trial_is_lost_or_repeated_when_up_is_killed(user):
    path = recipe(user, f"matrix: {{x: {[*range(12)]}, seconds: [0.3]}}", name="killed")
    killed = user.begin("up", path)
    wait_until(lambda: sum(state == "done" for _, state in runs_of(user, "killed")) > 3)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    records = user.json("up", path)["result"]["records"]
    assert [(record["value_x"], record["state"]) for record in records] == [
        (str(number), "done") for number in range(12)
    ]
    of_this = [run for run in runs_of(user, "killed") if run[1] == "done"]
    assert len(of_this) == len({trial for trial, _ in of_this}) == 12
    assert user.alive() == []


def test_the_trial_of_a_lost_instance_runs_on_another(user):
    path = recipe(user, f"matrix: {{x: {[*range(8)]}, seconds: [1]}}", name="lost")
    running = user.begin("up", path)
    wait_until(lambda: any(state == "done" for _, state in runs_of(user, "lost")))
    lost, *_ = user.alive()
    user.ec2.terminate_instances(InstanceIds=[lost])
    stdout, stderr = running.communicate(timeout=user.timeout_s)
    assert running.returncode == 0, stderr
    assert "8 of 8 trials have a result" in stdout
    assert "its trial goes first on the next" in stderr
    done = [trial for trial, state in runs_of(user, "lost") if state == "done"]
    assert sorted(done) == [*range(1, 9)]
    assert user.alive() == []


def test_what_is_no_experiment_is_refused(user):
    path = recipe(user, "list: [{x: 1}]", name="refused")
    assert "dlcloud up RECIPE runs it" in user.run("bench", "--recipe", path, "--yes", expect=2).stderr
    quick = user.recipe()
    assert "--retry-failed is for a recipe" in user.run("up", quick, "--retry-failed", expect=2).stderr


def runs_of(user, name):
    """Return trial and state of the runs; none before the store has its tables."""
    query = "SELECT trial, state FROM runs WHERE workload = ? AND experiment <> ''"
    path = user.home / ".dlcloud" / "store.sqlite"
    with suppress(sqlite3.OperationalError), sqlite3.connect(path) as store:
        return [tuple(row) for row in store.execute(query, (name,))]
    return []
