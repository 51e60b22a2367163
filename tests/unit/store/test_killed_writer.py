"""A process killed inside SQLite, and many at once: what was reported stored is stored, and nothing in part.

With DLCLOUD_CRASH_POINTS=all every 256th byte and every third instruction is tried (half an hour), and with
DLCLOUD_STORE_PROCESSES=200 as many processes write at once; without them, some.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from dlcloud.model.errors import StoreError
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from dlcloud.store.measurements import Measurements, Selection
from dlcloud.store.runs import Runs
from tests.fakes.samples import THEN, cluster, run

ROOT = Path(__file__).parents[3]
ALL = os.environ.get("DLCLOUD_CRASH_POINTS") == "all"
PROCESSES = int(os.environ.get("DLCLOUD_STORE_PROCESSES", "16"))
SEED = int(os.environ.get("DLCLOUD_CRASH_SEED") or random.randrange(10_000))
POINTS = {"bytes": (345_000, 256 if ALL else 50_000), "instructions": (7_500, 3 if ALL else 1_200)}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", POINTS)
def test_a_process_killed_inside_the_store_loses_nothing_it_reported(tmp_path, mode):
    end, step = POINTS[mode]
    start = SEED % step
    program = [sys.executable, str(Path(__file__).with_name("killed_writer.py")), str(tmp_path), mode]
    done = subprocess.run(
        [*program, str(start), str(step), str(end)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["lost"] == [], f"DLCLOUD_CRASH_SEED={SEED}"
    assert counts["killed"] > 0


def test_many_processes_write_at_once_and_all_of_it_is_stored(tmp_path):
    pids = []
    for number in range(PROCESSES):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                write_one(tmp_path, number)
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    assert {os.waitpid(pid, 0)[1] for pid in pids} == {0}
    database = Database(tmp_path / "store.sqlite")
    assert len(Clusters(database).all()) == PROCESSES
    assert [len(Runs(database).lines(f"r-{number}", "sample")) for number in range(PROCESSES)] == (
        [2] * PROCESSES
    )
    database.close()


def write_one(folder, number):
    database = Database(folder / "store.sqlite")
    Clusters(database).add(cluster(cluster_id=f"c-{number}"))
    runs = Runs(database)
    runs.add(run(f"r-{number}"))
    runs.add_records(f"r-{number}", 0, b'{"record": "sample"}\n' * 2)
    database.close()


@pytest.mark.parametrize("damage", ["truncate", "overwrite"])
def test_a_damaged_store_is_an_error_or_still_readable(tmp_path, damage):
    """Cut off at any length, or with bytes overwritten anywhere, it never ends in another exception."""
    whole = store_bytes(tmp_path / "whole.sqlite")
    randomness = random.Random(SEED)
    refused = []
    for number in range(400 if ALL else 25):
        path = tmp_path / f"{number}.sqlite"
        path.write_bytes(DAMAGES[damage](whole, randomness))
        try:
            read_all(path)
        except StoreError as error:
            refused.append(error)
    assert refused
    assert all(error.hint for error in refused), f"DLCLOUD_CRASH_SEED={SEED}"


def truncate(content, randomness):
    return content[: randomness.randrange(1, len(content))]


def overwrite(content, randomness):
    damaged = bytearray(content)
    for _ in range(randomness.choice([1, 20, 2000])):
        damaged[randomness.randrange(len(damaged))] = randomness.randrange(256)
    return bytes(damaged)


DAMAGES = {"truncate": truncate, "overwrite": overwrite}


def store_bytes(path):
    database = Database(path)
    Clusters(database).add(cluster(cluster_id="a"))
    runs = Runs(database)
    for number in range(10):
        runs.add(run(f"r-{number}"))
        line = b'{"record": "result", "case": "c", "metrics": {"throughput": {"value": 5}}}\n'
        runs.add_records(f"r-{number}", 0, line * 20)
    Clusters(database).begin_intent("a", "launch", "", THEN)
    database.close()
    return path.read_bytes()


def read_all(path):
    database = Database(path)
    try:
        Clusters(database).active()
        Clusters(database).members("a")
        Clusters(database).intents("a", "launch")
        runs, measurements = Runs(database), Measurements(database)
        positions = measurements.select(Selection(), newest=True)
        measurements.results(positions)
        for found in runs.all():
            runs.all_lines(found.run_id)
        runs.add(run("new"))
    finally:
        database.close()
