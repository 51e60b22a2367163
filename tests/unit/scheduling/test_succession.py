"""Which instance takes control: never two, never one that was replaced, and every former one is ended."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from dlcloud.model.cluster import CONTROLLER_TAG, ControlClaim, Member
from dlcloud.model.instance import InstanceState, Market
from dlcloud.planning.resize import coordinator
from dlcloud.scheduling.scaling import InstanceStage
from dlcloud.scheduling.succession import TAKEOVER, Turn, choose_standbys, decide_succession
from tests.fakes.samples import THEN, instance, worker

SOON, LATER = timedelta(minutes=1), TAKEOVER + timedelta(seconds=1)


def listed(name, *, controls=False, state=InstanceState.RUNNING):
    return instance(name, tags={CONTROLLER_TAG: "ubuntu"} if controls else {}, state=state)


def claim(term, name, at=THEN):
    return ControlClaim(term=term, instance_id=name, at=at)


THREE = [listed("i-0", controls=True), listed("i-1"), listed("i-2")]


def decide(own, claims=(), *, instances=THREE, after=SOON):
    return decide_succession(own, instances, list(claims), THEN + after)


def test_a_coordinator_that_is_gone_needs_no_end():
    gone = [listed("i-0", controls=True, state=InstanceState.SHUTTING_DOWN), *THREE[1:]]
    assert decide("i-1", instances=gone).fence == ()


@pytest.mark.parametrize(
    ("instances", "after"),
    [(THREE, LATER), ([THREE[0], listed("i-1", state=InstanceState.TERMINATED), THREE[2]], SOON)],
)
def test_a_claim_that_leads_to_nothing_is_followed_by_the_next_term(instances, after):
    decision = decide("i-2", [claim(1, "i-1")], instances=instances, after=after)
    assert (decision.turn, decision.term) == (Turn.CLAIM, 2)
    living = {one.instance_id for one in instances if one.alive}
    assert set(decision.fence) == {"i-0", "i-1"} & living, "both may still believe that they coordinate"


@pytest.mark.parametrize(
    ("own", "claims", "after", "expected"),
    [
        ("i-9", [], SOON, (Turn.REFUSED, 0, (), "EC2 does not list this instance as running")),
        ("i-1", [], SOON, (Turn.CLAIM, 1, ("i-0",), "the coordinator does not answer")),
        ("i-0", [], SOON, (Turn.CONTINUE, 0, (), "this instance is the coordinator")),
        ("i-1", ["i-1"], SOON, (Turn.CONTINUE, 1, ("i-0",), "this instance has claimed the control")),
        ("i-1", ["i-1"], LATER, (Turn.CONTINUE, 1, ("i-0",), "this instance has claimed the control")),
        ("i-1", ["i-1", "i-2"], SOON, (Turn.REFUSED, 2, (), "i-2 has taken over since")),
        ("i-0", ["i-1"], SOON, (Turn.REFUSED, 1, (), "i-1 has taken over since")),
        ("i-2", ["i-1"], SOON, (Turn.WAIT, 1, (), "i-1 is taking over")),
        ("i-2", ["i-1"], TAKEOVER, (Turn.CLAIM, 2, ("i-0", "i-1"), "i-1 does not answer")),
    ],
)
def test_a_decision_states_its_reason_and_fences_before_control_alone(own, claims, after, expected):
    decision = decide(own, [claim(term, name) for term, name in enumerate(claims, 1)], after=after)
    assert (decision.turn, decision.term, decision.fence, decision.reason) == expected


@given(
    claims=some.lists(some.sampled_from(["i-0", "i-1", "i-2", "i-9"]), max_size=4),
    dead=some.sets(some.sampled_from(["i-0", "i-1", "i-2"]), max_size=2),
    minutes=some.integers(0, 12),
)
def test_of_all_that_ask_at_most_one_controls_after_the_claims(claims, dead, minutes):
    states = {
        name: InstanceState.TERMINATED if name in dead else InstanceState.RUNNING
        for name in ("i-0", "i-1", "i-2")
    }
    instances = [listed(name, controls=name == "i-0", state=state) for name, state in states.items()]
    made = [claim(term, name) for term, name in enumerate(claims, 1)]
    decisions = {
        name: decide(name, made, instances=instances, after=timedelta(minutes=minutes)) for name in states
    }
    winners = {}
    for name, decision in decisions.items():
        if decision.turn is Turn.CLAIM:
            winners.setdefault(decision.term, name)  # EC2 accepts one claim of a term
        if decision.turn is Turn.CONTINUE:
            winners[decision.term] = name
    assert not set(winners.values()) & dead
    if winners:
        newest = winners[max(winners)]
        fenced = set(decisions[newest].fence)
        others = {name for term, name in winners.items() if name != newest}
        assert others <= fenced, "a later term ends the holder of an earlier one"


def test_on_demand_instances_stand_by_first_then_the_oldest():
    workers = [worker(0, market=Market.ON_DEMAND), worker(1), worker(2), worker(3, market=Market.ON_DEMAND)]
    assert choose_standbys(workers, "i-0") == ("i-3", "i-1")


def test_standbys_stay_while_they_train_and_only_those_that_train_stand_by():
    workers = [worker(1), worker(2), worker(3, state=InstanceStage.ARRIVING), worker(4)]
    assert choose_standbys(workers, "i-0", ("i-4",)) == ("i-4", "i-1")
    leaving = [*workers[:3], worker(4, state=InstanceStage.LEAVING)]
    assert choose_standbys(leaving, "i-0", ("i-4",)) == ("i-1", "i-2")


def test_the_instance_that_controls_coordinates_even_if_it_is_spot():
    on_demand = Member(instance=instance("i-0", market=Market.ON_DEMAND))
    controlling = Member(instance=instance("i-1", market=Market.SPOT, tags={CONTROLLER_TAG: "ubuntu"}))
    assert coordinator([on_demand, controlling]) is controlling
    assert coordinator([on_demand]) is on_demand
