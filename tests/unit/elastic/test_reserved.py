"""The controller of an elastic run beside reservations: what it lists, gives back and keeps."""

from dataclasses import replace
from decimal import Decimal

import pytest

from dlcloud.elastic.size_scaler import ReservationWatch
from dlcloud.launch.launcher import LaunchedMembers
from dlcloud.model.cluster import Member
from dlcloud.model.errors import CloudError
from dlcloud.model.events import Warned
from dlcloud.model.instance import Market
from dlcloud.planning.reservations import CapacityReservation
from dlcloud.scheduling.scaling import NO_RESERVED
from dlcloud.trainer.drain import DRAINED
from dlcloud.trainer.records import EventName
from tests.fakes.clock import FakeClock
from tests.fakes.controller import DONE, TRAINS, World, ends, event, member, reports, step

RESERVED = "cr-0000000000000000a"


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
    world.scaler.reserved = ReservationWatch(
        ask=reservations.ask,
        keep_free=lambda: reservations.keep_free,
        clock=world.clock,
        emit=world.events.append,
        start=lambda work: work(),
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

    def grow(planned, _):
        world.asked.append((planned.max_count, planned.rounds))
        return LaunchedMembers(members=new, connections={})

    world.grow = grow
    world.go(team)
    assert (world.asked, sorted(world.workers.drained)) == ([(2, (Market.ON_DEMAND,))], ["i-0", "i-1"])
