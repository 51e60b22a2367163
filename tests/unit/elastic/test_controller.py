"""The controller of an elastic run: replacements, control files, messages, and the end."""

import threading
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from dlcloud.core.cluster import Member
from dlcloud.core.elastic import WorkerState
from dlcloud.core.errors import CloudError, CredentialsError, InstanceError, RemoteCommandError
from dlcloud.core.events import Warned
from dlcloud.core.instance import Market
from dlcloud.core.reservations import CapacityReservation
from dlcloud.core.reserved_workers import NO_RESERVED
from dlcloud.core.result import RunState
from dlcloud.elastic.controller import MOST_FAILURES, Controller
from dlcloud.elastic.reserved import ReservationWatch
from dlcloud.elastic.workers import DRAINED, RecordsReceived, WorkerExited
from dlcloud.launch.launcher import LaunchedMembers
from tests.fakes.clock import FakeClock
from tests.fakes.samples import RECIPE, THEN, cluster, instance, recipe, run

RESERVED = "cr-0000000000000000a"
TRAINS = RECIPE.replace("count: 2", "count: {min: 1, max: 3}\n  market: spot\n  on_demand_base: 1").replace(
    "benchmark: quantization", "command: python3 train.py\n  elastic: {}"
)


def member(number, market=Market.SPOT):
    made = instance(f"i-{number}", market=market, launched_at=THEN + timedelta(minutes=number))
    return Member(instance=made, hourly_usd=None, price_source="", price_as_of=None)


FIRST = [member(0, Market.ON_DEMAND), member(1), member(2)]


def step(number, size=3):
    return {"record": "step", "step": number, "loss": 1.5, "world_size": size}


def event(name, **other):
    return {"record": "event", "event": name, "cause": "a cause", **other}


DONE = event("done", step=9)


class FakeWorkers:
    """Workers that report what a script says, in turn, as they are served."""

    def __init__(self, script, stored):
        self.script, self.kept = script, stored
        self.served, self.drained, self.informed, self.post, self.coordinator = [], [], [], None, None
        self.minimums, self.reminded = [], []

    def serve(self, member):
        self.served.append(member.instance.instance_id)
        for item in self.script.get(member.instance.instance_id, []):
            self.post(item)

    def read_stored(self, member):
        return self.kept.get(member.instance.instance_id, [])

    def drain(self, member, cause):
        self.drained.append(member.instance.instance_id)
        for item in self.script.get(f"{member.instance.instance_id} {cause}", []):
            self.post(item)

    def write_control(self, member):
        name, coordinator = member.instance.instance_id, self.coordinator()
        self.minimums.append((name, coordinator.minimum))
        self.informed.append((name, coordinator.instance_id, coordinator.least))
        for item in self.script.get(f"{name} informed {coordinator.instance_id} {coordinator.least}", []):
            self.post(item)
        return name in self.served

    def remind(self, member):
        self.reminded.append(member.instance.instance_id)

    def error_of(self, failed):
        return RemoteCommandError(f"sample failed on {failed.instance_id}")


class World:
    """A controller over fakes; instances that are launched are numbered from 3 on."""

    def __init__(self, script, *, answers=(), target=3, stored=None, launches=Market.SPOT, text=TRAINS):
        self.workers = FakeWorkers(script, stored or {})
        self.answers, self.asked, self.ended, self.events = list(answers), [], [], []
        self.launched, self.launches = 0, launches
        self.controller = Controller(
            cluster=cluster(),
            recipe=recipe(text),
            make_workers=self.make_workers,
            grow=self.grow,
            end=lambda members: self.ended.extend(member.instance.instance_id for member in members),
            target=lambda: target,
            clock=FakeClock(),
            emit=self.events.append,
        )

    def make_workers(self, coordinator, post):
        self.workers.post, self.workers.coordinator = post, coordinator
        return self.workers

    def grow(self, decision, connected):
        count = decision.launch
        self.asked.append(count)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        new = [] if answer == 0 else [member(3 + self.launched + n, self.launches) for n in range(count)]
        self.launched += len(new)
        return LaunchedMembers(members=[*(FIRST if connected else []), *new], connections={})

    def go(self, members=FIRST):
        self.controller.run(members)
        return self

    @property
    def messages(self):
        return [event.message for event in self.events]

    def end_after(self, event, start):
        """Let the training end an hour after a message; the controller acts once in between."""
        if event.message.startswith(start):
            self.controller.clock.advance(3600)
            for name in ("i-0", "i-2"):
                self.workers.post(reports(name, DONE))
                self.workers.post(ends(name))


