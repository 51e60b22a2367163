"""The launcher of one cluster: its plan, its launch and its end."""

from dataclasses import replace

import pytest

from dlcloud.analysis.result import RunState
from dlcloud.model.cluster import ClusterState
from dlcloud.model.errors import HostKeyError, UnreachableError
from dlcloud.model.events import Warned
from dlcloud.model.instance import Market
from dlcloud.store.clusters import RESIZE
from tests.fakes.machine import FakeMachine
from tests.fakes.samples import price, recipe, run
from tests.unit.launch.conftest import ONE_TYPE


def plan(world, **options):
    world.cloud.known_prices = [price()]
    return world.launcher.plan(recipe(ONE_TYPE), **options)


def test_a_plan_of_a_new_cluster_lists_no_instances(world):
    assert plan(world).max_count == 2
    assert world.cloud.calls["instances.find"] == 0
    assert not world.cloud.requests


def test_a_plan_of_a_cluster_that_is_up_lists_its_instances_once(world):
    world.provision()
    listed = world.cloud.calls["instances.find"]
    assert plan(world).worst_case_usd > 0
    assert world.cloud.calls["instances.find"] == listed + 1
    plan(world, members=world.launcher.members())
    assert world.cloud.calls["instances.find"] == listed + 2


def test_a_plan_is_for_the_size_of_the_last_resize(world):
    world.clusters.begin_intent("c0ffee", RESIZE, "3", world.clock.now())
    assert plan(world).max_count == 3
    assert plan(world, size=1).max_count == 1


def test_destroy_ends_unfinished_runs_and_removes_the_keys(world):
    world.provision()
    world.store.runs.add(run(state=RunState.RUNNING, ended_at=None))
    world.launcher.destroy()
    assert world.state is ClusterState.DOWN
    assert [stored.state for stored in world.store.runs.of_cluster("c0ffee")] == [RunState.LOST]
    assert not world.paths.key("c0ffee").exists()


def test_a_disk_that_the_image_enlarges_is_in_the_price_of_the_same_command(world):
    launcher, plan = world.launcher, world.plan()
    machine = replace(plan.machine, disk_gib=75)
    launcher.launch(replace(plan, machine=machine))
    assert launcher.cluster.disk_gib == world.clusters.find("c0ffee").disk_gib == 75


def test_the_first_of_several_pools_is_not_named_as_what_is_launched(world):
    world.cloud.known_prices = [price(), price("c6i.xlarge")]
    text = ONE_TYPE.replace("[c7i.xlarge]", "[c7i.xlarge, c6i.xlarge]")
    world.launcher.launch(world.launcher.plan(recipe(text)))
    world.launcher.destroy()
    messages = [getattr(event, "message", "") for event in world.events]
    assert "launching 2 instance(s), of 2 pools c7i.xlarge (on-demand) first" in messages


FLEXIBLE = ONE_TYPE.replace("count: 2", "count: {min: 1, max: 3}")
WRONG_PROOF = HostKeyError("i-0002: wrong proof")


def broken(world, *names, refuses_login=None):
    for name in names:
        world.dial.machines[name] = FakeMachine(name, gone=refuses_login is None, refuses_login=refuses_login)


def launched(world, text=FLEXIBLE):
    result = world.launcher.launch(world.plan(text))
    assert sorted(result.connections) == sorted(m.instance.instance_id for m in result.members)
    return result


@pytest.mark.parametrize("reason", [None, WRONG_PROOF])
@pytest.mark.parametrize("text", [FLEXIBLE, FLEXIBLE.replace("min: 1", "min: 3")])
def test_an_instance_that_cannot_be_used_is_replaced(world, reason, text):
    broken(world, "i-0002", refuses_login=reason)
    result = launched(world, text)
    assert sorted(result.connections) == world.cloud.alive() == ["i-0001", "i-0003", "i-0004"]
    assert list(result.lost) == ["i-0002"]
    (warning,) = [event for event in world.events if isinstance(event, Warned)]
    assert warning.instance_id == "i-0002"
    assert "giving up on this instance: i-0002: " in warning.message


def test_the_replacement_lives_for_what_the_lost_instance_had_left(world):
    broken(world, "i-0002")
    launched(world)
    first, second = (request.user_data for request in world.cloud.requests)
    assert '--on-active="240min"' in first
    assert "--on-active=" in second
    assert '--on-active="240min"' not in second
    worst = world.launcher.existing_capacity(recipe(FLEXIBLE), world.launcher.members(), [price()])
    assert worst.committed_usd <= world.plan(FLEXIBLE, price()).worst_case_usd


def test_no_capacity_for_a_replacement_leaves_those_that_answer(world):
    broken(world, "i-0002")
    world.cloud.pools |= {("c7i.xlarge", zone, Market.ON_DEMAND): 3 for zone in ("us-east-1a",)}
    world.cloud.pools |= {("c7i.xlarge", "us-east-1b", Market.ON_DEMAND): 0}
    assert sorted(launched(world).connections) == world.cloud.alive() == ["i-0001", "i-0003"]


def test_fewer_than_the_minimum_after_the_replacement_are_refused(world):
    broken(world, "i-0002", "i-0004")
    with pytest.raises(UnreachableError, match=r"2 instance\(s\) can be used, minimum is 3:\n  i-0002: "):
        launched(world, FLEXIBLE.replace("min: 1", "min: 3"))
    assert world.cloud.alive() == ["i-0001", "i-0003"]


def test_nothing_is_replaced_where_no_instance_answers(world):
    broken(world, "i-0001", "i-0002", "i-0003")
    with pytest.raises(UnreachableError, match=r"0 instance\(s\) can be used, minimum is 1"):
        launched(world)
    assert len(world.cloud.requests) == 1


def test_an_unreachable_instance_of_a_kept_cluster_stays_up(world):
    launched(world)
    world.clusters.set_state("c0ffee", ClusterState.READY)
    world.cluster = world.clusters.find("c0ffee")
    broken(world, "i-0002")
    assert sorted(launched(world).connections) == ["i-0001", "i-0003"]
    assert world.cloud.alive() == ["i-0001", "i-0002", "i-0003"]


def test_every_network_that_was_named_may_reach_the_instances(world):
    networks = ("192.0.2.0/24", "203.0.113.9/32")
    plan = world.launcher.plan(recipe(FLEXIBLE), cidrs=networks)
    world.launcher.launch(plan)
    assert {network for _, network in world.cloud.rules} == set(networks)
