"""An interrupted program run again: cases that are measured already, and the hook of `resume: auto`."""

import copy
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlcloud.benchmarks.harness.case import Case, Limits
from dlcloud.benchmarks.harness.protocol import measure
from dlcloud.benchmarks.harness.records import MeasuredCase, Recorder, find_cases
from dlcloud.benchmarks.resume import install, states
from dlcloud.runs.checkpoints import REFUSED
from tests.benchmarks.conftest import await_record, read_records
from tests.fakes.variants import FakeVariant, Machine, session_of

START = {
    "record": "start",
    "benchmark": "quantization",
    "arguments": {"batch": [1], "threads": 2, "output": "a", "resume": False},
    "seed": 0,
    "environment": {"OMP_NUM_THREADS": "2"},
    "hardware": {"cpu_model": "EPYC", "cpu_flags": ["avx2"], "memory_gib": 15.4, "kernel": "6.8", "gpus": []},
    "software": {"python": "3.12.1", "packages": {"onnxruntime": "1.31"}, "code": "abc"},
}


def result(setting, case="vgg16 batch 1"):
    measured = {"value": 5.0, "low": 4.0, "high": 6.0, "unit": "images/s", "samples": 6}
    return {
        "record": "result",
        "case": case,
        "setting": setting,
        "baseline": setting == "fp32",
        "metrics": {"throughput": measured},
        "facts": {},
        "warnings": [],
        "stable": True,
    }


COMPARISON = {
    "record": "comparison",
    "case": "vgg16 batch 1",
    "baseline": "fp32",
    "candidate": "int8",
    "metric": "throughput",
    "ratio": 3.6,
    "low": 3.5,
    "high": 3.7,
    "confidence": 0.95,
    "verdict": "faster",
    "samples": 6,
    "schema": 1,
}
END = {
    "record": "case",
    "case": "vgg16 batch 1",
    "settings": ["fp32", "int8"],
    "seconds": 60.0,
    "host": "i-1",
    "complete": True,
}
OVERALL = {**COMPARISON, "record": "overall", "ratio": 3.1}
CASE = [result("fp32"), result("int8"), COMPARISON, OVERALL, END]


def written(tmp_path, *records):
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + '{"record":"resu')
    return path


def changed(*keys, to):
    start = copy.deepcopy(START)
    inner = start
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = to
    return start


def test_a_case_that_ended_is_found_with_its_results_and_where_it_ran(tmp_path):
    path = written(tmp_path, START, *CASE, result("fp32", "vgg16 batch 8"))
    now = changed("arguments", "output", to="b")
    earlier = find_cases(path, now)
    assert list(earlier.cases) == [("vgg16 batch 1", ("fp32", "int8"))]
    (case,) = earlier.cases.values()
    assert (case.seconds, case.host) == (60.0, "i-1")
    assert [record.setting for record in case.results] == ["fp32", "int8"]
    assert [record.ratio for record in case.comparisons] == [3.6]
    assert [record.ratio for record in case.overall] == [3.1]
    assert earlier.refusals == []


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([result("fp32"), result("int8"), COMPARISON], "the program died before the case's end"),
        ([result("fp32"), END], "a result is missing"),
        ([*CASE[:3], END | {"complete": False}], "a setting failed"),
        ([result("fp32"), {**result("int8"), "metrics": {"joules": {}}}, END], "a newer program wrote it"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_case_that_did_not_end_well_is_not_found(tmp_path, records, why):
    assert find_cases(written(tmp_path, START, *records), START).cases == {}, why


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (changed("benchmark", to="tensorflow"), "the benchmark"),
        (changed("arguments", "threads", to=4), "--threads was 2, is 4"),
        (changed("seed", to=1), "the seed"),
        (changed("environment", to={}), 'the variable OMP_NUM_THREADS was "2", is null'),
        (changed("software", "python", to="3.13.0"), "Python"),
        (changed("software", "code", to="def"), "the program"),
        (changed("software", "packages", "onnxruntime", to="1.32"), "the version of onnxruntime"),
        (changed("hardware", "cpu_model", to="Xeon"), "the machine's cpu_model"),
        (changed("hardware", "gpus", to=[{"name": "T4"}]), "the machine's gpus"),
        (changed("hardware", "memory_gib", to=30.8), "the machine's memory in GiB was 15.4, is 30.8"),
    ],
)
def test_whatever_may_change_a_figure_counts_and_is_named(tmp_path, start, reason):
    earlier = find_cases(written(tmp_path, START, *CASE), start)
    assert earlier.cases == {}
    (refusal,) = earlier.refusals
    assert refusal.startswith("1 case(s) are measured again: ")
    assert reason in refusal


