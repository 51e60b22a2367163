"""Which workers are replaced, what is requested when, who leaves; and reserved instances for paid ones."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcloud.model.instance import Market
from dlcloud.planning.reservations import CapacityReservation
from dlcloud.planning.resize import decide_size
from dlcloud.scheduling.scaling import (
    LONGEST_WAIT,
    NO_RESERVED,
    InstanceStage,
    LaunchRefusals,
    ReservedState,
    ScalingInputs,
    assess_reserved,
    decide,
    decide_with_reserved,
    minimum_workers,
)
from tests.fakes.samples import THEN, worker

NOW = THEN + timedelta(hours=1)
ROUNDS = (Market.SPOT, Market.ON_DEMAND)
ARRIVING, TRAINING, AT_RISK, INTERRUPTED, LEAVING, GONE = InstanceStage


def team(*states):
    first = worker(0, market=Market.ON_DEMAND)
    return [first, *(worker(number, state) for number, state in enumerate(states, 1))]


def decision_for(workers, target=3, **other):
    return decide(workers, target=target, now=NOW, base=1, rounds=ROUNDS, **other)


def test_a_whole_team_is_left_alone():
    assert decision_for(team(TRAINING, ARRIVING)) == decision_for(team(TRAINING, TRAINING, GONE))
    assert decision_for(team(TRAINING, TRAINING)).launch == 0
    assert not decision_for(team(TRAINING, TRAINING)).drain


def test_who_is_interrupted_is_replaced_while_it_still_lives():
    assert decision_for(team(TRAINING, LEAVING)).launch == 1
    assert decision_for(team(TRAINING, INTERRUPTED)).launch == 1
    assert decision_for(team(GONE, GONE)).launch == 2
    assert "requesting 1 more" in decision_for(team(TRAINING, LEAVING)).reasons[0]


def test_nothing_is_asked_for_twice():
    assert decision_for(team(LEAVING, LEAVING), is_launching=True).launch == 0


def test_a_worker_at_risk_leaves_only_once_its_replacement_trains():
    before = decision_for(team(TRAINING, AT_RISK))
    assert (before.launch, before.drain) == (1, ())
    assert decision_for(team(TRAINING, AT_RISK, ARRIVING)).drain == ()
    after = decision_for(team(TRAINING, AT_RISK, TRAINING))
    assert (after.launch, after.drain) == (0, ("i-2",))


def test_who_trains_does_not_leave_before_somebody_who_stays_does():
    arriving = worker(0, ARRIVING, market=Market.ON_DEMAND)
    assert decision_for([arriving, worker(1)], target=1).drain == ()
    assert decision_for([arriving, worker(1), worker(2, ARRIVING)], target=1).drain == ("i-2",)
    assert decision_for([worker(0, market=Market.ON_DEMAND), worker(1)], target=1).drain == ("i-1",)


def test_a_smaller_target_drops_newest_spot_and_never_the_coordinator():
    assert decision_for(team(TRAINING, TRAINING), target=1).drain == ("i-2", "i-1")
    assert decision_for(team(TRAINING, TRAINING), target=2).drain == ("i-2",)


def test_after_a_refusal_the_wait_doubles_up_to_five_minutes():
    first = decision_for(team(TRAINING, GONE), refusals=LaunchRefusals(times=1, at=NOW))
    assert (first.launch, first.retry_at) == (0, NOW + timedelta(seconds=5))
    third = decision_for(team(TRAINING, GONE), refusals=LaunchRefusals(times=3, at=NOW))
    assert third.retry_at == NOW + timedelta(seconds=20)
    late = LaunchRefusals(times=4000, at=NOW)
    assert late.retry_at == NOW + LONGEST_WAIT
    assert (
        decision_for(
            team(TRAINING, GONE), refusals=LaunchRefusals(times=3, at=NOW - timedelta(seconds=20))
        ).launch
        == 1
    )


@given(
    states=st.lists(st.sampled_from(list(InstanceStage)), max_size=12),
    target=st.integers(min_value=1, max_value=10),
)
def test_requests_complete_the_workers_and_drains_never_leave_too_few(states, target):
    workers = team(*states)
    done = decision_for(workers, target=target)
    staying = {worker.instance_id for worker in workers if worker.stays}
    assert done.launch == max(0, target - len(staying))
    assert len(staying - set(done.drain)) >= min(target, len(staying))
    assert "i-0" not in done.drain


@pytest.mark.parametrize(
    ("minimum", "target", "current", "training", "expected"),
    [
        (2, 4, None, 0, 2),
        (2, 1, None, 0, 1),
        (2, 1, 2, 2, 1),  # resized below the recipe's count: the requested number is enough
        (2, 2, 1, 1, 1),  # resized back: not before the newcomer trains
        (2, 2, 1, 2, 2),
        (3, 2, 3, 1, 2),
    ],
)
def test_a_step_never_needs_more_workers_than_are_requested(minimum, target, current, training, expected):
    assert minimum_workers(minimum, target, current=current, training=training) == expected


ON_DEMAND, SPOT = Market.ON_DEMAND, Market.SPOT
ONE = "cr-0000000000000000a"


def reserved(number, state=TRAINING):
    return worker(number, state, ON_DEMAND, reservation_id=ONE)


def beside(workers, state=NO_RESERVED, *, target=3, **other):
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
    decision = beside(team(TRAINING, TRAINING), ReservedState(idle=5))
    assert (decision.launch, decision.reserved_only, decision.drain) == (2, True, ())
    assert "2 replace instances that are paid for, at 0 USD marginal" in decision.reasons[-1]
    assert beside(team(TRAINING, TRAINING), ReservedState(idle=1)).launch == 1
    assert beside(team(TRAINING, TRAINING), ReservedState(idle=5), is_launching=True).launch == 0


def test_paid_instances_leave_when_the_reserved_ones_train():
    paid = team(TRAINING, TRAINING)
    arriving = [*paid, reserved(3, ARRIVING), reserved(4, ARRIVING)]
    assert beside(arriving).drain == ()
    assert beside([*paid, reserved(3), reserved(4, ARRIVING)]).drain == ("i-2",)
    done = beside([*paid, reserved(3), reserved(4)], ReservedState(idle=3))
    assert (set(done.drain), done.launch) == ({"i-1", "i-2"}, 0)


def test_idle_reserved_instances_complete_a_run_that_markets_refuse():
    refusals = LaunchRefusals(times=3, at=NOW)
    decision = beside(team(TRAINING, GONE), ReservedState(idle=2), refusals=refusals)
    assert (decision.launch, decision.reserved_only) == (1, True)
    assert beside(team(TRAINING, TRAINING), ReservedState(idle=2), refusals=refusals).launch == 0


def test_what_another_user_needs_leaves_at_once_and_is_replaced():
    team = [worker(0, market=ON_DEMAND), reserved(1), reserved(2)]
    decision = beside(team, ReservedState(give_back=1))
    assert (decision.drain, decision.launch, decision.reserved_only) == (("i-2",), 1, False)
    assert decision.causes["i-2"] == f"another user needs an instance of {ONE}"
    left = [team[0], team[1], replace(team[2], state=LEAVING)]
    assert beside(left, NO_RESERVED, is_launching=True).drain == ()


def test_coordinator_goes_back_last_and_after_another_on_demand_one_trains():
    team = [reserved(0), worker(1)]
    before = beside(team, ReservedState(give_back=1), target=2)
    assert (before.drain, before.launch, before.on_demand_only) == ((), 1, True)
    replaced = [*team, worker(2, market=ON_DEMAND)]
    assert beside(replaced, ReservedState(give_back=1), target=2).drain == ("i-0",)


def test_last_worker_with_the_state_is_replaced_before_it_goes_back():
    team = [worker(0, ARRIVING, market=ON_DEMAND), reserved(1)]
    assert beside(team, ReservedState(give_back=1), target=2).drain == ()
    trained = [worker(0, market=ON_DEMAND), worker(2), reserved(1)]
    assert beside(trained, ReservedState(give_back=1), target=2).drain == ("i-1",)


def test_workers_of_a_block_are_replaced_before_it_ends_and_leave_in_time():
    team = [worker(0, market=ON_DEMAND), reserved(1)]
    ends_at = NOW + timedelta(minutes=38)
    ending = assess_reserved(team, [block(is_block=True, ends_at=ends_at)], keep_free=0, now=NOW)
    assert (ending.idle, set(ending.ending), ending.overdue) == (0, {"i-1"}, frozenset())
    decision = beside(team, ending, target=2)
    assert (decision.launch, decision.drain) == (1, ())
    assert beside([*team, worker(2)], ending, target=2).drain == ("i-1",)
    late = NOW + timedelta(minutes=7)
    overdue = assess_reserved(team, [block(is_block=True, ends_at=ends_at)], keep_free=0, now=late)
    assert beside(team, overdue, target=2).drain == ("i-1",)


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
