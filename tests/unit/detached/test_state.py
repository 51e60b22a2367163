"""One cluster out of a store to the instance that controls it next, and home: whole, nothing of others."""

import json
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta

import pytest

from dlcloud.analysis.result import RunState
from dlcloud.detached.state import check_copy, copy_cluster, import_cluster
from dlcloud.model.cluster import ClusterState, Member
from dlcloud.model.errors import StoreError
from dlcloud.store.clusters import FETCH, HAND_OVER, IN_CHARGE, RESIZE, Clusters
from dlcloud.store.database import MIGRATIONS, Database, open_foreign
from dlcloud.store.runs import Runs
from tests.fakes.samples import THEN, cluster, instance, price, run

LINES = b"".join(json.dumps({"record": "step", "step": step}).encode() + b"\n" for step in (1, 2))
LATER = THEN + timedelta(hours=1)


@pytest.fixture
def home(open_store):
    """A home with a cluster that trains, and another one."""
    database = open_store("home")
    clusters, runs = Clusters(database), Runs(database)
    for one in (cluster(), cluster("other-1a2b", cluster_id="0ther")):
        clusters.add(one)
    clusters.put_members("c0ffee", [member("i-0001")])
    clusters.begin_intent("c0ffee", HAND_OVER, "i-0001", THEN)
    clusters.end_intent(clusters.begin_intent("c0ffee", "launch", "{}", THEN), "fleet-1", THEN)
    runs.add(run(state=RunState.RUNNING))
    runs.put_prices("sample-1a2b-0001", [price()])
    runs.add_records("sample-1a2b-0001", 0, LINES)
    runs.add(run("other-1a2b-0001", cluster_id="0ther", cluster_name="other-1a2b", instance_id="i-0009"))
    return database


@pytest.fixture
def open_store(tmp_path):
    """Return what opens a store by its name."""
    with ExitStack() as opened:
        yield lambda name: opened.enter_context(closing(Database(tmp_path / f"{name}.sqlite")))


@pytest.fixture
def there(home, open_store):
    """The store of the instance that was handed the cluster over."""
    opened = open_store("there")
    copy_cluster(home, opened, replace(cluster(), recipe_path="/there/recipe.yaml"))
    return opened


@pytest.fixture
def elsewhere(open_store):
    return open_store("elsewhere")


def member(instance_id):
    price_usd = price().hourly_usd
    return Member(instance=instance(instance_id), hourly_usd=price_usd, price_source="", price_as_of=THEN)


def taken(brought, home):
    return import_cluster(brought, home, "c0ffee", controller_instance_id="i-0001", now=LATER)


def test_only_this_cluster_is_handed_over_without_its_hand_over(there):
    clusters, runs = Clusters(there), Runs(there)
    assert [stored.recipe_path for stored in clusters.all()] == ["/there/recipe.yaml"]
    assert [member.instance.instance_id for member in clusters.members("c0ffee")] == ["i-0001"]
    assert [intent.outcome for intent in clusters.intents("c0ffee", "launch")] == ["fleet-1"]
    assert clusters.last_hand_over("c0ffee") is None
    assert [stored.run_id for stored in runs.all()] == ["sample-1a2b-0001"]
    assert runs.stored_bytes("sample-1a2b-0001") == len(LINES), "it is followed on from the very byte"
    assert len(runs.all_lines("sample-1a2b-0001")) == 2


def test_results_come_home_and_runs_still_running_count_as_lost(there, home):
    clusters, runs = Clusters(there), Runs(there)
    clusters.put_members("c0ffee", [member("i-0002")])
    clusters.end_intent(clusters.begin_intent("c0ffee", RESIZE, "2", LATER), "done", LATER)
    runs.add_records("sample-1a2b-0001", len(LINES), b'{"record": "step", "step": 3}\n')
    runs.add(run("sample-1a2b-0002", instance_id="i-0002", ended_at=LATER))
    assert taken(there, home).recipe_path == "recipe.yaml"
    assert [m.instance.instance_id for m in Clusters(home).members("c0ffee")] == [
        "i-0001",
        "i-0002",
    ]
    assert Clusters(home).size("c0ffee") == 2
    states = {stored.run_id: stored.state for stored in Runs(home).of_cluster("c0ffee")}
    assert states == {"sample-1a2b-0001": RunState.LOST, "sample-1a2b-0002": RunState.DONE}
    assert [json.loads(line)["step"] for line in Runs(home).lines("sample-1a2b-0001", "step")] == [1, 2, 3]


def test_a_home_that_did_not_know_the_cluster_learns_it_and_its_role(there, elsewhere):
    assert taken(there, elsewhere).cluster_id == "c0ffee"
    assert Clusters(elsewhere).controller_instance_id("c0ffee") == "i-0001"
    assert [stored.cluster_id for stored in Runs(elsewhere).own()] == ["c0ffee"]


