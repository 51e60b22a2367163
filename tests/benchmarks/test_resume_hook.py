"""The import hook of `workload.resume: auto`, in programs as an instance runs them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlcloud.benchmarks.resume import install, states
from dlcloud.runs.checkpoints import REFUSED

LOOP = """
import sys
import dlcloud_report
done = []
for step in range(dlcloud_report.checkpoint(done), 30):
    done.append(step)
    print("step", step, flush=True)
    if len(sys.argv) > 1 and sys.argv[1] == "stop" and step == 9:
        sys.stdin.read()  # until it is interrupted
    dlcloud_report.checkpoint(step=step + 1)
print("done", done == list(range(30)))
"""


@pytest.fixture
def hook(tmp_path):
    folder = tmp_path / "hook"
    folder.mkdir()
    install(folder)
    return folder


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    (folder / "ckpt").mkdir(parents=True)
    (folder / "train.py").write_text(LOOP)
    return folder


def start(
    work: Path, hook: Path, *words: str, up: str = "1", start_new_session: bool = False, **variables: str
) -> "subprocess.Popen[str]":
    environment = {
        **os.environ,
        "PYTHONPATH": str(hook),
        "DLCLOUD_RESUME": "auto",
        "DLCLOUD_CHECKPOINTS": str(work / "ckpt"),
        "DLCLOUD_RESUME_RUN": up,
        "DLCLOUD_RESUME_INTERVAL_S": "0",
        **variables,
    }
    return subprocess.Popen(
        [sys.executable, "train.py", *words],
        cwd=work,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=start_new_session,
    )


def interrupt(work: Path, hook: Path, *words: str, number: signal.Signals = signal.SIGKILL) -> str:
    """Run a program to its step 9, and interrupt it there; return its log."""
    program = start(work, hook, *words, MARK="interrupted")
    assert program.stdout is not None
    for line in program.stdout:
        if line == "step 9\n":
            break
    program.send_signal(number)
    return program.communicate("")[1]


def run(work: Path, hook: Path, *words: str, **variables: str) -> tuple[int, str, str]:
    program = start(work, hook, *words, **variables)
    output, log = program.communicate("")
    return program.returncode, output, log


def test_a_killed_loop_continues_after_its_newest_state(work, hook):
    interrupt(work, hook, "stop")
    status, output, log = run(work, hook, "stop")
    assert status == 0
    assert output.splitlines()[0] == "step 9"
    assert output.endswith("done True\n")
    assert "train.py (checkpoint) resumes after step 9" in log


def test_a_noticed_loop_saves_after_its_step_and_stops(work, hook):
    log = interrupt(work, hook, "stop", number=signal.SIGTERM)
    assert "saved step 10 of train.py (checkpoint)" in log
    assert run(work, hook, "stop")[1].splitlines()[0] == "step 10"


def test_processes_that_load_samples_outlive_the_notice_and_end_with_the_program(work, hook):
    pool = LOOP.replace(
        "done = []", "from multiprocessing import Pool\nimport time\npool = Pool(1)\ndone = []"
    )
    pool = pool.replace("sys.stdin.read()", "pool.apply(time.sleep, (0.1,))")  # it must return its task
    (work / "train.py").write_text(pool)
    program = start(work, hook, "stop", start_new_session=True)
    assert program.stdout is not None
    for line in program.stdout:
        if line == "step 9\n":
            break
    os.killpg(program.pid, signal.SIGTERM)
    assert "saved step 10 of train.py (checkpoint)" in program.communicate("", timeout=60)[1]


def test_a_child_of_the_script_still_ends_at_a_signal(work, hook):
    child = "import multiprocessing, time\n    child = multiprocessing.Process(target=time.sleep, args=(99,))"
    (work / "train.py").write_text(
        LOOP.replace(
            "    done.append",
            f"    {child}\n    child.start(); child.terminate(); child.join()\n    done.append",
        )
    )
    assert run(work, hook)[0] == 0


def test_a_state_that_was_not_copied_whole_is_not_used(work, hook):
    interrupt(work, hook, "stop")
    newest = next(work.glob("ckpt/dlcloud-resume/*/step-9"))
    next(newest.glob("plain-*")).write_bytes(b"")
    assert run(work, hook, "stop")[1].splitlines()[0] == "step 8"


def test_a_changed_script_is_refused_by_another_up(work, hook):
    interrupt(work, hook, "stop")
    (work / "train.py").write_text(LOOP + "# another learning rate\n")
    status, output, log = run(work, hook, "stop", up="2")
    assert status == 1
    assert output == ""
    assert "train.py (checkpoint) is not resumed: train.py has changed" in log
    assert REFUSED.decode() in log


def test_a_changed_module_of_the_script_is_refused(work, hook):
    (work / "model.py").write_text("WIDTH = 1\n")
    (work / "train.py").write_text("import model\n" + LOOP)
    interrupt(work, hook, "stop")
    (work / "model.py").write_text("WIDTH = 2\n")
    assert "is not resumed: model.py has changed" in run(work, hook, "stop", up="2")[2]


def test_other_arguments_are_refused_by_another_up(work, hook):
    interrupt(work, hook, "stop")
    status, _, log = run(work, hook, "--lr=1", up="2")
    assert status == 1
    assert "is not resumed: the arguments were stop and are --lr=1" in log


def test_the_same_up_starts_over_where_a_program_is_never_the_same(work, hook):
    # One object more in each second of a hundred.
    changing = "import time\ndone = []\nothers = [{}] * (int(time.time()) % 100)"
    (work / "train.py").write_text(
        LOOP.replace("done = []", changing).replace("checkpoint(done)", "checkpoint(done, *others)")
    )
    interrupt(work, hook, "stop")
    time.sleep(1)
    status, output, log = run(work, hook, "stop")
    assert status == 0
    assert output.splitlines()[0] == "step 0"
    assert "the saved state is not used: objects was" in log


def test_another_up_resumes_the_unchanged_program(work, hook):
    interrupt(work, hook, "stop")
    assert run(work, hook, "stop", up="2")[1].splitlines()[0] == "step 9"


def test_nothing_happens_without_resume_auto(work, hook):
    status, output, log = run(work, hook, DLCLOUD_RESUME="")
    assert (status, log) == (0, "")
    assert output.endswith("done True\n")
    assert list((work / "ckpt").iterdir()) == []


def test_a_sitecustomize_of_the_environment_still_runs(work, hook, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys; sys.stderr.write('own\\n')")
    path = os.pathsep.join([str(hook), str(tmp_path / "own")])
    assert run(work, hook, PYTHONPATH=path)[2].startswith("own\n")


def test_a_framework_that_is_not_known_well_enough_trains_without_the_hook(work, hook):
    package = work / "lightgbm"
    package.mkdir()
    (package / "__init__.py").write_text("from .engine import learn")
    (package / "engine.py").write_text("def learn(): return 7")
    (work / "train.py").write_text("import lightgbm; print(lightgbm.learn())")
    status, output, log = run(work, hook)
    assert (status, output) == (0, "7\n")
    assert "cannot hook into lightgbm.engine" in log


def test_a_loop_that_was_done_is_not_repeated_if_it_says_of_how_many_steps_it_is(work, hook):
    loop = LOOP.replace("checkpoint(step=step + 1)", "checkpoint(step=step + 1, of=OF)")
    for of, first in (("30", "done True"), ("None", "step 0")):
        (work / "train.py").write_text(loop.replace("OF", of))
        seldom = {"DLCLOUD_RESUME_INTERVAL_S": "60", "up": of}
        assert run(work, hook, of, **seldom)[0] == 0
        assert run(work, hook, of, **seldom)[1].splitlines()[0] == first


def test_states_say_what_they_are_of(work, hook):
    interrupt(work, hook, "stop")
    newest = next(work.glob("ckpt/dlcloud-resume/*/step-9"))
    described = json.loads((newest / "dlcloud.json").read_text())
    assert described["arguments"] == ["stop"]
    assert list(described["script"]) == ["train.py"]
    assert len(list(newest.parent.glob("step-*"))) == 2


def test_a_training_goes_on_if_other_instances_save_too_much(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(states, "MOST_SENT", 10)
    monkeypatch.setenv("DLCLOUD_CHECKPOINTS", str(tmp_path))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("DLCLOUD_RESUME_INTERVAL_S", "0")
    training = states.States("checkpoint", version="1", settings={}, world=2)
    monkeypatch.setattr(training, "_gather", lambda _, value: [value, [["part-1", size]]])
    monkeypatch.setattr(training, "_store", lambda: None)
    size = 11
    with training:
        assert training.is_due(1)
        training.save(1, lambda folder: (folder / "part-0").write_text("0"))
        assert not training.is_due(2)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert "after an interruption it starts from the beginning" in capsys.readouterr().err
    assert not list(tmp_path.glob("*/*/*-1"))
