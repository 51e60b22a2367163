"""The command as its users start it: a process of its own, with a home of its own."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.prefork import Commands

ROOT = Path(__file__).parents[3]
START = "from dlcloud.cli.entry import main; main()"


@dataclass(frozen=True)
class Done:
    """How a command ended, what it printed, and which modules it had imported if it was started by itself."""

    status: int
    stdout: str
    stderr: str
    modules: frozenset = frozenset()


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def variables(home):
    """Return the environment of a command: this home, and no credentials."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "DLCLOUD_"))}
    return kept | {"PYTHONPATH": str(ROOT), "DLCLOUD_HOME": str(home)}


@pytest.fixture
def dlcloud(home, variables):
    """Return what runs `dlcloud WORDS` to its end, in a fork of a process that has all imported."""

    def run(*words, **environment):
        done = Commands.of_this_process().run(
            ["dlcloud", *words],
            environment=variables | environment,
            folder=home.parent,
            text="",
            timeout_s=600,
        )
        return Done(status=done.returncode, stdout=done.stdout, stderr=done.stderr.rstrip("\n"))

    return run


@pytest.fixture
def dlcloud_alone(home, variables):
    """Return what starts Python for `dlcloud WORDS`, and sees what is imported."""

    def run(*words, **environment):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", START, *words],
            capture_output=True,
            text=True,
            cwd=home.parent,
            env=variables | environment,
            stdin=subprocess.DEVNULL,
            timeout=600,
            check=False,
        )
        lines = done.stderr.splitlines()
        imported = [line for line in lines if line.startswith("import time:")]
        return Done(
            status=done.returncode,
            stdout=done.stdout,
            stderr="\n".join(line for line in lines if not line.startswith("import time:")),
            modules=frozenset(line.rpartition("|")[2].strip().partition(".")[0] for line in imported),
        )

    return run
