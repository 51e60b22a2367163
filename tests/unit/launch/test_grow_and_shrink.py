"""A cluster grows and shrinks while its other instances go on, whichever command is killed meanwhile."""

import pytest

from dlcloud.launch.managed import CONSISTENCY_WINDOW_S
from dlcloud.launch.setup import PREPARED, prepare_all
from dlcloud.model.errors import CloudError, HostKeyError, RemoteCommandError
from dlcloud.model.instance import Market
from dlcloud.planning.resize import decide_size
from dlcloud.recipe.workload import Setup
from tests.fakes.cloud import Failure, Killed
from tests.fakes.machine import FakeMachine
from tests.fakes.samples import RECIPE, open_intents, price, recipe
from tests.unit.launch.conftest import ONE_TYPE

A, B = "us-east-1a", "us-east-1b"


def of_size(count, text=ONE_TYPE):
    return text.replace("count: 2", f"count: {count}")


def grown(world, count, text=ONE_TYPE, reached=()):
    return world.launcher.grow(world.plan(of_size(count, text)), connected=reached)


def shrunk(world, count):
    """Shrink as a command does that begins now."""
    return world.launcher.shrink(decide_size(world.launcher.reconcile(consistent=True), count).end)


def ids(members):
    return sorted(member.instance.instance_id for member in members)


def test_only_newcomers_are_launched_and_dialled(world):
    world.provision()
    result = grown(world, 4, reached={"i-0001", "i-0002"})
    assert ids(result.members) == world.cloud.alive() == ["i-0001", "i-0002", "i-0003", "i-0004"]
    assert sorted(result.connections) == ["i-0003", "i-0004"]
    assert {endpoint.instance_id for endpoint, _ in world.dial.dialled} == {"i-0003", "i-0004"}
    assert (world.cloud.requests[-1].max_count, len(set(world.tokens))) == (2, 2)


def test_no_capacity_at_all_is_no_error_of_grow(world):
    world.provision()
    world.cloud.pools |= {("c7i.xlarge", zone, Market.ON_DEMAND): 0 for zone in (A, B)}
    result = grown(world, 3)
    assert ids(result.members) == ["i-0001", "i-0002"]
    assert result.refusals


@pytest.mark.parametrize("error", [HostKeyError("wrong proof"), None])
def test_a_new_instance_that_is_unusable_is_ended_the_others_are_used(world, error):
    world.provision()
    world.dial.machines["i-0003"] = FakeMachine("i-0003", refuses_login=error, gone=error is None)
    result = grown(world, 4, reached={"i-0001", "i-0002"})
    assert ids(result.members) == world.cloud.alive() == ["i-0001", "i-0002", "i-0004"]
    assert list(result.lost) == ["i-0003"]
    (gone,) = [m for m in world.clusters.members("c0ffee") if m.instance.instance_id == "i-0003"]
    assert gone.ended_at


def test_a_new_instance_lost_at_boot_does_not_stop_the_others(world):
    world.provision()
    world.cloud.boot_s = 30
    failures = iter([None])
    emit = world.events.append

    def interrupting(event):
        emit(event)
        if len(world.cloud.alive()) == 4 and next(failures, 1) is None:
            world.cloud.interrupt("i-0004")

    world.events = type("Emit", (), {"append": staticmethod(interrupting)})
    result = grown(world, 4, reached={"i-0001", "i-0002"})
    assert ids(result.members) == ["i-0001", "i-0002", "i-0003"]
    assert "i-0004" in result.lost


def test_one_that_was_there_before_is_never_ended_for_not_answering(world):
    world.provision()
    world.dial.machines["i-0001"] = FakeMachine("i-0001", gone=True)
    result = grown(world, 3)
    assert list(result.lost) == ["i-0001"]
    assert "i-0001" in world.cloud.alive()


def test_shrink_ends_just_these_and_remembers_when(world):
    world.provision(of_size(4))
    world.clock.advance(100)
    members = shrunk(world, 2)
    assert ids(members) == ["i-0003", "i-0004"]
    assert world.cloud.alive() == ["i-0001", "i-0002"]
    assert all(member.ended_at == world.clock.now() for member in members)
    assert shrunk(world, 2) == []
    world.launcher.launch(world.plan(of_size(1)))
    assert world.cloud.alive() == ["i-0001"], "up ends what a shrink left too many"


