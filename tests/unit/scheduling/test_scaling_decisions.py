"""Which workers are replaced, when capacity is requested again, which workers leave."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcloud.model.cluster import Member
from dlcloud.model.instance import Market
from dlcloud.scheduling.scaling import (
    LONGEST_WAIT,
    InstanceStage,
    LaunchRefusals,
    TrainingInstance,
    decide,
    minimum_workers,
)
from tests.fakes.samples import THEN, instance

NOW = THEN + timedelta(hours=1)
ROUNDS = (Market.SPOT, Market.ON_DEMAND)
ARRIVING, TRAINING, AT_RISK, INTERRUPTED, LEAVING, GONE = InstanceStage


def worker(number, state=TRAINING, market=Market.SPOT):
    made = instance(f"i-{number:04d}", market=market, launched_at=THEN + timedelta(minutes=number))
    member = Member(instance=made, hourly_usd=None, price_source="", price_as_of=None)
    return TrainingInstance(member=member, state=state)


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
    assert (after.launch, after.drain) == (0, ("i-0002",))


def test_who_trains_does_not_leave_before_somebody_who_stays_does():
    arriving = worker(0, ARRIVING, market=Market.ON_DEMAND)
    assert decision_for([arriving, worker(1)], target=1).drain == ()
    assert decision_for([arriving, worker(1), worker(2, ARRIVING)], target=1).drain == ("i-0002",)
    assert decision_for([worker(0, market=Market.ON_DEMAND), worker(1)], target=1).drain == ("i-0001",)


def test_a_smaller_target_drops_newest_spot_and_never_the_coordinator():
    assert decision_for(team(TRAINING, TRAINING), target=1).drain == ("i-0002", "i-0001")
    assert decision_for(team(TRAINING, TRAINING), target=2).drain == ("i-0002",)


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
    assert "i-0000" not in done.drain


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
