"""Which cluster of this home a name means, and which instance controls it."""

import pytest

from dlcloud.model.cluster import ClusterState
from dlcloud.store.clusters import HAND_OVER, IN_CHARGE, Clusters
from dlcloud.store.home import Paths, Store
from dlcloud.store.runs import Runs
from tests.fakes.samples import THEN, cluster, run


@pytest.fixture
def store(database, tmp_path):
    return Store(clusters=Clusters(database), runs=Runs(database), paths=Paths(tmp_path))


@pytest.mark.parametrize(
    "name", ["", "sample-1a2b", "c0ffee", "samp", "sample-1a2b-0123abcd", "sample-1a2b-0001", "i-0001"]
)
def test_a_cluster_is_named_by_itself_its_runs_and_instances(store, name):
    store.clusters.add(cluster())
    store.runs.add(run())
    assert store.find_cluster(name).cluster_id == "c0ffee"


def test_a_name_that_several_begin_with_means_none(store):
    store.clusters.add(cluster())
    store.clusters.add(cluster("sample-3c4d", cluster_id="facade"))
    assert [store.find_cluster(name) for name in ("", "samp", "other")] == [None, None, None]


def test_a_cluster_is_controlled_from_here_until_its_instance_is_in_charge(store):
    store.clusters.add(cluster())
    intent = store.clusters.begin_intent("c0ffee", HAND_OVER, "i-0001", THEN)
    assert store.controller_of(cluster()) is None
    store.clusters.end_intent(intent, IN_CHARGE, THEN)
    assert store.controller_of(cluster()) == "i-0001"
    assert store.controller_of(cluster(state=ClusterState.DOWN)) is None
