"""A store in a folder of its own, and second processes that use it, too."""

import subprocess
import sys
from pathlib import Path

import pytest

from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from dlcloud.store.measurements import Measurements
from dlcloud.store.runs import Runs

WRITER = Path(__file__).with_name("writer.py")
ROOT = Path(__file__).parents[3]


@pytest.fixture
def database(tmp_path):
    opened = Database(tmp_path / "store.sqlite")
    yield opened
    opened.close()


@pytest.fixture
def clusters(database):
    return Clusters(database)


@pytest.fixture
def runs(database):
    return Runs(database)


@pytest.fixture
def measurements(database):
    return Measurements(database)


@pytest.fixture
def start(tmp_path):
    """Return what starts writer.py; whatever still runs is killed in the end."""
    started = []

    def begin(how, name):
        process = subprocess.Popen(
            [sys.executable, str(WRITER), how, str(tmp_path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PYTHONPATH": str(ROOT)},
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()
