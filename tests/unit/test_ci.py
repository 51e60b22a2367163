"""CI's program: no retries, and a name for what is flaky."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import needs

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
from pathlib import Path

def test_flaky():
    ran = Path(__file__).with_name("ran")
    second = ran.exists()
    ran.touch()
    assert second

def test_broken():
    assert False

def test_sound():
    assert True
"""
README = "```sh\n.venv/bin/python -m pytest -q{filter}\n```\n"


pytestmark = needs("bash")


@pytest.fixture
def ci(tmp_path):
    """Run CI on a small project of that shape; return the exit status and the output."""

    def run(chosen, *options):
        for folder in (".ci", ".venv/bin", "programs", "tests"):
            (tmp_path / folder).mkdir(parents=True)
        (tmp_path / "tests" / "programs.py").write_text("print('sh dash everything')")
        shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
        python = tmp_path / ".venv/bin/python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        (tmp_path / "test_it.py").write_text(TESTS)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        (tmp_path / "README.md").write_text(README.format(filter=f" -k '{chosen}'" if chosen else ""))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        environment |= {"PATH": f"{tmp_path / 'programs'}:{os.environ['PATH']}", "CI": ""}
        done = subprocess.run(
            ["bash", tmp_path / ".ci" / "run", *options],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_test_that_passes_at_the_second_try_is_named_and_fails_ci(ci):
    status, output = ci("")
    again = output.partition("once more")[2]
    assert status == 1
    assert "PASSED test_it.py::test_flaky" in again, output
    assert "FAILED test_it.py::test_broken" in again
    assert "test_sound" not in again


def test_ci_runs_no_test_twice_where_all_pass_and_hands_options_on(ci):
    status, output = ci("", "-k", "sound")
    assert (status, "once more" in output) == (0, False), output
