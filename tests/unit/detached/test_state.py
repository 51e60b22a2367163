"""One cluster out of a store, to the instance that controls it next, and home again: whole and true."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from dlcloud.analysis.result import RunState
from dlcloud.detached.state import copy_cluster, import_cluster
from dlcloud.model.cluster import ClusterState, Member
from dlcloud.model.errors import StoreError
from dlcloud.store.clusters import FETCH, HAND_OVER, IN_CHARGE, RESIZE, Clusters
from dlcloud.store.database import Database
from dlcloud.store.runs import Runs
from tests.fakes.samples import THEN, cluster, instance, price, run

LINES = b"".join(json.dumps({"record": "step", "step": step}).encode() + b"\n" for step in (1, 2))
LATER = THEN + timedelta(hours=1)


@pytest.fixture
def home(database):
    """A home with a cluster that trains, and another one."""
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
def there(home, tmp_path):
    """The store of the instance that was handed the cluster over."""
    opened = Database(tmp_path / "there.sqlite")
    copy_cluster(home, opened, replace(cluster(), recipe_path="/there/recipe.yaml"))
    yield opened
    opened.close()


@pytest.fixture
def elsewhere(tmp_path):
    opened = Database(tmp_path / "elsewhere.sqlite")
    yield opened
    opened.close()


def member(instance_id, **other):
    return Member(
        instance=instance(instance_id, **other),
        hourly_usd=price().hourly_usd,
        price_source="",
        price_as_of=THEN,
    )


def taken(brought, home):
    return import_cluster(brought, home, "c0ffee", controller_instance_id="i-0001", now=LATER)


def test_only_this_cluster_is_handed_over_without_its_hand_over(there):
    assert [c.recipe_path for c in Clusters(there).all()] == ["/there/recipe.yaml"]
    assert [member.instance.instance_id for member in Clusters(there).members("c0ffee")] == ["i-0001"]
    assert [intent.outcome for intent in Clusters(there).intents("c0ffee", "launch")] == ["fleet-1"]
    assert Clusters(there).last_hand_over("c0ffee") is None
    assert [stored.run_id for stored in Runs(there).all()] == ["sample-1a2b-0001"]


def test_a_run_is_followed_on_from_the_very_byte(there):
    assert Runs(there).stored_bytes("sample-1a2b-0001") == len(LINES)
    assert len(Runs(there).all_lines("sample-1a2b-0001")) == 2


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


def test_a_cluster_is_detached_only_once_its_hand_over_is_complete(database):
    clusters = Clusters(database)
    clusters.add(cluster(state=ClusterState.RUNNING))
    begun = clusters.begin_intent("c0ffee", HAND_OVER, "i-0001", THEN)
    assert clusters.controller_instance_id("c0ffee") is None
    clusters.end_intent(begun, IN_CHARGE, THEN)
    assert clusters.controller_instance_id("c0ffee") == "i-0001"
