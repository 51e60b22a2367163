"""Scripts that keep their own loop: what the agent starts for them."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from dlcloud.trainer.instance.options import parse
from dlcloud.trainer.instance.processes import make_lighthouse, make_workers, torchrun_command
from dlcloud.trainer.records import Records
from tests.fakes.training import free_port, read_records, wait_until

BASE = ["--run", "r", "--worker", "w", "--coordinator", "127.0.0.1", "--folder", "f", "--engine", "torchrun"]


def test_torchrun_gets_the_script_and_what_it_survives_by():
    options = parse(
        [*BASE, "--workers", "2", "--minimum", "3", "--", "python3", "train.py", "--epochs", "4"], {}
    )
    words = torchrun_command(options)
    assert words[-3:] == ["train.py", "--epochs", "4"]
    assert "--nnodes=3:1024" in words
    assert "--nproc-per-node=2" in words
    assert "--rdzv-endpoint=127.0.0.1:29510" in words
    assert any("is_host=0" in word for word in words)


def test_one_torchrun_starts_all_workers_and_coordinator_has_the_store():
    options = parse([*BASE, "--lighthouse", "--workers", "4", "--", "train.py"], {})
    records = Records(path=None, run="r", worker="w")
    (only,) = make_workers(options, records)
    assert only.environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert "DLCLOUD_TRAINER" in only.environment
    assert "store" in make_lighthouse(options, records).command


@pytest.mark.long
def test_a_script_under_torchrun_trains_leaves_and_resumes(trainer_python, alone):
    port = free_port()
    base = [
        trainer_python,
        "-m",
        "trainer.agent",
        "--run",
        "r",
        "--worker",
        "w",
        "--coordinator",
        "127.0.0.1",
    ]
    base += [
        "--port",
        str(port),
        "--folder",
        "state",
        "--engine",
        "torchrun",
        "--lighthouse",
        "--workers",
        "1",
    ]
    base += ["--metadata", "http://127.0.0.1:1", "--", "python3", "-m", "trainer.examples.torchrun_digits"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def steps():
        path = alone / "state" / "records.jsonl"
        records = read_records(path) if path.exists() else []
        return [record["step"] for record in records if record["record"] == "step"]

    first = subprocess.Popen([*base, "--epochs", "50", "--delay-ms", "20"], cwd=alone, env=environment)
    try:
        wait_until(lambda: len(steps()) > 5, "steps", 120)
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 10
    finally:
        first.kill()
        first.wait()
    reached = max(steps())
    second = subprocess.run(
        [*base, "--epochs", str(reached // 15 + 1)], cwd=alone, env=environment, timeout=600, check=False
    )
    assert second.returncode == 0
    assert steps()[steps().index(reached) + 1] == reached + 1


def test_torchrun_leaves_whatever_its_rendezvous_is_doing(trainer_python, alone):
    # As Python ends, PyTorch aborts the process if a thread comes back from a call of the store.
    program = Path(__file__).resolve().parent / "programs" / "busy_store.py"
    environment = {**os.environ, "PYTHONPATH": str(alone)}
    left = subprocess.run(
        [trainer_python, program], env=environment, timeout=600, capture_output=True, text=True, check=False
    )
    assert left.returncode == 10, left.stderr