@pytest.mark.parametrize("method", ["instances.terminate", "instances.find"])
@pytest.mark.parametrize("after", [False, True])
def test_a_shrink_that_was_killed_is_finished_and_no_more_end(world, method, after):
    world.provision(of_size(4))
    number = world.cloud.calls[method] + (2 if method == "instances.find" else 1)
    world.cloud.failures.append(Failure(method, Killed(), number, after=after))
    with pytest.raises(Killed):
        shrunk(world, 2)
    assert len(world.launcher.members()) == 2
    shrunk(world, 2)
    assert world.cloud.alive() == ["i-0001", "i-0002"]
    assert open_intents(world.clusters, "c0ffee") == []


@pytest.mark.parametrize(("text", "method"), [(ONE_TYPE, "instances.launch"), (RECIPE, "fleets.launch")])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("then", [3, 4, 5])
def test_a_grow_that_was_killed_is_finished_by_the_next(world, text, method, after, then):
    world.provision(text)
    world.cloud.lag_s = 6.0
    number = world.cloud.calls[method] + 1
    world.cloud.failures.append(Failure(method, Killed(), number, after=after))
    with pytest.raises(Killed):
        grown(world, 4, text)
    result = grown(world, then, text)
    if then < 4:
        shrunk(world, then)
    assert len(world.cloud.alive()) == then
    assert set(world.cloud.alive()) <= set(ids(result.members))
    assert open_intents(world.clusters, "c0ffee") == []


def test_a_smaller_size_after_a_killed_grow_waits_for_late_instances(world):
    world.provision()
    world.cloud.lag_s = CONSISTENCY_WINDOW_S - 1
    world.cloud.failures.append(Failure("instances.launch", Killed(), 2, after=True))
    with pytest.raises(Killed):
        grown(world, 4)
    shrunk(world, 2)
    assert world.cloud.alive() == ["i-0001", "i-0002"]
    assert len(world.cloud.requests) == 2


def test_a_shrink_ends_instances_that_are_not_listed_yet(world):
    world.cloud.lag_s = 8.0
    members = world.provision()
    world.launcher.shrink(members[:1])
    assert world.cloud.alive() == [members[1].instance.instance_id]


@pytest.mark.parametrize("answered", [True, False])
def test_a_request_that_failed_stays_open_and_is_repeated_only_without_an_answer(world, answered):
    world.provision()
    error = CloudError("no")
    error.answered = answered
    world.cloud.failures.append(Failure("instances.launch", error, 2, after=not answered))
    with pytest.raises(CloudError):
        grown(world, 3)
    assert open_intents(world.clusters, "c0ffee") == ([] if answered else ["launch"])
    assert len(grown(world, 3).members) == len(world.cloud.alive()) == 3


def test_what_is_there_takes_its_part_of_the_budget(world):
    members = world.provision()
    there = world.launcher.existing_capacity(recipe(), members, [price()])
    assert (there.count, there.on_demand) == (2, 2)
    assert 1.46 < there.committed_usd < 1.52  # 2 x 4 h x 0.1785, two disks, two addresses


def test_a_set_up_is_done_once_and_only_on_those_that_lack_it(world):
    members = world.provision()
    connections = {
        name: world.dial.dial(m.instance.endpoint("ubuntu"))
        for name, m in zip(ids(members), members, strict=True)
    }
    first, second = (world.dial.machines[name] for name in ids(members))
    setup = Setup(commands="echo hello")

    def prepare():
        return prepare_all(connections, setup, lambda _: "", clock=world.clock, emit=world.events.append)

    assert prepare() == {}
    first.answers[PREPARED] = first.files[PREPARED][0]
    second.failing["setup.sh"] = (1, b"no such package")
    failed = prepare()
    assert [type(error) for error in failed.values()] == [RemoteCommandError]
    assert list(failed) == [second.instance_id]
    assert sum("setup.sh" in command for command in first.commands) == 1
