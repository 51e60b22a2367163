"""The controller of an elastic run: replacements, control files, messages, reservations, and the end."""

import threading
from dataclasses import replace
from decimal import Decimal

import pytest

from dlcloud.analysis.result import RunState
from dlcloud.elastic.agents import AgentExited
from dlcloud.elastic.controller import MOST_FAILURES
from dlcloud.elastic.size_scaler import ReservationWatch
from dlcloud.launch.launcher import LaunchedMembers
from dlcloud.model.cluster import Member
from dlcloud.model.errors import CloudError, CredentialsError, InstanceError, RemoteCommandError
from dlcloud.model.events import Warned
from dlcloud.model.instance import Market
from dlcloud.planning.reservations import CapacityReservation
from dlcloud.scheduling.scaling import NO_RESERVED, InstanceStage
from dlcloud.trainer.drain import DRAINED
from dlcloud.trainer.records import EventName
from tests.fakes.clock import FakeClock
from tests.fakes.controller import DONE, FIRST, TRAINS, World, ends, event, member, reports, step

NOTICED = [
    reports("i-1", step(1), event(EventName.NOTICE), event(EventName.DRAINED, step=4)),
    ends("i-1", DRAINED),
]
LOST = AgentExited(instance_id="i-0", error=InstanceError("i-0 is gone"))


def follow_to(script, message, **other):
    """Run a world of a script that ends an hour after a message."""
    world = World(script, **other)
    world.emit = lambda event: (world.events.append(event), world.end_after(event, message))
    return world.go()


def test_a_quiet_run_ends_with_its_last_step():
    script = {
        name: [reports(name, step(1)), reports(name, DONE), ends(name)] for name in ("i-0", "i-1", "i-2")
    }
    world = World(script).go()
    assert (world.asked, world.ended, world.workers.drained) == ([], [], [])
    assert any(message.startswith("step 1, loss 1.5, 3 worker(s)") for message in world.messages)


def test_an_interrupted_instance_of_the_first_hour_is_left_to_ec2():
    script = {
        "i-1": NOTICED,
        "i-3": [reports("i-0", DONE), ends("i-0"), ends("i-2"), ends("i-3")],
    }
    world = World(script).go()
    assert (world.asked, world.ended) == ([1], [])
    assert world.workers.forgotten == ["i-1"], "no newcomer copies from an instance that ends"
    assert any("is left to EC2" in message for message in world.messages)


def test_what_ec2_does_not_end_after_its_notice_is_ended():
    world = follow_to({"i-1": NOTICED}, "is left to EC2")
    for thread in threading.enumerate():
        if thread.name == "end i-1":
            thread.join()
    assert world.ended == ["i-1"]


def test_an_older_interrupted_instance_is_replaced_and_ended_once_it_left():
    script = {
        "i-0": [reports("i-0", step(1))],
        "i-1": NOTICED,
        "i-3": [reports("i-3", step(5)), reports("i-0", DONE), ends("i-0"), ends("i-2"), ends("i-3")],
    }
    world = World(script)
    world.clock.advance(2 * 3600)
    world.go()
    assert world.asked == [1]
    assert world.workers.served == ["i-0", "i-1", "i-2", "i-3"]
    assert world.ended == ["i-1"]
    assert any("has left at step 4" in message for message in world.messages)


def test_an_instance_that_is_lost_is_replaced_and_ended_for_certain():
    script = {
        "i-1": [AgentExited(instance_id="i-1", error=InstanceError("i-1 is gone"))],
        "i-3": [reports("i-0", DONE), *(ends(name) for name in ("i-0", "i-2", "i-3"))],
    }
    world = World(script).go()
    assert (world.asked, world.ended) == ([1], ["i-1"])
    assert "i-1 is gone" in world.messages


@pytest.mark.parametrize("answer", [0, CloudError("no quota")])
def test_without_capacity_the_others_go_on_and_it_is_requested_later(answer):
    script = {"i-1": [AgentExited(instance_id="i-1", error=InstanceError("gone"))]}
    world = World(script, answers=[answer])
    clock = world.clock

    def grow(planned, connected):
        grown = World.grow(world, planned, connected)  # raises where it is to
        if len(world.asked) == 2:
            world.workers.post(reports("i-0", DONE))
            for name in ("i-0", "i-2", "i-3"):
                world.workers.post(ends(name))
        return grown

    world.grow = grow
    world.target = lambda: clock.sleep(1.0) or 3  # a second a turn
    world.go()
    assert world.asked == [1, 1]
    assert any("continuing with 2, retrying in 5 s" in message for message in world.messages)


