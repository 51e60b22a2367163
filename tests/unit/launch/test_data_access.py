"""Access to data: where s5cmd lies on an instance, and when unfinished uploads of checkpoints are aborted."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from dlcloud.launch import data_access
from dlcloud.launch.data_access import abort_uploads, prepare_access
from dlcloud.model.errors import CredentialsError
from dlcloud.model.events import Warned
from tests.fakes.cloud import Failure
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

    def install(text, home):
        managed = SimpleNamespace(clock=None, emit=None)
        kept = data_access.Storage(managed=managed, recipe=recipe(text), recipe_folder=tmp_path)
        return Path(kept._install(Shell(home)))

    return install, tool


def test_s5cmd_is_called_in_its_environment_and_a_container_finds_it_in_the_home(installed, tmp_path):
    install, tool = installed
    assert install(TRAINS + BUCKETS, tmp_path / "plain") == tool
    path = install(TRAINS + BUCKETS + "setup: {image: own/train:1}\n", tmp_path / "home")
    assert path == tmp_path / "home" / "dlcloud" / "s5cmd"
    assert path.read_text() == tool.read_text()
    assert os.access(path, os.X_OK)


URI = "s3://bucket/runs"
STORED = recipe(
    f"name: stored\ncheckpoints: {URI}\ninstances: {{types: [c7i.large]}}\n"
    "workload: {command: python3 train.py, elastic: {}}\n"
)


def test_they_are_aborted_before_the_first_launch_and_not_beside_workers(world):
    world.cloud.uploads[URI] = 2
    prepare_access(world.launcher, STORED)
    assert world.cloud.uploads == {}
    assert any("aborted 2 unfinished upload(s)" in str(event) for event in world.events)
    world.cloud.uploads[URI] = 1
    prepare_access(world.launcher, STORED)
    assert world.cloud.uploads == {URI: 1}, "a worker of this cluster may be uploading"


def test_a_denial_is_a_warning_that_names_the_lifecycle_rule(world):
    world.cloud.failures = [Failure("buckets.abort_uploads", CredentialsError("denied"))]
    abort_uploads(world.launcher, recipe(RECIPE))
    assert world.events == [], "without checkpoints there are none"
    abort_uploads(world.launcher, STORED)
    (warning,) = (event for event in world.events if isinstance(event, Warned))
    assert "AbortIncompleteMultipartUpload" in warning.message
