"""`up`, instances and trials killed at random moments of an experiment: each result once, nothing left over.

DLCLOUD_EXPERIMENT_KILLS is the number of kills, DLCLOUD_EXPERIMENT_TRIALS that of trials.
"""

import os
import random
import signal
import sqlite3
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from terminal import wait_until

KILLS = int(os.environ.get("DLCLOUD_EXPERIMENT_KILLS", "4"))
TRIALS = int(os.environ.get("DLCLOUD_EXPERIMENT_TRIALS", "24"))
SEED = int(os.environ.get("DLCLOUD_EXPERIMENT_SEED", "31"))
KINDS = ("up", "instance", "trial")
WORD = "value-of-a-killed-experiment"
PROGRAM = f"""
import sys, time
word, x = "{WORD}", sys.argv[2]
time.sleep(0.3)
print("score", x)
"""


def recipe(user):
    (user.home / "trial.py").write_text(PROGRAM)
    path = user.home / "killed.yaml"
    path.write_text(
        "name: killed\ncloud: local\n"
        "instances: {types: [c5.xlarge], count: {min: 1, max: 3}}\n"
        "workload: {command: python3 trial.py, files: trial.py, facts: {score: 'score (.*)'}}\n"
        f"experiment: {{matrix: {{x: {[*range(TRIALS)]}}}, metric: score, attempts: 100}}\n"
    )
    return str(path)


def runs_of(user):
    """Return trial, state, instance and metric of the runs; none before the store has its tables."""
    path = user.home / ".dlcloud" / "store.sqlite"
    query = (
        "SELECT trial, state, instance_id, (SELECT count(*) FROM results WHERE results.run_id = runs.run_id)"
        " FROM runs WHERE workload = 'killed'"
    )
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(path)) as store:
        return store.execute(query).fetchall()
    return []


def trials_running():
    """Return the process ids of the programs of trials."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"trial.py" in words and any(b"DLCLOUD_TRIAL=" in word for word in environment(entry)):
                found.append(int(entry.name))
    return found


def environment(entry):
    return (entry / "environ").read_bytes().split(b"\0")


def begin(user, path):
    """Start `up`; what it prints goes to a file, which never fills as a pipe does."""
    with (user.home / "printed").open("ab") as printed:
        words = [*user.command, "up", path]
        return subprocess.Popen(
            words, env=user.environment, cwd=user.home, stdout=printed, stderr=printed, start_new_session=True
        )


def kill_one(user, kind, chance, up):
    """Kill a program of a kind, where there is one now; True if there was."""
    if kind == "up":
        os.killpg(up.pid, signal.SIGKILL)
        up.wait()
        return True
    if kind == "instance":
        alive = user.alive()
        if alive:
            user.ec2.terminate_instances(InstanceIds=[chance.choice(alive)])
        return bool(alive)
    running = trials_running()
    if running:
        with suppress(ProcessLookupError):
            os.kill(chance.choice(running), signal.SIGKILL)
    return bool(running)


def done(user):
    return [trial for trial, state, _, _ in runs_of(user) if state == "done"]


@pytest.mark.long
def test_every_result_is_there_once_whatever_is_killed(user):
    path, chance, kills, up = recipe(user), random.Random(SEED), 0, None
    while kills < KILLS and len(done(user)) < TRIALS:
        if up is None or up.poll() is not None:
            up = begin(user, path)
        goal = min(TRIALS, len(done(user)) + chance.randint(1, max(1, TRIALS // KILLS)))
        process = up
        wait_until(lambda goal=goal, process=process: len(done(user)) >= goal or process.poll() is not None)
        time.sleep(chance.uniform(0, 0.5))
        kills += kill_one(user, KINDS[kills % len(KINDS)], chance, up)
    if up is not None and up.poll() is None:
        # The last one is killed when all is done: the next one ends what it has left.
        wait_until(lambda: len(done(user)) == TRIALS or up.poll() is not None)
        with suppress(ProcessLookupError):
            os.killpg(up.pid, signal.SIGKILL)
        up.wait(user.timeout_s)
    printed = (user.home / "printed").read_text()
    assert "Traceback" not in printed
    records = user.json("up", path)["result"]["records"]
    assert [(record["value_x"], record["value"], record["state"]) for record in records] == [
        (str(number), float(number), "done") for number in range(TRIALS)
    ]
    assert sorted(done(user)) == [*range(1, TRIALS + 1)], printed
    results = [trial for trial, state, _, count in runs_of(user) if state == "done" and count]
    assert sorted(results) == [*range(1, TRIALS + 1)]
    assert not [state for _, state, _, _ in runs_of(user) if state == "running"]
    assert user.alive() == []
    assert user.run("status").stdout == "nothing is up\n"
    assert trials_running() == []
