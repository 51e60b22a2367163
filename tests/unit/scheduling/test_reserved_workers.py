"""Elastic runs and reservations: idle capacity replaces paid instances, and goes back to its other users."""

from dataclasses import replace
from datetime import timedelta

import pytest

from dlcloud.model.cluster import Member
from dlcloud.model.instance import Market
from dlcloud.planning.reservations import CapacityReservation
from dlcloud.planning.resize import decide_size
from dlcloud.scheduling.scaling import (
    NO_RESERVED,
    InstanceStage,
    LaunchRefusals,
    ReservedState,
    ScalingInputs,
    TrainingInstance,
    assess_reserved,
    decide_with_reserved,
)
from tests.fakes.samples import THEN, instance

NOW = THEN + timedelta(hours=1)
ARRIVING, TRAINING, AT_RISK, _, LEAVING, GONE = InstanceStage
ON_DEMAND, SPOT = Market.ON_DEMAND, Market.SPOT
ONE = "cr-0000000000000000a"


def worker(number, state=TRAINING, *, market=SPOT, reserved=""):
    made = instance(
        f"i-{number}",
        market=ON_DEMAND if reserved else market,
        launched_at=THEN + timedelta(minutes=number),
        reservation_id=reserved,
    )
    return TrainingInstance(member=Member(instance=made), state=state)


def paid(*states):
    first = worker(0, market=ON_DEMAND)
    return [first, *(worker(number, state) for number, state in enumerate(states, 1))]


def reserved(number, state=TRAINING):
    return worker(number, state, reserved=ONE)


def decision_for(workers, state=NO_RESERVED, *, target=3, **other):
    inputs = {"is_launching": False, "refusals": None, **other}
    return decide_with_reserved(
        workers,
        ScalingInputs(target=target, now=NOW, base=1, rounds=(SPOT,), **inputs),
        state,
    )


def block(**other):
    values = {"instance_type": "c7i.xlarge", "zone": "us-east-1a", "total": 4, "available": 1, **other}
    return CapacityReservation(reservation_id=ONE, **values)


def test_idle_reserved_instances_replace_paid_ones_but_the_coordinator():
    decision = decision_for(paid(TRAINING, TRAINING), ReservedState(idle=5))
    assert (decision.launch, decision.reserved_only, decision.drain) == (2, True, ())
    assert "2 replace instances that are paid for, at 0 USD marginal" in decision.reasons[-1]
    assert decision_for(paid(TRAINING, TRAINING), ReservedState(idle=1)).launch == 1
    assert decision_for(paid(TRAINING, TRAINING), ReservedState(idle=5), is_launching=True).launch == 0


def test_paid_instances_leave_when_the_reserved_ones_train():
    team = paid(TRAINING, TRAINING)
    arriving = [*team, reserved(3, ARRIVING), reserved(4, ARRIVING)]
    assert decision_for(arriving).drain == ()
    assert decision_for([*team, reserved(3), reserved(4, ARRIVING)]).drain == ("i-2",)
    done = decision_for([*team, reserved(3), reserved(4)], ReservedState(idle=3))
    assert (set(done.drain), done.launch) == ({"i-1", "i-2"}, 0)


def test_idle_reserved_instances_complete_a_run_that_markets_refuse():
    refusals = LaunchRefusals(times=3, at=NOW)
    decision = decision_for(paid(TRAINING, GONE), ReservedState(idle=2), refusals=refusals)
    assert (decision.launch, decision.reserved_only) == (1, True)
    assert decision_for(paid(TRAINING, TRAINING), ReservedState(idle=2), refusals=refusals).launch == 0


def test_what_another_user_needs_leaves_at_once_and_is_replaced():
    team = [worker(0, market=ON_DEMAND), reserved(1), reserved(2)]
    decision = decision_for(team, ReservedState(give_back=1))
    assert (decision.drain, decision.launch, decision.reserved_only) == (("i-2",), 1, False)
    assert decision.causes["i-2"] == f"another user needs an instance of {ONE}"
    left = [team[0], team[1], replace(team[2], state=LEAVING)]
    assert decision_for(left, NO_RESERVED, is_launching=True).drain == ()


def test_coordinator_goes_back_last_and_after_another_on_demand_one_trains():
    team = [reserved(0), worker(1)]
    before = decision_for(team, ReservedState(give_back=1), target=2)
    assert (before.drain, before.launch, before.on_demand_only) == ((), 1, True)
    replaced = [*team, worker(2, market=ON_DEMAND)]
    assert decision_for(replaced, ReservedState(give_back=1), target=2).drain == ("i-0",)


def test_last_worker_with_the_state_is_replaced_before_it_goes_back():
    team = [worker(0, ARRIVING, market=ON_DEMAND), reserved(1)]
    assert decision_for(team, ReservedState(give_back=1), target=2).drain == ()
    trained = [worker(0, market=ON_DEMAND), worker(2), reserved(1)]
    assert decision_for(trained, ReservedState(give_back=1), target=2).drain == ("i-1",)


def test_workers_of_a_block_are_replaced_before_it_ends_and_leave_in_time():
    team = [worker(0, market=ON_DEMAND), reserved(1)]
    ends_at = NOW + timedelta(minutes=38)
    ending = assess_reserved(team, [block(is_block=True, ends_at=ends_at)], keep_free=0, now=NOW)
    assert (ending.idle, set(ending.ending), ending.overdue) == (0, {"i-1"}, frozenset())
    decision = decision_for(team, ending, target=2)
    assert (decision.launch, decision.drain) == (1, ())
    assert decision_for([*team, worker(2)], ending, target=2).drain == ("i-1",)
    late = NOW + timedelta(minutes=7)
    overdue = assess_reserved(team, [block(is_block=True, ends_at=ends_at)], keep_free=0, now=late)
    assert decision_for(team, overdue, target=2).drain == ("i-1",)


@pytest.mark.parametrize(
    ("available", "keep_free", "returning", "expected"),
    [(3, 1, 0, (2, 0)), (1, 1, 0, (0, 0)), (0, 2, 0, (0, 2)), (0, 2, 1, (0, 1)), (0, 0, 0, (0, 0))],
)
def test_idle_and_given_back_instances_follow_keep_free(available, keep_free, returning, expected):
    state = assess_reserved(
        [], [block(available=available)], keep_free=keep_free, now=NOW, returning=returning
    )
    assert (state.idle, state.give_back) == expected


def test_a_smaller_size_ends_reserved_instances_last():
    members = [
        one.member
        for one in [worker(0, market=ON_DEMAND), reserved(1), worker(2), worker(3, market=ON_DEMAND)]
    ]
    ended = [one.instance.instance_id for one in decide_size(members, 1, base=1, rounds=(SPOT,)).end]
    assert ended == ["i-3", "i-2", "i-1"]
