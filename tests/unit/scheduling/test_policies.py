from dataclasses import replace

import pytest

from dlcloud.model.instance import Market
from dlcloud.scheduling.policies import POLICIES
from dlcloud.scheduling.policies.situation import HOUR_S, Availability, PoolState, Situation

SPOT = PoolState(market=Market.SPOT, name="a", hourly_usd=0.97, obtainable=0)
DEMAND = PoolState(market=Market.ON_DEMAND, name="a", hourly_usd=3.06, obtainable=16)


def situation(*, slack_h=4.0, spot=SPOT, demand=DEMAND, more=(), **changes):
    known = {"work_left_s": 40 * HOUR_S, "changeover_s": 60.0, "maximum": 1} | changes
    time_left_s = known["work_left_s"] / known["maximum"] + slack_h * HOUR_S
    return Situation(
        work_s=48 * HOUR_S * known["maximum"],
        allowed_s=52 * HOUR_S,
        time_left_s=time_left_s,
        pools=(spot, demand, *more),
        **known,
    )


def counts(name, now):
    decision = POLICIES[name](now)
    assert decision.reason
    return decision.count(Market.SPOT), decision.count(Market.ON_DEMAND)


def test_on_demand_always_runs_the_full_number():
    assert counts("on-demand", situation(maximum=3)) == (0, 3)


@pytest.mark.parametrize("name", sorted(POLICIES.keys() - {"on-demand"}))
def test_a_spot_policy_takes_spot_waits_for_it_and_ends_on_demand_when_time_runs_out(name):
    assert counts(name, situation(spot=replace(SPOT, obtainable=1))) == (1, 0)
    assert counts(name, situation(slack_h=12)) == (0, 0)
    assert counts(name, situation(slack_h=0.01)) == (0, 1)


def test_a_gang_waits_for_all_but_others_take_any_size():
    now = situation(slack_h=12, spot=replace(SPOT, obtainable=3), maximum=4)
    assert counts("gang", now) == (0, 0)
    assert counts("elastic", now) == (3, 0)


def test_uniform_progress_stays_on_demand_until_two_changeovers_ahead():
    spot, demand = replace(SPOT, obtainable=1), replace(DEMAND, running=1)
    line = 40 * HOUR_S  # of 52 h, 8/48 have passed where 40 of 48 h of work are left on the line
    published = situation(spot=spot, demand=demand, refusal_s=0.0)
    behind = replace(published, time_left_s=52 / 48 * line - 60)
    ahead = replace(behind, time_left_s=52 / 48 * line + 180)
    assert counts("uniform-progress", behind) == (0, 1)
    assert counts("uniform-progress", ahead) == (1, 0)


def test_capacity_that_is_paid_for_comes_first():
    reserved = replace(DEMAND, name="cr-1", hourly_usd=0.0, obtainable=2)
    now = situation(spot=replace(SPOT, obtainable=8), more=(reserved,), slack_h=12, maximum=3)
    assert POLICIES["elastic"](now).targets == {(Market.ON_DEMAND, "cr-1"): 2, (Market.SPOT, "a"): 1}


@pytest.mark.parametrize(("changeover_s", "cheap", "others"), [(1.0, 1, 2), (180.0, 0, 3)])
def test_the_cheapest_pool_is_taken_first_unless_its_loss_is_a_stop_that_costs_more(
    changeover_s, cheap, others
):
    spot, one = replace(SPOT, obtainable=8), replace(SPOT, name="b", hourly_usd=0.5, obtainable=1)
    now = situation(spot=spot, more=(one,), slack_h=12, maximum=3, changeover_s=changeover_s)
    targets = POLICIES["elastic"](now).targets
    assert (targets.get((Market.SPOT, "b"), 0), targets[Market.SPOT, "a"]) == (cheap, others)