def test_a_smaller_target_drains_the_newest_spot_instance_once():
    script = {
        "i-0": [reports("i-0", step(1))],
        "i-1": [reports("i-1", step(1))],
        "i-2": [reports("i-2", step(1))],
        "i-2 resize": [ends("i-2", DRAINED), reports("i-0", DONE), ends("i-0"), ends("i-1")],
    }
    world = World(script, target=2).go()
    assert world.workers.drained == ["i-2"]
    assert world.asked == []


THREE = TRAINS.replace("{min: 1, max: 3}", "3")


def test_a_target_below_the_minimum_lowers_it_for_all_that_train():
    """A minimum that stayed where it was would stop the training for good, while it bills."""
    script = {name: [reports(name, step(1))] for name in ("i-0", "i-1", "i-2")}
    world, turns, informed = World(script, text=THREE), [], threading.Event()
    clock, write_control = world.clock, world.workers.write_control

    def listen(member):
        answer = write_control(member)
        if {("i-0", 1), ("i-1", 1), ("i-2", 1)} <= set(world.workers.minimums):
            informed.set()
        return answer

    def target():
        if threading.current_thread() is not threading.main_thread():
            return 1
        turns.append(clock.sleep(1.0))
        if len(turns) == 8:
            assert informed.wait(60), world.workers.minimums
            for name in ("i-1", "i-2"):
                world.workers.post(ends(name, DRAINED))
            world.workers.post(reports("i-0", DONE))
            world.workers.post(ends("i-0"))
        return 3 if len(turns) < 5 else 1

    world.workers.write_control, world.target = listen, target
    world.go()
    assert {minimum for _, minimum in world.workers.minimums} == {1}
    assert sorted(world.workers.drained) == ["i-1", "i-2"]


def test_while_workers_wait_the_progress_says_for_what_and_warns_after_the_first_step():
    waits = reports("i-0", event(EventName.HOLD) | {"cause": "1 of 2 instances needed"})
    done = [ends("i-0"), ends("i-1"), ends("i-2")]
    world = World({"i-0": [reports("i-0", step(4)), waits, reports("i-0", DONE)], "i-2": done}).go()
    (warning,) = [event for event in world.events if event.message == "waiting: 1 of 2 instances needed"]
    assert isinstance(warning, Warned)
    assert "step 4, loss 1.5, waiting: 1 of 2 instances needed" in world.messages
    at_first = World({"i-0": [waits, reports("i-0", DONE)], "i-2": done}).go()
    assert not [event for event in at_first.events if isinstance(event, Warned)]


def taken(number, generation=0, size=3):
    return {**step(number, size), "generation": generation}


STARTED = event(EventName.LIGHTHOUSE_STARTED)


def test_a_new_instance_takes_over_from_a_lost_coordinator():
    """The lost one had committed a step that no other had: it is taken again."""
    done = [reports("i-3", DONE), ends("i-1"), ends("i-2"), ends("i-3")]
    script = {
        "i-0": [reports("i-0", taken(8))],
        "i-1": [reports("i-1", taken(7))],
        "i-2": [reports("i-2", taken(6)), LOST],
        "i-3": [reports("i-3", STARTED)],
        "i-1 informed i-3 7": [reports("i-1", taken(8, 1))],
        "i-1 informed i-3 0": done,
    }
    world = World(script, launches=Market.ON_DEMAND).go()
    assert (world.asked, world.ended) == ([1], ["i-0"])
    assert {("i-1", "i-3", 7), ("i-2", "i-3", 7), ("i-3", "i-3", 7)} <= set(world.workers.informed)
    coordinator = world.registry.coordinator
    assert (coordinator.generation, coordinator.step, coordinator.least) == (1, 8, 0)
    assert any("2 workers hold the state of step 7 of 8" in message for message in world.messages)
    assert "the training continues from step 7: 1 step(s) are taken again" in world.messages
    assert {"i-1", "i-2"} <= set(world.workers.reminded), "or they would end themselves without a coordinator"


def test_a_remaining_on_demand_instance_takes_over_before_others_know():
    members = [*FIRST[:2], member(2, Market.ON_DEMAND)]
    script = {
        "i-1": [reports("i-1", taken(7))],
        "i-2": [reports("i-2", taken(7)), LOST],
        "i-2 informed i-2 7": [reports("i-2", STARTED)],
        "i-1 informed i-2 7": [reports("i-1", taken(8, 1)), reports("i-2", DONE), ends("i-1"), ends("i-2")],
    }
    world = World(script, target=2).go(members)
    assert [name for name, *_ in world.workers.informed][:1] == ["i-2"]
    assert (world.asked, world.ended) == ([], ["i-0"])
    assert any("no step is lost" in message for message in world.messages)


