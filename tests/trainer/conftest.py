"""The package `trainer` copied alone, as an instance gets it, and the environment that its pins describe."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.environments import ROOT, python_with

PACKAGE = ROOT / "dlcloud" / "trainer"


@pytest.fixture(scope="session")
def trainer_python():
    """Give a Python with the pinned packages, built once per set of pins."""
    return python_with(PACKAGE / "requirements" / "elastic.txt")


@pytest.fixture
def alone(tmp_path):
    """Give a folder that holds nothing but the package `trainer`."""
    shutil.copytree(PACKAGE, tmp_path / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.fixture
def run_program(trainer_python, alone):
    """Run Python with the pinned packages, and behind them those of the tests."""

    def run(*arguments, timeout_s=600):
        packages = Path(pytest.__file__).parents[1]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(alone), str(packages)]),
        }
        command = [trainer_python, *arguments]
        done = subprocess.run(
            command,
            cwd=alone,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
        return done.stdout

    return run
