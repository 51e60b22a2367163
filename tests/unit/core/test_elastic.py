"""Who is replaced, when capacity is asked for again, and who is let go."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcloud.core.cluster import Member
from dlcloud.core.elastic import LONGEST_WAIT, LaunchRefusals, Worker, WorkerState, decide, minimum_workers
from dlcloud.core.instance import Market
from tests.fakes.samples import THEN, instance

NOW = THEN + timedelta(hours=1)
ROUNDS = (Market.SPOT, Market.ON_DEMAND)
ARRIVING, TRAINING, AT_RISK, LEAVING, GONE = WorkerState


def worker(number, standing=TRAINING, market=Market.SPOT):
    made = instance(f"i-{number:04d}", market=market, launched_at=THEN + timedelta(minutes=number))
    member = Member(instance=made, hourly_usd=None, price_source="", price_as_of=None)
    return Worker(member=member, standing=standing)


def team(*standings):
    first = worker(0, market=Market.ON_DEMAND)
    return [first, *(worker(number, standing) for number, standing in enumerate(standings, 1))]


def move(workers, target=3, **other):
    return decide(workers, target=target, now=NOW, base=1, rounds=ROUNDS, **other)


def test_a_whole_team_is_left_alone():
    assert move(team(TRAINING, ARRIVING)) == move(team(TRAINING, TRAINING, GONE))
    assert move(team(TRAINING, TRAINING)).launch == 0
    assert not move(team(TRAINING, TRAINING)).drain


def test_who_is_interrupted_is_replaced_while_it_still_lives():
    assert move(team(TRAINING, LEAVING)).launch == 1
    assert move(team(GONE, GONE)).launch == 2
    assert "asking for 1 more" in move(team(TRAINING, LEAVING)).reasons[0]


def test_nothing_is_asked_for_twice():
    assert move(team(LEAVING, LEAVING), asking=True).launch == 0


def test_who_is_at_risk_leaves_when_its_successor_trains_and_not_before():
    before = move(team(TRAINING, AT_RISK))
    assert (before.launch, before.drain) == (1, ())
    assert move(team(TRAINING, AT_RISK, ARRIVING)).drain == ()
    after = move(team(TRAINING, AT_RISK, TRAINING))
    assert (after.launch, after.drain) == (0, ("i-0002",))


def test_who_trains_does_not_leave_before_somebody_who_stays_does():
    arriving = worker(0, ARRIVING, market=Market.ON_DEMAND)
    assert move([arriving, worker(1)], target=1).drain == ()
    assert move([arriving, worker(1), worker(2, ARRIVING)], target=1).drain == ("i-0002",)
    assert move([worker(0, market=Market.ON_DEMAND), worker(1)], target=1).drain == ("i-0001",)


def test_a_smaller_target_drops_newest_spot_and_never_the_coordinator():
    assert move(team(TRAINING, TRAINING), target=1).drain == ("i-0002", "i-0001")
    assert move(team(TRAINING, TRAINING), target=2).drain == ("i-0002",)


def test_after_a_refusal_the_wait_doubles_up_to_five_minutes():
    first = move(team(TRAINING, GONE), refused=LaunchRefusals(times=1, at=NOW))
    assert (first.launch, first.look_at) == (0, NOW + timedelta(seconds=5))
    third = move(team(TRAINING, GONE), refused=LaunchRefusals(times=3, at=NOW))
    assert third.look_at == NOW + timedelta(seconds=20)
    late = LaunchRefusals(times=4000, at=NOW)
    assert late.again_at == NOW + LONGEST_WAIT
    assert (
        move(team(TRAINING, GONE), refused=LaunchRefusals(times=3, at=NOW - timedelta(seconds=20))).launch
        == 1
    )


@given(
    standings=st.lists(st.sampled_from(list(WorkerState)), max_size=12),
    target=st.integers(min_value=1, max_value=10),
)
def test_requests_complete_the_workers_and_drains_never_leave_too_few(standings, target):
    workers = team(*standings)
    done = move(workers, target=target)
    staying = {each.instance_id for each in workers if each.stays}
    assert done.launch == max(0, target - len(staying))
    assert len(staying - set(done.drain)) >= min(target, len(staying))
    assert "i-0000" not in done.drain


@pytest.mark.parametrize(
    ("minimum", "target", "current", "training", "expected"),
    [
        (2, 4, None, 0, 2),
        (2, 1, None, 0, 1),
        (2, 1, 2, 2, 1),  # resized below the recipe's count: what is asked for is enough
        (2, 2, 1, 1, 1),  # resized back: not before the newcomer trains
        (2, 2, 1, 2, 2),
        (3, 2, 3, 1, 2),
    ],
)
def test_a_step_never_needs_more_workers_than_are_asked_for(minimum, target, current, training, expected):
    assert minimum_workers(minimum, target, current=current, training=training) == expected