def test_brought_home_twice_is_there_once(there, home):
    taken(there, home)
    taken(there, home)
    assert len(Runs(home).of_cluster("c0ffee")) == 1
    assert len(Clusters(home).intents("c0ffee", "launch")) == 1
    assert all(intent.outcome for intent in Clusters(home).intents("c0ffee", FETCH))


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("clusters", "cluster_id", "another"),
        ("clusters", "name", "sample\x1b[2J"),
        ("members", "instance_id", "i-0001; rm"),
        ("runs", "run_id", "../../../.ssh/authorized_keys"),
    ],
)
def test_implausible_content_is_refused_and_nothing_is_stored(there, elsewhere, table, column, value):
    there.write("PRAGMA foreign_keys = OFF")
    for other in ("records", "run_prices"):
        there.write(f"DELETE FROM {other}")
    there.write(f"UPDATE {table} SET {column} = ?", value)
    with pytest.raises(StoreError):
        taken(there, elsewhere)
    assert Clusters(elsewhere).all() == []


def test_a_cluster_is_detached_only_once_its_hand_over_is_complete(elsewhere):
    clusters = Clusters(elsewhere)
    clusters.add(cluster(state=ClusterState.RUNNING))
    begun = clusters.begin_intent("c0ffee", HAND_OVER, "i-0001", THEN)
    assert clusters.controller_instance_id("c0ffee") is None
    clusters.end_intent(begun, IN_CHARGE, THEN)
    assert clusters.controller_instance_id("c0ffee") == "i-0001"


OTHER_FLEET = "fleet-0aaaaaaa-1111-2222-3333-444444444444"


def launch_of_fleet(clusters, cluster_id, ids):
    clusters.end_launch(clusters.begin_intent(cluster_id, "launch", "", THEN), OTHER_FLEET, ids, THEN)


def ids_that_are_none(there):
    Clusters(there).begin_intent("c0ffee", "shrink", "", THEN)
    there.write("UPDATE intents SET instance_ids = 'i-000a'")


LIES = {
    "instance of another": lambda there: Clusters(there).put_members("c0ffee", [member("i-0009")]),
    "instance of another's launch": lambda there: Clusters(there).put_members("c0ffee", [member("i-000a")]),
    "fleet of another": lambda there: launch_of_fleet(Clusters(there), "c0ffee", []),
    "end of another's": lambda there: Clusters(there).begin_intent("c0ffee", "shrink", "", THEN, ["i-000a"]),
    "ids that are none": ids_that_are_none,
    "run of another": lambda there: Runs(there).add(run("other-1a2b-0001")),
    "run outside its name": lambda there: Runs(there).add(run("elsewhere-0001")),
    "name of another": lambda there: there.write("UPDATE clusters SET name = 'other-1a2b'"),
    "a path as name": lambda there: there.write("UPDATE clusters SET name = '../../../../x'"),
    "a size that is none": lambda there: Clusters(there).begin_intent("c0ffee", RESIZE, "many", THEN),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_what_a_controller_that_was_taken_over_states_of_others_is_refused_whole(home, there, lie):
    clusters = Clusters(home)
    clusters.put_members("0ther", [member("i-0009")])
    launch_of_fleet(clusters, "0ther", ["i-000a"])
    before = list(home._connection.iterdump())
    lie(there)
    with pytest.raises(StoreError):
        check_copy(there, home, "c0ffee")
    with pytest.raises(StoreError):
        taken(there, home)
    assert list(home._connection.iterdump()) == before


def store_of(path, *scripts):
    with closing(sqlite3.connect(path)) as raw:
        for script in scripts:
            raw.executescript(script)
    return path


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER UPDATE ON runs BEGIN UPDATE clusters SET cloud = 'aws'; END",
        "CREATE VIEW v AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x FROM n",
        "CREATE INDEX i ON runs (abs(length(run_id)))",
        "CREATE TABLE more (x)",
        "DROP TABLE prices",
        f"PRAGMA user_version = {len(MIGRATIONS) - 1}",
        "PRAGMA user_version = 0",
        "PRAGMA user_version = 99",
    ],
)
def test_a_store_with_anything_but_our_tables_is_not_opened(tmp_path, statement):
    Database(tmp_path / "store.sqlite").close()
    with pytest.raises(StoreError, match="other tables"):
        open_foreign(store_of(tmp_path / "store.sqlite", statement))


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS) + 1))
def test_the_store_of_each_version_is_opened(tmp_path, version):
    steps = (*MIGRATIONS[:version], f"PRAGMA user_version = {version}")
    open_foreign(store_of(tmp_path / "store.sqlite", *steps)).close()


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000])
def test_a_fetched_file_that_is_no_store_is_an_error(tmp_path, content):
    path = tmp_path / "store.sqlite"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="the fetched store"):
        open_foreign(path)