def reports(name, *records):
    return RecordsReceived(instance_id=name, records=list(records))


def ends(name, status=0, state=RunState.DONE):
    return WorkerExited(instance_id=name, run=run(instance_id=name, exit_status=status, state=state))


def test_a_quiet_run_ends_with_its_last_step():
    script = {
        name: [reports(name, step(1)), reports(name, DONE), ends(name)] for name in ("i-0", "i-1", "i-2")
    }
    world = World(script).go()
    assert (world.asked, world.ended, world.workers.drained) == ([], [], [])
    assert any(message.startswith("step 1, loss 1.5, 3 worker(s)") for message in world.messages)


def test_an_interrupted_instance_of_the_first_hour_is_left_to_ec2():
    script = {
        "i-1": [reports("i-1", step(1), event("notice"), event("drained", step=4)), ends("i-1", DRAINED)],
        "i-3": [reports("i-0", DONE), ends("i-0"), ends("i-2"), ends("i-3")],
    }
    world = World(script).go()
    assert (world.asked, world.ended) == ([1], [])
    assert any("is left to EC2" in message for message in world.messages)


def test_what_ec2_does_not_end_after_its_notice_is_ended():
    script = {
        "i-1": [reports("i-1", step(1), event("notice"), event("drained", step=4)), ends("i-1", DRAINED)]
    }
    world = World(script)
    world.controller.emit = lambda event: (
        world.events.append(event),
        world.end_after(event, "is left to EC2"),
    )
    world.go()
    for thread in threading.enumerate():
        if thread.name == "end i-1":
            thread.join()
    assert world.ended == ["i-1"]


def test_an_older_interrupted_instance_is_replaced_and_ended_once_it_left():
    script = {
        "i-0": [reports("i-0", step(1))],
        "i-1": [reports("i-1", step(1), event("notice"), event("drained", step=4)), ends("i-1", DRAINED)],
        "i-3": [reports("i-3", step(5)), reports("i-0", DONE), ends("i-0"), ends("i-2"), ends("i-3")],
    }
    world = World(script)
    world.controller.clock.advance(2 * 3600)
    world.go()
    assert world.asked == [1]
    assert world.workers.served == ["i-0", "i-1", "i-2", "i-3"]
    assert world.ended == ["i-1"]
    assert any("has left at step 4" in message for message in world.messages)


def test_an_instance_that_is_lost_is_replaced_and_ended_for_certain():
    script = {
        "i-1": [WorkerExited(instance_id="i-1", error=InstanceError("i-1 is gone"))],
        "i-3": [reports("i-0", DONE), *(ends(name) for name in ("i-0", "i-2", "i-3"))],
    }
    world = World(script).go()
    assert (world.asked, world.ended) == ([1], ["i-1"])
    assert "i-1 is gone" in world.messages


@pytest.mark.parametrize("answer", [0, CloudError("no quota")])
def test_without_capacity_the_others_go_on_and_it_is_requested_later(answer):
    script = {"i-1": [WorkerExited(instance_id="i-1", error=InstanceError("gone"))]}
    world = World(script, answers=[answer])
    clock = world.controller.clock

    def grow(decision, connected):
        grown = World.grow(world, decision, connected)  # raises where it is to
        if len(world.asked) == 2:
            world.workers.post(reports("i-0", DONE))
            for name in ("i-0", "i-2", "i-3"):
                world.workers.post(ends(name))
        return grown

    world.controller.grow = grow
    world.controller.target = lambda: clock.sleep(1.0) or 3  # a second a turn
    world.go()
    assert world.asked == [1, 1]
    assert any("going on with 2, asking again in 5 s" in message for message in world.messages)


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
    clock, write_control = world.controller.clock, world.workers.write_control

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
            assert informed.wait(10), world.workers.minimums
            for name in ("i-1", "i-2"):
                world.workers.post(ends(name, DRAINED))
            world.workers.post(reports("i-0", DONE))
            world.workers.post(ends("i-0"))
        return 3 if len(turns) < 5 else 1

    world.workers.write_control, world.controller.target = listen, target
    world.go()
    assert {minimum for _, minimum in world.workers.minimums} == {1}
    assert sorted(world.workers.drained) == ["i-1", "i-2"]


