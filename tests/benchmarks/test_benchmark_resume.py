"""An interrupted program run again measures only what is missing, and only where nothing has changed."""

import copy
import dataclasses
import io
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from dlcloud.benchmarks.harness.case import Case, Finish, Limits, Session, Slice, WarmUp
from dlcloud.benchmarks.harness.protocol import measure
from dlcloud.benchmarks.harness.records import MeasuredCase, Recorder, find_cases
from dlcloud.benchmarks.harness.schema import MetricName
from dlcloud.benchmarks.harness.usage import CpuTimes

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


def records_of(path, kind):
    lines = path.read_text().splitlines() if path.exists() else []
    complete = [json.loads(line) for line in lines if line.endswith("}")]
    return [record for record in complete if record["record"] == kind]


def test_a_sweep_killed_and_resumed_measures_each_case_once_and_shows_all(alone):
    path = alone / "out.jsonl"
    first = sweep(alone, "--output", "out.jsonl")
    deadline = time.monotonic() + 300
    while not records_of(path, "case"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    done = {record["case"] for record in records_of(path, "case")}
    assert 1 <= len(done) < 3
    out, _ = sweep(alone, "--output", "out.jsonl", "--resume").communicate(timeout=600)
    err = (alone / "stderr").read_text()
    assert [record["case"] for record in records_of(path, "case")] == ["sample 0", "sample 1", "sample 2"]
    assert err.count("measured before on here") == len(done)
    assert f"[{len(done)}/3, about " in err
    assert all(f"sample {number}" in out for number in range(3))
    assert out.count("baseline") == 3
    again = sweep(alone, "--output", "new.jsonl", "--resume", "out.jsonl", "--host", "there")
    again.communicate(timeout=600)
    ends = records_of(alone / "new.jsonl", "case")
    assert [(end["case"], end["host"]) for end in ends] == [(f"sample {n}", "here") for n in range(3)]
    assert len(records_of(alone / "new.jsonl", "result")) == 6


def test_resume_without_a_file_is_refused(alone):
    process = sweep(alone, "--resume")
    process.communicate(timeout=600)
    assert process.returncode == 2
    assert "--resume needs --output" in (alone / "stderr").read_text()


@dataclasses.dataclass
class SlowVariant:
    """A variant whose every slice takes ten seconds of a clock of its own; `time` is shared by all."""

    name: str
    time: list
    metric: MetricName = MetricName.THROUGHPUT
    unit: str = "images/s"
    process_spread: float = 0.0

    def start(self):
        self.time[0] += 5.0
        return {}

    def warm_up(self, limit_s):  # noqa: ARG002  the protocol's
        return WarmUp(steps=1, seconds=0.0, settled=True)

    def measure(self, seconds):  # noqa: ARG002  as above
        self.time[0] += 10.0
        return Slice(value=1.0, items=1, seconds=10.0)

    expected_bytes = 0

    def peak_bytes(self):
        return 0

    def cpu_s(self):
        return 0.0

    def finish(self):
        return Finish(metrics={}, outputs=[])

    def close(self):
        """Nothing is open."""


def estimates(*, earlier):
    """Measure four cases of two rounds, 25 s each; `earlier` is how long those measured before had taken."""
    time_s, output = [0.0], io.StringIO()
    measured = {
        (f"c{place}", ("a",)): MeasuredCase(
            case=f"c{place}",
            settings=("a",),
            results=(),
            comparisons=(),
            overall=(),
            seconds=seconds,
            host="i-1",
        )
        for place, seconds in enumerate(earlier)
    }
    session = Session(
        limits=Limits(rounds=2, max_s=100.0, fixed=True),
        recorder=Recorder(output=output, messages=io.StringIO()),
        read_cpu_times=lambda: CpuTimes(busy=0.0, stolen=0.0, total=0.0),
        generator=random.Random(0),
        earlier=measured,
        clock=lambda: time_s[0],
    )
    measure([Case(name=f"c{place}", variants=[SlowVariant("a", time_s)]) for place in range(4)], session)
    records = [json.loads(line) for line in output.getvalue().splitlines()]
    return [
        (record["done"], record["remaining_s"], record["message"])
        for record in records
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
