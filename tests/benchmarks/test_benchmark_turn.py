"""Programs that take turns: the next one is started, waits, and goes on when the one before has ended."""

import json
import subprocess
import sys
import time

LIMIT_S = 600.0
WAIT = "echo > begun; while [ ! -e go ]; do sleep 0.02; done"


def begin(folder, number, command):
    (folder / str(number)).mkdir()
    words = ["--run", f"cd {number} && {command}", "--turn", "turn", "--repeats", "1", "--exact"]
    output = ["--output", f"{number}/records"]
    return subprocess.Popen([sys.executable, "-m", "benchmarks.command", *output, *words], cwd=folder)


def wait_for(path, text=""):
    deadline = time.monotonic() + LIMIT_S
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < deadline, path
        time.sleep(0.02)


def test_a_command_waits_for_the_one_before(alone):
    first = begin(alone, 1, WAIT)
    wait_for(alone / "1" / "begun")
    second = begin(alone, 2, "echo > begun")
    wait_for(alone / "2" / "records", "preparing")
    assert not (alone / "2" / "begun").exists()
    (alone / "1" / "go").touch()
    assert first.wait(LIMIT_S) == second.wait(LIMIT_S) == 0
    assert (alone / "2" / "begun").exists()


def test_a_command_that_is_killed_waits_for_nobody_else(alone):
    first = begin(alone, 1, WAIT)
    wait_for(alone / "1" / "begun")
    second = begin(alone, 2, "true")
    first.kill()
    first.wait(LIMIT_S)
    assert second.wait(LIMIT_S) == 0
    (alone / "1" / "go").touch()


def test_a_turn_that_cannot_be_taken_is_named(alone):
    (alone / "turn").mkdir()
    assert begin(alone, 1, "true").wait(LIMIT_S) == 1
    records = [json.loads(line) for line in (alone / "1" / "records").read_text().splitlines()]
    (failure,) = [record for record in records if record["record"] == "failure"]
    assert "--turn turn: Is a directory" in failure["message"]
