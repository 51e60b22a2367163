"""The launcher of one cluster: its plan, its launch and its end."""

from dlcloud.core.cluster import ClusterState
from dlcloud.core.result import RunState
from dlcloud.store.clusters import RESIZE
from tests.fakes.samples import price, recipe, run
from tests.unit.launch.conftest import ONE_TYPE


def plan(world, **options):
    world.cloud.known_prices = [price()]
    return world.launcher.plan(recipe(ONE_TYPE), **options)


def test_a_plan_of_a_new_cluster_lists_no_instances(world):
    assert plan(world).max_count == 2
    assert world.cloud.calls["instances"] == 0
    assert not world.cloud.requests


def test_a_plan_of_a_cluster_that_is_up_lists_its_instances_once(world):
    world.provision()
    listed = world.cloud.calls["instances"]
    assert plan(world).worst_case_usd > 0
    assert world.cloud.calls["instances"] == listed + 1
    plan(world, members=world.launcher.members())
    assert world.cloud.calls["instances"] == listed + 2


def test_a_plan_is_for_the_size_of_the_last_resize(world):
    world.clusters.begin_intent("c0ffee", RESIZE, "3", world.clock.now())
    assert plan(world).max_count == 3
    assert plan(world, size=1).max_count == 1


def test_a_launched_cluster_is_running(world):
    launched = world.launcher.launch(world.plan())
    assert world.state is ClusterState.RUNNING
    assert sorted(launched.connections) == [member.instance.instance_id for member in launched.members]


def test_destroy_ends_unfinished_runs_and_removes_the_keys(world):
    world.provision()
    world.store.runs.add(run(state=RunState.RUNNING, ended_at=None))
    world.launcher.destroy()
    assert world.state is ClusterState.DOWN
    assert [stored.state for stored in world.store.runs.of_cluster("c0ffee")] == [RunState.LOST]
    assert not world.paths.key("c0ffee").exists()
