"""A second process for the tests of the store: python writer.py HOW FOLDER NAME."""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from dlcloud.store.runs import Runs
from tests.fakes.samples import cluster, run

how, folder, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3]


def wait_for_the_others():
    """Begin together, so that they really meet."""
    (folder / f"ready-{name}").touch()
    while len(list(folder.glob("ready-*"))) < 2:
        time.sleep(0.001)


if how == "write":
    database = Database(folder / "store.sqlite")
    wait_for_the_others()
    Clusters(database).add(cluster(cluster_id=name))
    runs = Runs(database)
    runs.add(run(f"run-{name}", cluster_id=name))
    position = 0
    for number in range(100):
        line = b'{"record": "sample", "value": %d}\n' % number
        assert len(runs.add_records(f"run-{name}", position, line)) == 1
        position += len(line)
        intent = Clusters(database).begin_intent(name, "launch", "", datetime.now(UTC))
        Clusters(database).end_intent(intent, "done", datetime.now(UTC))
elif how == "migrate":
    wait_for_the_others()
    database = Database(folder / "store.sqlite")
    Clusters(database).add(cluster(cluster_id=name))
