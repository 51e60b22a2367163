"""Scripts that keep their own loop: what the agent starts for them."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from dlcloud.trainer.instance.options import parse
from dlcloud.trainer.instance.processes import make_lighthouse, make_workers, torchrun_command
from dlcloud.trainer.records import Records
from tests.fakes.agents import Agents
from tests.fakes.training import wait_until

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
    options = ["--engine", "torchrun", "--lighthouse", "--workers", "1"]
    script = ["-m", "trainer.examples.torchrun_digits"]
    with Agents(trainer_python, alone, [*script, "--epochs", "50", "--delay-ms", "20"]) as agents:
        agents.start("w", *options)
        wait_until(lambda: len(agents.steps("w")) > 5, "steps", 120)
        agents.agents["w"].send_signal(signal.SIGTERM)
        assert agents.wait("w") == 10
        reached = max(record["step"] for record in agents.steps("w"))
        agents.script = [*script, "--epochs", str(reached // 15 + 1)]
        agents.start("w", *options)
        assert agents.wait("w") == 0
        steps = [record["step"] for record in agents.steps("w")]
    assert steps[steps.index(reached) + 1] == reached + 1


def test_torchrun_leaves_whatever_its_rendezvous_is_doing(trainer_python, alone):
    # As Python ends, PyTorch aborts the process if a thread comes back from a call of the store.
    program = Path(__file__).resolve().parent / "programs" / "busy_store.py"
    environment = {**os.environ, "PYTHONPATH": str(alone)}
    left = subprocess.run(
        [trainer_python, program], env=environment, timeout=600, capture_output=True, text=True, check=False
    )
    assert left.returncode == 10, left.stderr
