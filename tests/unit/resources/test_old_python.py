"""What the Python of an image runs works on that of Ubuntu 22.04, which is 3.10."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PYTHON = "python3.10"
PROGRAMS = [
    *sorted(ROOT.glob("templates/*.py")),
    *(ROOT / "dlcloud/benchmarks" / name for name in ("command", "harness")),
]


@pytest.mark.long
def test_nothing_is_used_that_python_3_10_lacks():
    mypy = [Path(sys.executable).with_name("mypy"), "--python-version", "3.10", "--config-file="]
    done = subprocess.run(
        [*mypy, "--follow-imports=silent", "--ignore-missing-imports", *PROGRAMS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "source files" in done.stdout, done.stdout + done.stderr
    errors = done.stdout.splitlines()
    assert [line for line in errors if line.endswith(("[attr-defined]", "[syntax]"))] == []


def is_installed(program):
    """True if a program runs: that of a version manager may be there and start nothing."""
    return (
        shutil.which(program) is not None and not subprocess.run([program, "-c", ""], check=False).returncode
    )


@pytest.mark.skipif(not is_installed(PYTHON), reason="there is no python3.10")
def test_a_command_is_measured_on_python_3_10(tmp_path):
    arguments = ["--run", "echo images/sec: 5", "--throughput", "images/sec: ([0-9.]+)", "--repeats", "2"]
    done = subprocess.run(
        [PYTHON, "-m", "benchmarks.command", *arguments, "--output", tmp_path / "records.jsonl"],
        cwd=ROOT / "dlcloud",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"ok":true' in (tmp_path / "records.jsonl").read_text().splitlines()[-1]
