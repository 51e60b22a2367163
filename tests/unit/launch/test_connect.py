"""Instances are reached as soon as they answer, and given up as soon as they cannot any more."""

from dataclasses import replace

import pytest

from dlcloud.launch.launcher import await_addresses, connect
from dlcloud.model.errors import CapacityError, HostKeyError, UnreachableError
from dlcloud.model.events import StageDone, StageStarted
from tests.fakes.cloud import Failure
from tests.fakes.machine import FakeMachine
from tests.fakes.samples import RECIPE
from tests.unit.launch.conftest import ONE_TYPE


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


def test_an_instance_that_ends_while_booting_is_named_with_its_reason(world):
    members = world.provision()
    world.cloud.interrupt("i-0002", "Client.VolumeLimitExceeded")
    with pytest.raises(UnreachableError, match=r"i-0002 is shutting-down \(Client.VolumeLimitExceeded\)"):
        addresses(world, members)


def test_a_missing_address_is_an_error_after_five_minutes(world):
    world.cloud.boot_s = 10**6
    with pytest.raises(UnreachableError, match=r"i-0001: no public address .*\ni-0002: no") as caught:
        addresses(world, world.provision())
    assert "subnet" in caught.value.hint
    assert 300 < world.clock.monotonic() < 300 + 5


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


@pytest.mark.parametrize(
    ("market", "words"),
    [("spot", "aws kms create-grant --region us-east-1 "), ("on-demand", "kms:CreateGrant")],
)
def test_an_instance_that_may_not_use_its_key_is_reported_with_the_mend(world, market, words):
    members = world.provision(ONE_TYPE.replace("count: 2", f"count: 2\n  market: {market}"))
    world.cloud.interrupt("i-0001", "Client.InternalError: Client error on launch")
    with pytest.raises(UnreachableError, match="Client error on launch") as caught:
        addresses(world, members)
    assert words in caught.value.hint


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


def test_up_launches_lets_the_caller_in_and_connects(world):
    reached = up(world)
    assert sorted(reached.connections) == world.cloud.alive()
    assert world.cloud.rules == {("sg-c0ffee", "203.0.113.7/32")}
    assert [type(event) for event in world.events if isinstance(event, StageStarted | StageDone)] == (
        [StageStarted, StageDone] * 2
    )


def test_up_of_a_cluster_that_is_up_reaches_the_same_instances(world):
    first = up(world)
    second = up(world)
    assert sorted(first.connections) == sorted(second.connections) == world.cloud.alive()
    assert len(world.cloud.rules) == 1


@pytest.mark.parametrize("method", ["network.create_group", "network.allow_ssh", "instances.find"])
def test_a_refusal_of_any_call_is_raised_as_it_is(world, method):
    world.cloud.failures.append(Failure(method, CapacityError("no")))
    with pytest.raises(CapacityError):
        up(world)


def test_a_running_instance_without_an_address_is_given_up_soon(world):
    world.cloud.boot_s = 10**6
    world.cloud.runs_without_address = True
    with pytest.raises(UnreachableError, match="i-0001: no public address after 30 s"):
        addresses(world, world.provision())
    assert world.clock.monotonic() < 40


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
