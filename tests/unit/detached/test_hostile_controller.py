"""A controlling instance that was taken over: nothing it states of others is believed, run or written."""

import sqlite3
from dataclasses import replace

import pytest

from dlcloud.detached.state import check_copy, copy_cluster, import_cluster
from dlcloud.model.cluster import Member
from dlcloud.model.errors import StoreError
from dlcloud.store.clusters import RESIZE, Clusters
from dlcloud.store.database import MIGRATIONS, Database, open_foreign
from dlcloud.store.runs import Runs
from tests.fakes.samples import THEN, cluster, instance, run

OTHER_FLEET = "fleet-0aaaaaaa-1111-2222-3333-444444444444"


def member(instance_id):
    return Member(instance=instance(instance_id), hourly_usd=None, price_source="", price_as_of=None)


@pytest.fixture
def home(tmp_path):
    """A home with the detached cluster and another one."""
    database = Database(tmp_path / "home.sqlite")
    clusters, runs = Clusters(database), Runs(database)
    for one in (cluster(), cluster("other-1a2b", cluster_id="0ther")):
        clusters.add(one)
    clusters.put_members("c0ffee", [member("i-0001")])
    clusters.put_members("0ther", [member("i-0009")])
    clusters.end_launch(clusters.begin_intent("0ther", "launch", "", THEN), OTHER_FLEET, ["i-000a"], THEN)
    runs.add(run())
    runs.add(run("other-1a2b-0001", cluster_id="0ther", cluster_name="other-1a2b", instance_id="i-0009"))
    yield database
    database.close()


@pytest.fixture
def there(home, tmp_path):
    database = Database(tmp_path / "there.sqlite")
    copy_cluster(home, database, replace(cluster(), recipe_path="/there/recipe.yaml"))
    yield database
    database.close()


def state_other_instance(there):
    Clusters(there).put_members("c0ffee", [member("i-0009")])


def state_launched_instance(there):
    Clusters(there).put_members("c0ffee", [member("i-000a")])


def state_other_fleet(there):
    clusters = Clusters(there)
    clusters.end_launch(clusters.begin_intent("c0ffee", "launch", "", THEN), OTHER_FLEET, [], THEN)


def state_end_of_other_instance(there):
    Clusters(there).begin_intent("c0ffee", "shrink", "", THEN, ["i-000a"])


def state_ids_that_are_none(there):
    Clusters(there).begin_intent("c0ffee", "shrink", "", THEN)
    there.write("UPDATE intents SET instance_ids = 'i-000a'")


def state_other_run(there):
    Runs(there).add(run("other-1a2b-0001"))


def state_a_run_outside_its_name(there):
    Runs(there).add(run("elsewhere-0001"))


def state_other_name(there):
    there.write("UPDATE clusters SET name = 'other-1a2b'")


def state_a_path_as_name(there):
    there.write("UPDATE clusters SET name = '../../../../x'")


def state_a_size_that_is_none(there):
    Clusters(there).begin_intent("c0ffee", RESIZE, "many", THEN)


LIES = [
    state_other_instance,
    state_launched_instance,
    state_other_fleet,
    state_end_of_other_instance,
    state_ids_that_are_none,
    state_other_run,
    state_a_run_outside_its_name,
    state_other_name,
    state_a_path_as_name,
    state_a_size_that_is_none,
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_what_a_controller_states_of_others_is_refused_whole(home, there, lie):
    before = list(home._connection.iterdump())
    lie(there)
    with pytest.raises(StoreError):
        check_copy(there, home, "c0ffee")
    with pytest.raises(StoreError):
        import_cluster(there, home, "c0ffee", controller_instance_id="i-0001", now=THEN)
    assert list(home._connection.iterdump()) == before


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
    path = tmp_path / "store.sqlite"
    Database(path).close()
    raw = sqlite3.connect(path)
    raw.execute(statement)
    raw.commit()
    raw.close()
    with pytest.raises(StoreError, match="other tables"):
        open_foreign(path)


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000])
def test_a_fetched_file_that_is_no_store_is_an_error(tmp_path, content):
    path = tmp_path / "store.sqlite"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="the fetched store"):
        open_foreign(path)


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS) + 1))
def test_the_store_of_each_version_is_opened(tmp_path, version):
    path = tmp_path / "store.sqlite"
    raw = sqlite3.connect(path)
    for step in MIGRATIONS[:version]:
        raw.executescript(step)
    raw.execute(f"PRAGMA user_version = {version}")
    raw.close()
    open_foreign(path).close()
