"""The package `trainer` copied alone, as an instance gets it, and the environment that its pins describe."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dlcloud" / "trainer"
ENVIRONMENTS = Path("~/.cache/dlcloud-tests").expanduser()


@pytest.fixture(scope="session")
def trainer_python():
    """Give a Python with the pinned packages, built once per set of pins."""
    requirements = PACKAGE / "requirements" / "elastic.txt"
    key = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = ENVIRONMENTS / f"elastic-{key}"
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with (ENVIRONMENTS / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _build(folder, requirements)
    return folder / "bin" / "python"


def _build(folder, requirements):
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-r", requirements], check=True)
    (folder / "complete").touch()


@pytest.fixture
def alone(tmp_path):
    """Give a folder that holds nothing but the package `trainer`."""
    shutil.copytree(PACKAGE, tmp_path / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.fixture
def run_program(trainer_python, alone):
    """Run Python with the pinned packages, and behind them those of the tests."""

    def run(*arguments, timeout_s=280):
        packages = Path(pytest.__file__).parents[1]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(alone), str(packages)]),
            "PYTHONDONTWRITEBYTECODE": "1",
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