@pytest.mark.parametrize(
    "start",
    [
        changed("hardware", "kernel", to="6.9"),
        changed("hardware", "memory_gib", to=15.3),
        changed("arguments", "resume", to=True),
        changed("arguments", "batch", to=[1, 8]),
    ],
)
def test_what_changes_no_figure_does_not_count(tmp_path, start):
    earlier = find_cases(written(tmp_path, START, *CASE), start, selecting=["batch"])
    assert len(earlier.cases) == 1


def test_the_newest_of_several_starts_counts(tmp_path):
    other = changed("arguments", "threads", to=4)
    path = written(tmp_path, other, *CASE, START, *CASE[:3], END | {"host": "i-2"})
    earlier = find_cases(path, START)
    assert [case.host for case in earlier.cases.values()] == ["i-2"]
    assert len(earlier.refusals) == 1


def test_a_file_that_is_missing_holds_nothing(tmp_path):
    assert find_cases(tmp_path / "none", START).cases == {}


def sweep(alone, *more):
    variants = [
        {"name": "slow", "arguments": {"work": 40000}},
        {"name": "fast", "arguments": {"work": 10000}},
    ]
    sizes = ["--cases", "3", "--max-seconds", "0.3", "--warm-up-seconds", "0.2", "--host", "here"]
    # The samples chatter: a pipe that nobody reads would stop them.
    messages = (alone / "stderr").open("w")
    command = [sys.executable, "-m", "benchmarks.sample", "--variants", json.dumps(variants), *sizes, *more]
    return subprocess.Popen(
        command, cwd=alone, stdout=subprocess.PIPE, stderr=messages, text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip


def test_a_sweep_killed_and_resumed_measures_each_case_once_and_shows_all(alone):
    path = alone / "out.jsonl"
    first = sweep(alone, "--output", "out.jsonl")
    await_record(path, "case")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    done = {record["case"] for record in read_records(path, "case")}
    assert 1 <= len(done) < 3
    out, _ = sweep(alone, "--output", "out.jsonl", "--resume").communicate(timeout=600)
    err = (alone / "stderr").read_text()
    assert [record["case"] for record in read_records(path, "case")] == ["sample 0", "sample 1", "sample 2"]
    assert err.count("measured before on here") == len(done)
    assert f"[{len(done)}/3, about " in err
    assert all(f"sample {number}" in out for number in range(3))
    assert out.count("baseline") == 3
    again = sweep(alone, "--output", "new.jsonl", "--resume", "out.jsonl", "--host", "there")
    again.communicate(timeout=600)
    ends = read_records(alone / "new.jsonl", "case")
    assert [(end["case"], end["host"]) for end in ends] == [(f"sample {n}", "here") for n in range(3)]
    assert len(read_records(alone / "new.jsonl", "result")) == 6


def test_resume_without_a_file_is_refused(alone):
    process = sweep(alone, "--resume")
    process.communicate(timeout=600)
    assert process.returncode == 2
    assert "--resume needs --output" in (alone / "stderr").read_text()


class SlowVariant(FakeVariant):
    """A variant whose every slice takes ten seconds, and its start five."""

    def start(self):
        self.machine.now += 5.0
        return {}

    def measure(self, seconds):
        del seconds
        return super().measure(10.0)


def estimates(*, earlier):
    """Measure four cases of two rounds, 25 s each; `earlier` is how long those measured before had taken."""
    machine, output = Machine(), io.StringIO()
    nothing = {"results": (), "comparisons": (), "overall": (), "host": "i-1", "settings": ("a",)}
    measured = {
        (f"c{place}", ("a",)): MeasuredCase(case=f"c{place}", seconds=seconds, **nothing)
        for place, seconds in enumerate(earlier)
    }
    recorder = Recorder(output=output, messages=io.StringIO())
    limits = Limits(rounds=2, max_s=100.0, fixed=True)
    session = session_of(machine, recorder, limits, earlier=measured)
    cases = [Case(name=f"c{place}", variants=[SlowVariant("a", 1.0, machine)]) for place in range(4)]
    measure(cases, session)
    return [
        (record["done"], record["remaining_s"], record["message"])
        for record in map(json.loads, output.getvalue().splitlines())
        if record["record"] == "progress" and record["remaining_s"] is not None
    ]


def test_the_time_left_is_estimated_from_the_cases_so_far():
    rest = [(done, left) for done, left, message in estimates(earlier=[]) if "preparing" not in message]
    # Of the first case only the limit is known; after a round of it, how long that took.
    assert rest[:2] == [(0, 400.0), (0, 10.0 + 3 * 25.0)]
    assert (1, 75.0) in rest
    assert (3, 25.0) in rest
    assert rest[-1] == (4, 0.0)


def test_a_resumed_sweep_estimates_from_what_the_cases_before_took():
    rest = estimates(earlier=[60.0, 40.0])
    assert rest[0] == (2, 100.0, "c2")
    assert rest[1] == (2, 100.0, "c2: preparing a")


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