def test_while_workers_wait_the_progress_says_for_what():
    waits = event("hold") | {"cause": "1 of 2 workers needed"}
    script = {
        "i-0": [reports("i-0", step(4)), reports("i-0", waits), reports("i-0", DONE)],
        "i-2": [ends("i-0"), ends("i-1"), ends("i-2")],
    }
    world = World(script).go()
    (warning,) = [event for event in world.events if event.message == "waiting: 1 of 2 workers needed"]
    assert isinstance(warning, Warned)
    assert "step 4, loss 1.5, waiting: 1 of 2 workers needed" in world.messages


def test_waiting_for_the_first_step_is_no_warning():
    waits = event("hold") | {"cause": "1 of 2 workers needed"}
    script = {"i-0": [reports("i-0", waits, DONE)], "i-2": [ends("i-0"), ends("i-1"), ends("i-2")]}
    assert not [event for event in World(script).go().events if isinstance(event, Warned)]


def taken(number, generation=0, size=3):
    return {**step(number, size), "generation": generation}


LOST = WorkerExited(instance_id="i-0", error=InstanceError("i-0 is gone"))
STARTED = event("lighthouse_started")


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
    coordinator = world.workers.coordinator()
    assert (coordinator.generation, coordinator.step, coordinator.least) == (1, 8, 0)
    assert any("2 workers hold the state of step 7 of 8" in message for message in world.messages)
    assert "the training goes on from step 7: 1 step(s) are taken again" in world.messages
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
            WorkerExited(instance_id="i-1", error=InstanceError("i-1 is gone, too")),
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

    def grow(decision, _known):
        world.asked.append(decision.launch)
        world.workers.post(reports("i-1", DONE))
        world.workers.post(ends("i-1"))
        world.workers.post(ends("i-2"))
        return LaunchedMembers(members=[], connections={})

    world.controller.end, world.controller.grow = end, grow
    world.go()
    assert (world.ended, world.asked) == (["i-0"], [1])


def denial():
    error = CloudError("the launch is not authorized")
    error.is_final = True
    return error


def test_a_denied_request_is_not_repeated_and_its_reason_is_shown():
    script = {
        "i-0": [reports("i-0", step(1))],
        "i-1": [reports("i-1", step(1), event("notice"), event("drained", step=4)), ends("i-1", DRAINED)],
    }
    world = World(script, answers=[denial()])
    world.controller.emit = lambda event: (
        world.events.append(event),
        world.end_after(event, "no more instances at this size: the launch is not authorized"),
    )
    world.go()
    assert world.asked == [1]


def test_a_denied_request_for_the_only_coordinator_ends_the_run():
    script = {"i-1": [reports("i-1", taken(7)), LOST]}
    world = World(script, answers=[denial()])
    with pytest.raises(CloudError, match="not authorized"):
        world.go()


def test_a_program_failing_on_the_coordinator_at_first_ends_the_run():
    world = World({"i-0": [ends("i-0", 1, RunState.FAILED)]})
    with pytest.raises(RemoteCommandError, match="sample failed on i-0"):
        world.go()


@pytest.mark.parametrize("error", [RemoteCommandError("no such image"), CredentialsError("denied")])
def test_a_set_up_failing_on_the_coordinator_at_first_ends_the_run(error):
    world = World({"i-0": [WorkerExited(instance_id="i-0", error=error)]})
    with pytest.raises(type(error), match=str(error)):
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
    coordinator = world.workers.coordinator()
    assert (coordinator.instance_id, coordinator.generation, coordinator.step) == ("i-3", 3, 7)
    assert ("i-1", "i-3", 7) in world.workers.informed


def test_a_program_that_fails_wherever_it_runs_ends_the_run():
    failing = {f"i-{n}": [ends(f"i-{n}", 1, RunState.FAILED)] for n in range(1, 9)}
    world = World(failing)
    with pytest.raises(RemoteCommandError, match="sample failed on"):
        world.go()
    assert len([message for message in world.messages if "is replaced" in message]) == MOST_FAILURES - 1


def test_a_bug_in_a_thread_is_raised_and_not_waited_for():
    with pytest.raises(ZeroDivisionError):
        World({"i-1": [WorkerExited(instance_id="i-1", error=ZeroDivisionError())]}).go()


def test_all_spot_is_refused():
    with pytest.raises(InstanceError, match="no on-demand instance"):
        World({}).go([member(1)])