def test_a_survivor_lost_before_training_resumes_is_not_awaited():
    members = [*FIRST[:2], member(2, Market.ON_DEMAND)]
    script = {
        "i-1": [reports("i-1", taken(9))],
        "i-2": [reports("i-2", taken(7)), LOST],
        "i-2 informed i-2 9": [
            reports("i-2", STARTED),
            AgentExited(instance_id="i-1", error=InstanceError("i-1 is gone, too")),
        ],
        "i-2 informed i-2 7": [reports("i-2", taken(8, 1), DONE), ends("i-2")],
    }
    world = World(script, answers=[0] * 99).go(members)
    assert ("i-2", "i-2", 7) in world.workers.informed


def test_a_run_without_a_holder_of_its_state_is_lost():
    world = World({"i-0": [reports("i-0", taken(8)), LOST]})
    with pytest.raises(InstanceError, match="the 8 steps are lost"):
        world.go()


def test_a_coordinator_that_cannot_be_ended_is_not_replaced_yet():
    """Two coordinators would be two runs."""
    script = {"i-1": [reports("i-1", taken(7)), LOST]}
    world, refusals = World(script), [CloudError("no network")] * 3

    def end(members):
        assert world.asked == []
        if refusals:
            raise refusals.pop()
        world.ended.append(members[0].instance.instance_id)

    def grow(planned, _known):
        world.asked.append(planned.max_count)
        world.workers.post(reports("i-1", DONE))
        world.workers.post(ends("i-1"))
        world.workers.post(ends("i-2"))
        return LaunchedMembers(members=[], connections={})

    world.end, world.grow = end, grow
    world.go()
    assert (world.ended, world.asked) == (["i-0"], [1])


def denial():
    error = CloudError("the launch is not authorized")
    error.is_final = True
    return error


def test_a_denied_request_is_not_repeated_and_its_reason_is_shown():
    script = {"i-0": [reports("i-0", step(1))], "i-1": NOTICED}
    refused = "no more instances at this size: the launch is not authorized"
    world = follow_to(script, refused, answers=[denial()])
    assert world.asked == [1]


def test_a_denied_request_for_the_only_coordinator_ends_the_run():
    script = {"i-1": [reports("i-1", taken(7)), LOST]}
    world = World(script, answers=[denial()])
    with pytest.raises(CloudError, match="not authorized"):
        world.go()


def exited(name, error):
    return AgentExited(instance_id=name, error=error)


@pytest.mark.parametrize(
    ("ending", "error", "message"),
    [
        (ends("i-0", 1, RunState.FAILED), RemoteCommandError, "sample failed on i-0"),
        (exited("i-0", RemoteCommandError("no such image")), RemoteCommandError, "no such image"),
        (exited("i-0", CredentialsError("denied")), CredentialsError, "denied"),
        (exited("i-1", ZeroDivisionError("a bug in a thread")), ZeroDivisionError, "a bug in a thread"),
    ],
)
def test_what_fails_on_the_coordinator_at_first_and_a_bug_end_the_run(ending, error, message):
    world = World({ending.instance_id: [ending]})
    with pytest.raises(error, match=message):
        world.go()
    assert world.asked == []


def test_a_later_controller_informs_the_workers_of_the_coordinator():
    """The coordinator was lost without a controller; `up` has launched another before it trains on."""
    members = [member(1), member(2), member(3, Market.ON_DEMAND)]
    script = {
        "i-3": [reports("i-3", STARTED)],
        "i-2 informed i-3 7": [reports("i-2", taken(8, 3), DONE), *(ends(f"i-{n}") for n in (1, 2, 3))],
    }
    world = World(script, stored={"i-1": [taken(6, 2)], "i-2": [taken(7, 2)]}).go(members)
    coordinator = world.registry.coordinator
    assert (coordinator.instance_id, coordinator.generation, coordinator.step) == ("i-3", 3, 7)
    assert ("i-1", "i-3", 7) in world.workers.informed


def test_a_program_that_fails_wherever_it_runs_ends_the_run():
    failing = {f"i-{n}": [ends(f"i-{n}", 1, RunState.FAILED)] for n in range(1, 9)}
    world = World(failing)
    with pytest.raises(RemoteCommandError, match="sample failed on"):
        world.go()
    assert (
        len([message for message in world.messages if "replacing the instance" in message])
        == MOST_FAILURES - 1
    )


def test_all_spot_is_refused():
    with pytest.raises(InstanceError, match="no on-demand instance"):
        World({}).go([member(1)])


def test_a_later_controller_knows_the_requests_to_an_earlier_one():
    script = {"i-0": [reports("i-0", DONE), ends("i-0"), ends("i-1"), ends("i-2")]}
    world = World(script, stored={"i-1": [step(7), event(EventName.NOTICE)], "i-2": [step(7)]})
    world.grow = lambda planned, _known: (
        world.asked.append(planned.max_count) or LaunchedMembers(members=[], connections={})
    )
    world.go()
    assert world.registry.step == 7
    assert world.registry.state("i-2") is InstanceStage.GONE