def test_one_instance_is_not_moved_from_pool_to_pool():
    """It was, every ten minutes, until no spare time was left: each move stops all sixteen workers."""
    spot = replace(SPOT, obtainable=8, running=1)
    others = (replace(SPOT, name="b", obtainable=8), replace(SPOT, name="c", obtainable=15, running=15))
    now = situation(spot=spot, more=others, maximum=16, changeover_s=180.0)
    assert POLICIES["elastic"](now).targets == {(Market.SPOT, "a"): 1, (Market.SPOT, "c"): 15}


def test_a_spot_instance_joins_only_if_it_pays_for_the_stop_of_all():
    for changeover_s, joined in ((1.8, 15), (180.0, 14)):
        spot = replace(SPOT, obtainable=15, running=14)
        now = situation(spot=spot, slack_h=12, maximum=16, changeover_s=changeover_s)
        assert counts("elastic", now) == (joined, 0)


def test_a_running_pool_is_left_when_another_saves_more_than_the_stop():
    cheaper = replace(SPOT, name="b", hourly_usd=0.4, obtainable=4)
    for changeover_s, pool in ((1.8, "b"), (720.0, "a")):
        spot = replace(SPOT, obtainable=4, running=4)
        now = situation(spot=spot, more=(cheaper,), slack_h=12, maximum=4, changeover_s=changeover_s)
        assert POLICIES["elastic"](now).targets == {(Market.SPOT, pool): 4}


@pytest.mark.parametrize(
    ("slack_h", "usual_here", "usual_usd", "moves"),
    [
        (24, 0.0, 0.0, True),
        (0.9, 0.0, 0.0, False),  # the spare time is needed if spot is lost later
        (24, 0.97, 0.0, True),
        (24, 0.97, 0.6, True),
        (24, 0.97, 4.8, False),  # it is cheap for the moment only
    ],
)
def test_a_pool_is_left_for_what_another_usually_costs_if_time_is_left(slack_h, usual_here, usual_usd, moves):
    old = Availability(observed_s=36000.0, available_s=36000.0, unchanged_s=36000.0)
    running = replace(SPOT, running=1, obtainable=1, availability=old, usual_usd=usual_here)
    cheaper = replace(SPOT, name="b", hourly_usd=0.6, obtainable=1, availability=old, usual_usd=usual_usd)
    now = situation(spot=running, more=(cheaper,), slack_h=slack_h, changeover_s=720.0, refusal_s=0.0)
    assert POLICIES["elastic"](now).targets == {(Market.SPOT, "b" if moves else "a"): 1}


def test_the_price_of_a_short_stay_is_that_of_now():
    pool = replace(SPOT, hourly_usd=1.0, usual_usd=2.0)
    assert pool.expected_usd(0.1) == pytest.approx(1.0, abs=0.01)
    assert pool.expected_usd(1000) == pytest.approx(2.0, abs=0.05)
    assert replace(pool, usual_usd=0.0).expected_usd(10) == 1.0


def test_work_is_not_put_off_for_a_stop_of_seconds():
    """The plan hardly expects on-demand here, and two of sixteen workers were left out for hours."""
    now = situation(
        spot=replace(SPOT, running=14, obtainable=16), slack_h=12, maximum=16, changeover_s=1.8, refusal_s=0.0
    )
    assert counts("elastic", now) == (16, 0)


def test_all_spot_is_replaced_when_no_time_is_left_for_another_loss():
    now = situation(spot=replace(SPOT, obtainable=16, running=15), slack_h=1.01, maximum=16)
    assert counts("elastic", now) == (0, 16)


def test_elastic_fills_with_on_demand_only_what_spot_lacks():
    now = situation(slack_h=1.2, spot=replace(SPOT, obtainable=3, running=3), maximum=4)
    assert counts("elastic", now) == (3, 1)


def test_elastic_keeps_time_for_a_refusal_of_on_demand():
    assert counts("elastic", situation(slack_h=0.9)) == (0, 1)


def test_nothing_joins_when_no_work_is_left():
    spot = replace(SPOT, running=1, obtainable=3)
    assert counts("elastic", situation(spot=spot, maximum=3, work_left_s=0.0))[0] <= 1
