"""The launcher of one cluster: its plan, its launch, how long it waits for instances, and its end."""

from dataclasses import replace

import pytest

from dlcloud.analysis.result import RunState
from dlcloud.launch.launcher import await_addresses, connect
from dlcloud.model.cluster import ClusterState
from dlcloud.model.errors import CapacityError, HostKeyError, UnreachableError
from dlcloud.model.events import StageDone, StageStarted, Warned
from dlcloud.model.instance import Market
from dlcloud.store.clusters import RESIZE
from tests.fakes.cloud import Failure
from tests.fakes.machine import FakeMachine
from tests.fakes.samples import RECIPE, price, recipe, run
from tests.unit.launch.conftest import ONE_TYPE


def plan(world, **options):
    world.cloud.known_prices = [price()]
    return world.launcher.plan(recipe(ONE_TYPE), **options)


def test_a_plan_lists_the_instances_of_a_cluster_that_is_up_once(world):
    assert plan(world).max_count == 2
    assert world.cloud.calls["instances.find"] == 0
    assert not world.cloud.requests
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


def or_raise(found, lost):
    """Return what was found, or raise one error for the instances that are lost."""
    if not lost:
        return found
    first = next(iter(lost.values()))
    raise type(first)("\n".join(error.message for error in lost.values()), first.hint)


def addresses(world, members):
    lost = {}
    return or_raise(await_addresses(world.launcher, members, lost), lost)


def connected(world, members):
    lost = {}
    return or_raise(connect(world.launcher, members, lost), lost)


KEY_DENIED = "Client.InternalError: Client error on launch"


@pytest.mark.parametrize(
    ("market", "reason", "hint"),
    [
        ("on-demand", "Client.VolumeLimitExceeded", ""),
        ("on-demand", KEY_DENIED, "kms:CreateGrant"),
        ("spot", KEY_DENIED, "aws kms create-grant --region us-east-1 "),
    ],
)
def test_an_instance_that_ends_while_booting_is_named_with_its_reason(world, market, reason, hint):
    members = world.provision(ONE_TYPE.replace("count: 2", f"count: 2\n  market: {market}"))
    world.cloud.interrupt("i-0002", reason)
    with pytest.raises(UnreachableError) as caught:
        addresses(world, members)
    assert f"i-0002 is shutting-down ({reason})" in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("runs", "message", "least_s"),
    [(False, "no public address", 300), (True, "no public address after 30 s", 30)],
)
def test_a_missing_address_is_an_error_after_five_minutes_and_soon_where_it_runs(
    world, runs, message, least_s
):
    world.cloud.boot_s, world.cloud.runs_without_address = 10**6, runs
    with pytest.raises(UnreachableError, match=rf"i-0001: {message}.*\ni-0002: no") as caught:
        addresses(world, world.provision())
    assert "subnet" in caught.value.hint
    assert least_s <= world.clock.monotonic() < least_s + 10


def test_metal_types_are_given_the_time_they_take_to_boot(world):
    world.cloud.boot_s = 790
    members = [
        replace(member, instance=replace(member.instance, instance_type="c7i.metal-24xl"))
        for member in world.provision()
    ]
    assert all(member.instance.host for member in addresses(world, members))
    assert 790 <= world.clock.monotonic() < 800


def test_an_instance_terminated_while_connecting_is_given_up_soon(world):
    members = addresses(world, world.provision())
    world.dial.machines["i-0001"] = FakeMachine("i-0001", gone=True)
    world.cloud.interrupt("i-0001")
    with pytest.raises(UnreachableError, match=r"ended while it was booting: i-0001"):
        connected(world, members)
    assert world.clock.monotonic() < 60


def test_a_host_key_that_is_not_proven_is_an_error_at_once(world):
    members = addresses(world, world.provision())
    world.dial.machines["i-0002"] = FakeMachine("i-0002", refuses_login=HostKeyError("i-0002: wrong proof"))
    before = world.clock.monotonic()
    with pytest.raises(Exception, match="wrong proof") as caught:
        connected(world, members)
    assert caught.value.exit_code in {4, 5}
    assert world.clock.monotonic() == before


def up(world, text=RECIPE):
    return world.launcher.launch(world.plan(text))


def test_up_launches_lets_the_caller_in_and_connects_and_the_next_reaches_the_same(world):
    reached = up(world)
    assert sorted(reached.connections) == world.cloud.alive()
    assert [type(event) for event in world.events if isinstance(event, StageStarted | StageDone)] == (
        [StageStarted, StageDone] * 2
    )
    assert sorted(up(world).connections) == sorted(reached.connections) == world.cloud.alive()
    assert world.cloud.rules == {("sg-c0ffee", "203.0.113.7/32")}


@pytest.mark.parametrize("method", ["network.create_group", "network.allow_ssh", "instances.find"])
def test_a_refusal_of_any_call_is_raised_as_it_is(world, method):
    world.cloud.failures.append(Failure(method, CapacityError("no")))
    with pytest.raises(CapacityError):
        up(world)


def test_a_silent_instance_is_given_up_after_five_minutes_with_the_price_of_either(world):
    members = addresses(world, world.provision())
    world.dial.machines["i-0002"] = FakeMachine("i-0002", gone=True)
    with pytest.raises(UnreachableError) as caught:
        connected(world, members)
    assert "given up after 300 s (0.015 USD so far; to wait for a boot as slow as" in caught.value.message
    assert "0.028 USD more, another instance 0.003 USD)" in caught.value.message
    assert "i-0002" in caught.value.message
    assert 300 <= world.clock.monotonic() < 300 + 60


def test_where_ec2_reaches_every_instance_and_this_machine_none_nobody_waits_on(world):
    members = addresses(world, world.provision())
    for name in ("i-0001", "i-0002"):
        world.dial.machines[name] = FakeMachine(name, answers_from=10**6, dropped=True)
    world.cloud.healthy = {"i-0001", "i-0002"}
    with pytest.raises(UnreachableError, match="in vain") as caught:
        connected(world, members)
    assert "--cidr" in caught.value.hint
    assert "session-manager" in caught.value.hint
    assert world.clock.monotonic() < 60


@pytest.mark.parametrize("healthy", [set(), {"i-0001"}])
def test_an_instance_that_still_boots_is_waited_for_although_it_is_silent(world, healthy):
    members = addresses(world, world.provision())
    for name in ("i-0001", "i-0002"):
        world.dial.machines[name] = FakeMachine(name, answers_from=4, dropped=True)
    world.cloud.healthy = healthy
    assert sorted(connected(world, members)) == ["i-0001", "i-0002"]
