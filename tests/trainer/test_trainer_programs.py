"""What only shows with PyTorch: parts by themselves, generated schedules, scripts of the docs, torchrun."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from dlcloud.elastic.agents import ALIAS
from dlcloud.trainer.instance.options import parse
from dlcloud.trainer.instance.processes import make_lighthouse, make_workers, torchrun_command
from dlcloud.trainer.records import Records
from tests.environments import ROOT
from tests.fakes.agents import Agents
from tests.fakes.training import wait_until

PROGRAMS = Path(__file__).resolve().parent / "programs"


def test_parts(run_program):
    options = ["-p", "no:cacheprovider", "--noconftest", "-c", os.devnull, "--rootdir", PROGRAMS]
    run_program("-m", "pytest", "-q", *options, PROGRAMS / "parts.py", PROGRAMS / "peers.py")


@pytest.mark.long
def test_every_schedule_comes_out_right(run_program):
    """DLCLOUD_SCHEDULES=2000 tries more than a commit can wait for; a failure prints how to replay it."""
    examples = os.environ.get("DLCLOUD_SCHEDULES", "25")
    seed = os.environ.get("DLCLOUD_SCHEDULES_SEED", "0")
    limit_s = 600 + 5 * int(examples)
    output = run_program(PROGRAMS / "schedules.py", "--examples", examples, "--seed", seed, timeout_s=limit_s)
    assert f"{examples} schedules, seed {seed}: every one came out right" in output


@pytest.mark.long
def test_the_script_of_the_page_trains(run_program, alone):
    (alone / "dlcloud").mkdir()
    (alone / "dlcloud" / "__init__.py").write_bytes(ALIAS)
    page = (ROOT / "docs" / "elastic.md").read_text("utf-8")
    script = alone / "train.py"
    script.write_text(page.partition("```python\n")[2].partition("```")[0], "utf-8")
    output = run_program(script.name)
    losses = [float(line.rpartition(" ")[2]) for line in output.splitlines() if " steps, loss " in line]
    assert len(losses) == 160 // 20
    assert losses[-1] < losses[0] / 10
    assert (alone / "model.pt").stat().st_size > 0


def test_the_data_of_the_bundled_recipe_are_enough_to_train_on(run_program):
    data = ROOT / "recipes" / "data" / "digits"
    assert "steps 6, accuracy" in run_program(
        "-m", "trainer.examples.digits", "--data", str(data), "--epochs", "2"
    )


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
    environment = {**os.environ, "PYTHONPATH": str(alone)}
    command = [trainer_python, PROGRAMS / "busy_store.py"]
    left = subprocess.run(command, env=environment, timeout=600, capture_output=True, text=True, check=False)
    assert left.returncode == 10, left.stderr
