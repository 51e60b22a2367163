import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.conftest import await_record, is_gone, read_records
from tests.fakes.training import wait_until


def start(folder, variants, *arguments, **options):
    command = [sys.executable, "-m", "benchmarks.sample", "--variants", json.dumps(variants), *arguments]
    command += ["--output", "records.jsonl", "--warm-up-seconds", "0.5"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, **pipes, **options)


def run(folder, variants, *arguments):
    process = start(folder, variants, *arguments)
    stdout, stderr = process.communicate(timeout=600)
    return process.returncode, stdout, stderr


def records(folder, kind):
    return read_records(folder / "records.jsonl", kind)


def spin(name, work=20_000, **changes):
    return {"name": name, "arguments": {"work": work, **changes}}


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_settings_run_in_processes_with_their_own_environment(alone):
    variants = [spin("slow"), {**spin("fast", 5_000), "environment": {"SAMPLE_VARIABLE": "here"}}]
    status, stdout, stderr = run(alone, variants, "--max-seconds", "1")
    assert status == 0, stderr
    assert "slow" in stdout
    slow, fast = records(alone, "result")
    assert (slow["facts"]["variable"], fast["facts"]["variable"]) == (None, "here")
    assert slow["metrics"]["peak_memory"]["value"] > 1
    assert slow["metrics"]["latency_p50"]["unit"] == "ms"
    (comparison,) = records(alone, "comparison")
    assert comparison["ratio"] > 0
    (first,) = records(alone, "start")
    assert first["hardware"]["physical_cores"] >= 1
    assert first["software"]["python"].startswith("3.")
    assert records(alone, "end")[0]["ok"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (spin("bad", lives=30, fate="die"), "was ended by SIGKILL, perhaps for want of memory"),
        (spin("bad", lives=30, fate="raise"), "MemoryError: no room for the batch"),
        ({"name": "bad", "factory": "absent"}, "a_framework_that_is_not_there is not installed"),
        ({"name": "bad", "factory": "untitled"}, "install the extra"),
        ({"name": "bad", "arguments": {"unknown": 1}}, "TypeError"),
    ],
)
def test_a_worker_that_dies_or_refuses_is_a_failure_and_the_others_go_on(alone, bad, message):
    status, stdout, _ = run(alone, [spin("a"), bad, spin("b")], "--max-seconds", "1")
    assert status == 1
    (failure,) = records(alone, "failure")
    assert failure["setting"] == "bad"
    assert message in failure["message"]
    assert [result["setting"] for result in records(alone, "result")] == ["a", "b"]
    assert records(alone, "end")[0]["ok"] is False
    assert "failed: sample, bad" in stdout


def wait_for_workers(process, folder):
    """Wait until rounds are being measured and return the workers' process ids."""
    await_record(folder / "records.jsonl", "sample")
    return [int(pid) for pid in children(process.pid)]


def all_gone(workers):
    return lambda: all(map(is_gone, workers))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_coordinator_that_is_killed_takes_its_frozen_workers_along(alone):
    process = start(alone, [spin("a"), spin("b")], "--width", "0.0001", "--max-seconds", "60")
    workers = wait_for_workers(process, alone)
    process.kill()
    process.communicate()
    assert len(workers) == 2
    wait_until(all_gone(workers), "the workers to end")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_workers_and_says_so(alone, number):
    variants = [spin("a"), spin("b")]
    process = start(alone, variants, "--width", "0.0001", "--max-seconds", "60", start_new_session=True)
    workers = wait_for_workers(process, alone)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    stdout, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "interrupted" in stdout
    assert records(alone, "end")[0]["ok"] is False
    wait_until(all_gone(workers), "the workers to end")


def test_threads_and_what_they_are_pinned_to_are_recorded(alone):
    status, _, stderr = run(alone, [spin("one")], "--pin", "cores", "--rounds", "1", "--max-seconds", "0.1")
    assert status == 0, stderr
    (began,) = records(alone, "start")
    (result,) = records(alone, "result")
    cores = began["hardware"]["physical_cores"]
    assert began["hardware"]["usable_cpus"] == cores
    assert result["facts"]["threads_running"] >= 1
    assert set(result["facts"]["threads_allowed_on"]) == {began["hardware"]["affinity"]}


def test_what_a_worker_starts_counts_with_it_and_ends_with_it(alone):
    process = start(
        alone, [{"name": "parent", "factory": "parent"}, spin("spin")], "--max-seconds", "3", "--rounds", "99"
    )
    await_record(alone / "records.jsonl", "sample")
    grandchildren = [pid for child in children(process.pid) for pid in children(child)]
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr
    assert len(grandchildren) == 1
    wait_until(all_gone(grandchildren), "the end of what it started")
    memory = {
        record["setting"]: record["metrics"]["resident_memory"]["value"]
        for record in records(alone, "result")
    }
    assert memory["parent"] > memory["spin"] + 40


@pytest.mark.parametrize(
    "fault",
    [
        ["--width", "1.5"], ["--width", "x"], ["--max-seconds", "0"], ["--max-seconds", "inf"],
        ["--rounds", "0"], ["--rounds", "-3"], ["--seed", "-1"], ["--slice-seconds", "nan"],
    ],
)  # fmt: skip
def test_bad_arguments_exit_2_and_name_the_argument(alone, fault):
    status, _, stderr = run(alone, [spin("a")], *fault)
    assert status == 2
    assert f"argument {fault[0]}" in stderr
    assert not (alone / "records.jsonl").exists()


def counted(name, peak, flop=1e7, peak_name="sample fp32"):
    variant = {"name": name, "factory": "counted", "arguments": {"flop": flop}, "peak_name": peak_name}
    return {**variant, "environment": {"SAMPLE_PEAK": str(peak)}}


def test_results_state_their_share_of_the_best_peak_of_their_name(alone):
    variants = [counted("a", 1e12), counted("b", 2e12), counted("c", 2e12), counted("d", 1, peak_name="")]
    status, _, stderr = run(alone, [*variants, counted("e", 0, peak_name="none")], "--max-seconds", "0.5")
    assert status == 0, stderr
    assert stderr.count("measured a peak") == 3  # one a name and environment
    facts = {result["setting"]: result["facts"] for result in records(alone, "result")}
    assert [facts[name]["peak_gflops"] for name in "abc"] == [2000, 2000, 2000]
    assert 0 < facts["a"]["share_of_peak_percent"] < 100
    assert facts["a"]["bound"] == "compute"
    assert not {"share_of_peak_percent", "bound"} & {*facts["d"], *facts["e"]}


def test_a_result_above_the_peak_raises_it(alone):
    status, _, stderr = run(alone, [counted("a", 1.0, flop=1e9)], "--max-seconds", "0.5")
    assert status == 0, stderr
    (result,) = records(alone, "result")
    assert result["facts"]["share_of_peak_percent"] == 100
    assert result["facts"]["peak_raised_percent"] > 0
    assert result["facts"]["peak_gflops"] == result["facts"]["reached_gflops"]
