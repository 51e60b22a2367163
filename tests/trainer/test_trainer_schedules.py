"""What only shows with PyTorch: the parts by themselves, and whole runs by generated schedules."""

import os
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).resolve().parent / "programs"


def test_parts(run_program):
    run_program(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--noconftest",
        "-c",
        os.devnull,
        "--rootdir",
        PROGRAMS,
        PROGRAMS / "parts.py",
        PROGRAMS / "peers.py",
    )


@pytest.mark.long
def test_every_schedule_comes_out_right(run_program):
    """DLCLOUD_SCHEDULES=2000 tries more than a commit can wait for; a failure prints how to replay it."""
    examples = os.environ.get("DLCLOUD_SCHEDULES", "25")
    seed = os.environ.get("DLCLOUD_SCHEDULES_SEED", "0")
    limit_s = 600 + 5 * int(examples)
    output = run_program(PROGRAMS / "schedules.py", "--examples", examples, "--seed", seed, timeout_s=limit_s)
    assert f"{examples} schedules, seed {seed}: every one came out right" in output
