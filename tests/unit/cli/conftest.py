"""The command as its users start it: a process of its own, with a home of its own."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
START = "from dlcloud.cli.entry import main; main()"


@dataclass(frozen=True)
class Done:
    """How a command ended, what it printed, and which modules it had imported."""

    status: int
    stdout: str
    stderr: str
    modules: frozenset


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def dlcloud(home):
    """Return what runs `dlcloud WORDS` to its end."""

    def run(*words, **environment):
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "DLCLOUD_"))
        }
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", START, *words],
            capture_output=True,
            text=True,
            cwd=home.parent,
            env=kept | {"PYTHONPATH": str(ROOT), "DLCLOUD_HOME": str(home), **environment},
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
