"""What an intent launched or ends has columns of its own; a store that named it in texts is migrated."""

import contextlib
import sqlite3

import pytest

from dlcloud.store.clusters import Clusters
from dlcloud.store.database import MIGRATIONS, Database
from tests.fakes.samples import THEN

BEFORE = next(number for number, step in enumerate(MIGRATIONS) if "instance_ids" in step)


@pytest.fixture
def old_store(tmp_path):
    """A store of the version before, and a function that adds an intent to it."""
    path = tmp_path / "store.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for step in MIGRATIONS[:BEFORE]:
            connection.executescript(step)
        connection.execute(f"PRAGMA user_version = {BEFORE}")

    def add(action, detail, outcome):
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(
                "INSERT INTO intents (cluster_id, action, detail, begun_at, outcome) VALUES (?, ?, ?, ?, ?)",
                ("c0ffee", action, detail, THEN.isoformat(), outcome),
            )

    return path, add


@pytest.mark.parametrize(
    ("intent", "fleet_id", "instance_ids"),
    [
        (("launch", "{}", "i-1 i-2"), "", ("i-1", "i-2")),
        (("launch", "{}", "fleet-12ab-3 i-1 i-2"), "fleet-12ab-3", ("i-1", "i-2")),
        (("launch", "{}", "fleet-12ab-3"), "fleet-12ab-3", ()),
        (("launch", "{}", "refused"), "", ()),
        (("launch", "{}", "its answer was not seen"), "", ()),
        (("launch", "{}", None), "", ()),
        (("shrink", "i-1 i-2", None), "", ("i-1", "i-2")),
        (("shrink", "i-1", "ended"), "", ("i-1",)),
        (("resize", "2", "done"), "", ()),
    ],
)
def test_the_ids_of_an_old_store_are_found(old_store, intent, fleet_id, instance_ids):
    path, add = old_store
    add(*intent)
    (stored,) = Clusters(Database(path)).intents("c0ffee", intent[0])
    assert (stored.fleet_id, stored.instance_ids) == (fleet_id, instance_ids)


def test_a_launch_ends_with_what_it_gave(tmp_path):
    clusters = Clusters(Database(tmp_path / "store.sqlite"))
    clusters.end_launch(clusters.begin_intent("c0ffee", "launch", "{}", THEN), "fleet-1", ["i-1"], THEN)
    clusters.end_launch(clusters.begin_intent("c0ffee", "launch", "{}", THEN), "", [], THEN)
    launched, refused = clusters.intents("c0ffee", "launch")
    assert (launched.outcome, launched.fleet_id, launched.instance_ids) == ("launched", "fleet-1", ("i-1",))
    assert (refused.outcome, refused.instance_ids) == ("refused", ())