def test_a_later_controller_knows_the_requests_to_an_earlier_one():
    script = {"i-0": [reports("i-0", DONE), ends("i-0"), ends("i-1"), ends("i-2")]}
    world = World(script, stored={"i-1": [step(7), event("notice")], "i-2": [step(7)]})
    world.controller.grow = lambda decision, _known: (
        world.asked.append(decision.launch) or LaunchedMembers(members=[], connections={})
    )
    world.go()
    assert world.controller.registry.step == 7
    assert world.controller.registry.state("i-2") is WorkerState.GONE


class FakeReservations:
    """Reservations with so many idle instances, of which some are to stay free."""

    def __init__(self, idle, keep_free=0):
        self.idle, self.keep_free = idle, keep_free

    def ask(self):
        values = {"instance_type": "c7i.xlarge", "zone": "us-east-1a", "total": 9, "available": self.idle}
        return [CapacityReservation(reservation_id=RESERVED, **values)]


def reserved_member(number):
    made = replace(member(number, Market.ON_DEMAND).instance, reservation_id=RESERVED)
    return Member(instance=made, hourly_usd=Decimal(0))


def watched(script, reservations, **other):
    world = World(script, **other)
    controller = world.controller
    controller.reserved = ReservationWatch(
        ask=reservations.ask,
        keep_free=lambda: reservations.keep_free,
        clock=controller.clock,
        emit=world.events.append,
        start=lambda work: work(),
    )
    return world


def test_reserved_instances_go_back_while_another_user_finds_too_few_idle():
    team = [member(0, Market.ON_DEMAND), member(1), reserved_member(2)]
    script = {name: [reports(name, step(1))] for name in ("i-0", "i-1", "i-2")}
    script["i-2 resize"] = [reports("i-2", event("drained", step=2)), ends("i-2", DRAINED)]
    script["i-3"] = [reports("i-0", DONE), *(ends(name) for name in ("i-0", "i-1", "i-3"))]
    world = watched(script, FakeReservations(idle=0, keep_free=1)).go(team)
    assert world.workers.drained == ["i-2"]
    assert f"leaves: another user needs an instance of {RESERVED}" in world.messages
    assert world.asked == [1]


def test_reservations_that_cannot_be_listed_are_reported_once():
    events, clock = [], FakeClock()

    def ask():
        raise CloudError("listing reservations: denied")

    watch = ReservationWatch(
        ask=ask, keep_free=lambda: 0, clock=clock, emit=events.append, start=lambda work: work()
    )
    for _ in range(3):
        assert watch.assess([]) == NO_RESERVED
        clock.advance(60)
    assert [type(event) for event in events] == [Warned]


def test_a_listing_that_breaks_off_is_made_again():
    reservations, clock, asked = FakeReservations(idle=2), FakeClock(), []
    watch = ReservationWatch(
        ask=reservations.ask, keep_free={}.popitem, clock=clock, emit=print, start=asked.append
    )
    watch.assess([])
    with pytest.raises(KeyError):
        asked[0]()
    watch.keep_free = lambda: 0
    clock.advance(60)
    watch.assess([])
    asked[1]()
    assert watch.assess([]).idle == 2


def test_what_was_listed_before_a_launch_does_not_count_after_it():
    reservations, clock, asked = FakeReservations(idle=2), FakeClock(), []
    watch = ReservationWatch(
        ask=reservations.ask, keep_free=lambda: 0, clock=clock, emit=print, start=asked.append
    )
    assert watch.assess([]) == NO_RESERVED  # listed from a thread
    asked[0]()
    assert watch.assess([]).idle == 2
    watch.forget()
    reservations.idle = 0
    assert watch.assess([]).idle == 0
    asked[1]()
    assert watch.assess([]).idle == 0


def test_instances_go_back_also_while_reservations_are_listed_again():
    reservations, asked = FakeReservations(idle=0, keep_free=2), []
    watch = ReservationWatch(
        ask=reservations.ask, keep_free=lambda: 2, clock=FakeClock(), emit=print, start=asked.append
    )
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

    def grow(decision, _):
        world.asked.append((decision.launch, decision.on_demand_only))
        return LaunchedMembers(members=new, connections={})

    world.controller.grow = grow
    world.go(team)
    assert (world.asked, sorted(world.workers.drained)) == ([(2, True)], ["i-0", "i-1"])
