"""What a run wrote comes home by default, also of a run that failed; what does not fit is not lost."""

import os
import pty
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from terminal import TIMEOUT_S, wait_until

PROGRAM = [sys.executable, "-c", "from dlcloud.cli.entry import main; main()"]

TRAIN = """\
import os, pathlib, sys
folder = pathlib.Path("out/checkpoint-5")
folder.mkdir(parents=True)
(folder / "model.bin").write_text("weights")
open(b"out/caf\\xe9", "w").close()
os.symlink("checkpoint-5", "out/last")
pathlib.Path("__pycache__").mkdir()
pathlib.Path("__pycache__/x.pyc").write_text("cache")
sys.exit(int(sys.argv[1]))
"""
RECIPE = """\
name: own
cloud: local
instances: {{types: [c7i.large]}}
workload: {{command: python3 train.py {status}, files: train.py, repeats: 1}}
budget: {{max_hours: 1}}
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)

    def write(status=0, more=""):
        path = tmp_path / "own.yaml"
        path.write_text(RECIPE.format(status=status) + textwrap.dedent(more))
        return str(path)

    return write


def downloaded(user):
    """Return the files of the newest run, relative to their folder."""
    runs = user.home / ".dlcloud" / "runs"
    folder = max(runs.glob("own-*"), key=lambda path: path.stat().st_mtime) / "files"
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("status", [0, 3])
def test_what_a_command_wrote_is_downloaded_though_it_fails(user, script, status):
    done = user.run("up", script(status), expect=4 if status else 0)
    assert "3 file(s) downloaded to" in done.stderr
    assert downloaded(user) == ["out/caf\udce9", "out/checkpoint-5/model.bin", "out/last/model.bin"]
    assert user.alive() == []


def test_results_beyond_the_limit_stay_on_the_instance_for_an_hour(user, script):
    done = user.run("up", script(more="keep: {max_gib: 1e-9}"), expect=5)
    assert "out/checkpoint-5/" in done.stderr
    assert "is kept up for 60 minutes" in done.stderr
    (instance_id,) = user.alive()
    (hint,) = (line for line in done.stderr.splitlines() if line.startswith("hint: "))
    folder = user.home / "pasted"
    folder.mkdir()
    command = ["bash", "-c", f"cd {folder} && {hint.removeprefix('hint: ')}"]
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**user.environment, "PATH": programs}
    pasted = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert pasted.returncode == 0, pasted.stderr
    assert (folder / instance_id / "out" / "checkpoint-5" / "model.bin").read_text() == "weights"
    ended = user.run("down")
    assert "file(s) of own" in ended.stderr
    assert "were never downloaded" in ended.stderr
    assert "they are lost with it" in ended.stderr
    assert user.alive() == []


def test_down_asks_on_a_terminal_before_files_are_lost(user, script):
    user.run("up", script(more="keep: {max_gib: 1e-9}"), expect=5)
    assert len(user.alive()) == 1
    answers = {}
    for answer in ("n", "y"):
        main, other = pty.openpty()
        process = subprocess.Popen(
            [*PROGRAM, "down"],
            env=user.environment,
            stdin=other,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        os.close(other)
        os.write(main, f"{answer}\n".encode())
        output, _ = process.communicate(timeout=TIMEOUT_S)
        os.close(main)
        answers[answer] = (
            process.returncode,
            "terminate it all the same?" in output.decode(),
            user.alive() == [],
        )
    assert answers == {"n": (130, True, False), "y": (0, True, True)}


def test_what_a_command_wrote_so_far_comes_home_after_ctrl_c(user, tmp_path):
    command = "mkdir out && echo weights > out/model.bin && sleep 600"
    path = tmp_path / "own.yaml"
    path.write_text(RECIPE.format(status=0).replace("python3 train.py 0, files: train.py", command))
    process = user.begin("up", str(path), "--name", "own")
    wait_until(lambda: user.alive() and _has_written(user))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, errors
    assert "1 file(s) downloaded to" in errors
    assert "launching what own lacks" not in errors
    assert downloaded(user) == ["out/model.bin"]
    assert user.alive() == []


def _has_written(user):
    check = "test -s dlcloud/runs/own-*/work/out/model.bin"
    return user.run("exec", "own", "--", check, expect=None).returncode == 0


def failing(user, keep):
    path = user.home / "failing.yaml"
    path.write_text(
        "name: failing\ncloud: local\ninstances: {types: [c5.xlarge], count: 2}\n"
        "workload: {command: 'echo broken; exit 3', repeats: 1}\n"
        f"keep: {{failed: {keep}}}\n"
    )
    return str(path)


def test_the_instance_of_a_failed_run_stays_up_and_ends_by_itself(user):
    user.control.set_minute(20)
    failed = user.run("up", failing(user, "1m"), "--name", "failing", expect=4)
    words = " ".join(failed.stderr.split())
    assert "failing is kept up for 1 minutes (0.00283 USD at most), to look at" in words
    (kept,) = user.alive()
    assert "broken" in user.run("exec", "failing", "--", "cat dlcloud/runs/failing-*/log").stdout
    assert kept in user.run("status").stdout
    wait_until(lambda: user.alive() == [])
    user.control.set_minute(60)
    user.run("down", "failing")
    assert user.run("status").stdout == "nothing is up\n"


@pytest.mark.long
def test_the_next_up_on_it_goes_on_beyond_that_time(user):
    path = failing(user, "30m")
    user.run("up", path, "--name", "failing", expect=4)
    (kept,) = user.alive()
    user.run("up", path, "--name", "failing", expect=4)
    assert kept in user.alive()
    state = user.run(
        "exec", "failing", "--", "python3 -I -S dlcloud/job.py state dlcloud/runs/keep", expect=None
    )
    assert "running" not in state.stdout
    user.run("down", "failing")
    assert user.alive() == []


@pytest.mark.long
def test_a_corrected_recipe_runs_on_the_instance_that_was_kept_and_terminates_it(user):
    path = failing(user, "30m")
    text = Path(path).read_text().replace("count: 2", "count: 1")
    Path(path).write_text(text)
    user.run("up", path, expect=4)
    (kept,) = user.alive()
    Path(path).write_text(text.replace("exit 3", "echo mended > a.txt"))
    plan = " ".join(user.run("plan", path).stdout.split())
    assert "is used again: it was kept up when its run failed" in plan
    done = user.run("up", path, "--output", "json")
    assert kept in done.stderr
    assert "1 file(s) downloaded" in done.stderr
    assert user.alive() == []


def test_a_time_that_is_none_is_refused(user):
    assert "write a duration between 1m and 24h" in user.run("up", failing(user, "soon"), expect=2).stderr