RESERVED = "cr-0000000000000000a"


class FakeReservations:
    """Reservations with so many idle instances, of which some are to stay free."""

    def __init__(self, idle, keep_free=0, error=None):
        self.idle, self.keep_free, self.error = idle, keep_free, error

    def ask(self):
        if self.error:
            raise self.error
        values = {"instance_type": "c7i.xlarge", "zone": "us-east-1a", "total": 9, "available": self.idle}
        return [CapacityReservation(reservation_id=RESERVED, **values)]


def reserved_member(number):
    made = replace(member(number, Market.ON_DEMAND).instance, reservation_id=RESERVED)
    return Member(instance=made, hourly_usd=Decimal(0))


def watch_of(reservations, *, clock=None, emit=print, start):
    return ReservationWatch(
        ask=reservations.ask,
        keep_free=lambda: reservations.keep_free,
        clock=clock or FakeClock(),
        emit=emit,
        start=start,
    )


def watched(script, reservations, **other):
    world = World(script, **other)
    world.scaler.reserved = watch_of(
        reservations, clock=world.clock, emit=world.events.append, start=lambda work: work()
    )
    return world


def test_reserved_instances_go_back_while_another_user_finds_too_few_idle():
    team = [member(0, Market.ON_DEMAND), member(1), reserved_member(2)]
    script = {name: [reports(name, step(1))] for name in ("i-0", "i-1", "i-2")}
    script["i-2 resize"] = [reports("i-2", event(EventName.DRAINED, step=2)), ends("i-2", DRAINED)]
    script["i-3"] = [reports("i-0", DONE), *(ends(name) for name in ("i-0", "i-1", "i-3"))]
    world = watched(script, FakeReservations(idle=0, keep_free=1)).go(team)
    assert world.workers.drained == ["i-2"]
    assert f"leaves: another user needs an instance of {RESERVED}" in world.messages
    assert world.asked == [1]


def test_reservations_that_cannot_be_listed_are_reported_once():
    events, clock, denied = [], FakeClock(), FakeReservations(idle=1, error=CloudError("listing: denied"))
    watch = watch_of(denied, clock=clock, emit=events.append, start=lambda work: work())
    for _ in range(3):
        assert watch.assess([]) == NO_RESERVED
        clock.advance(60)
    assert [type(event) for event in events] == [Warned]


def test_a_listing_that_breaks_off_is_made_again():
    clock, asked = FakeClock(), []
    watch = watch_of(FakeReservations(idle=2), clock=clock, start=asked.append)
    watch.keep_free = {}.popitem
    watch.assess([])
    with pytest.raises(KeyError):
        asked[0]()
    watch.keep_free = lambda: 0
    clock.advance(60)
    watch.assess([])
    asked[1]()
    assert watch.assess([]).idle == 2


def test_what_was_listed_before_a_launch_does_not_count_after_it():
    reservations, asked = FakeReservations(idle=2), []
    watch = watch_of(reservations, start=asked.append)
    assert watch.assess([]) == NO_RESERVED  # listed from a thread
    asked[0]()
    assert watch.assess([]).idle == 2
    watch.forget()
    reservations.idle = 0
    assert watch.assess([]).idle == 0
    asked[1]()
    assert watch.assess([]).idle == 0


def test_instances_go_back_also_while_reservations_are_listed_again():
    asked = []
    watch = watch_of(FakeReservations(idle=0, keep_free=2), start=asked.append)
    watch.assess([])
    asked[0]()
    assert watch.assess([]).give_back == 2
    watch.forget()
    assert watch.assess([]).give_back == 2


def test_replacements_of_reserved_instances_that_go_back_are_kept():
    team = [reserved_member(0), reserved_member(1)]
    script = {name: [reports(name, step(1))] for name in ("i-0", "i-1")}
    script["i-4"] = [reports("i-3", step(2)), reports("i-4", step(2))]
    done = [reports("i-3", DONE), *(ends(name) for name in ("i-0", "i-1", "i-3", "i-4"))]
    script["i-0 resize"] = done
    text = TRAINS.replace("max: 3", "max: 2")
    world = watched(script, FakeReservations(0, keep_free=2), target=2, text=text)
    new = [member(3, Market.ON_DEMAND), member(4, Market.ON_DEMAND)]

    def grow(planned, _):
        world.asked.append((planned.max_count, planned.rounds))
        return LaunchedMembers(members=new, connections={})

    world.grow = grow
    world.go(team)
    assert (world.asked, sorted(world.workers.drained)) == ([(2, (Market.ON_DEMAND,))], ["i-0", "i-1"])
