"""What runs cost: phases that add up to the bill of their instance, to the second."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from dlcloud.analysis.cost import BillingPeriod, InstanceRuns, cost_of_run
from dlcloud.model.money import billed_seconds, cost_of_seconds
from tests.fakes.samples import THEN, run


def at(seconds):
    return THEN + timedelta(seconds=seconds)


def period(ended=None, disk_gib=50):
    ended_at = None if ended is None else at(ended)
    return BillingPeriod(instance_id="i-0001", launched_at=THEN, ended_at=ended_at, disk_gib=disk_gib)


def one(name, setup, started, ended):
    return run(
        name,
        setup_at=None if setup is None else at(setup),
        started_at=at(started),
        ended_at=None if ended is None else at(ended),
    )


def test_less_than_a_minute_is_billed_as_a_minute():
    mine = one("a", 5, 10, 20)
    bill = cost_of_run(mine, InstanceRuns([mine]), period(ended=22), at(22))
    assert (bill.seconds, bill.rest_s) == (60, 40)


def test_an_instance_that_is_up_has_cost_what_it_has_until_now():
    mine = one("a", 20, 50, None)
    bill = cost_of_run(mine, InstanceRuns([mine]), period(), at(100))
    assert (bill.run_s, bill.rest_s, bill.final) == (50, 0, False)


def test_a_run_of_an_older_dlcloud_has_its_set_up_in_its_boot():
    mine = one("a", None, 50, 60)
    bill = cost_of_run(mine, InstanceRuns([mine]), period(ended=70), at(70))
    assert (bill.boot_s, bill.setup_s) == (50, None)


def test_an_unknown_price_gives_no_amount():
    mine = run(hourly_usd=None, started_at=at(1))
    assert cost_of_run(mine, InstanceRuns([mine]), period(), at(100)).usd is None


@given(
    steps=st.lists(st.tuples(*[st.floats(0, 500)] * 3), min_size=1, max_size=5),
    tail=st.floats(0, 100),
    up=st.booleans(),
)
def test_the_bills_of_all_runs_of_an_instance_are_the_bill_of_the_instance(steps, tail, up):
    time, runs = 0.0, []
    for number, (idle, setup, length) in enumerate(steps):
        runs.append(one(str(number), time + idle, time + idle + setup, time + idle + setup + length))
        time += idle + setup + length
    there = period(ended=None if up else time + tail)
    now = at(time + tail)
    bills = [cost_of_run(one_run, InstanceRuns(runs), there, now) for one_run in runs]
    seconds = billed_seconds(THEN, at(time + tail))
    assert sum(bill.seconds for bill in bills) == seconds
    whole = cost_of_seconds(Decimal("0.1785"), 50, seconds, region="us-east-1")
    assert abs(sum(bill.usd for bill in bills) - whole) < Decimal("1e-20")
    assert min(min(bill.boot_s, bill.setup_s, bill.run_s, bill.rest_s) for bill in bills) >= 0


def test_trials_share_the_bill_of_their_instance_by_their_time():
    trials = [
        replace(one(name, 20, started, ended), experiment="e", trial=number)
        for number, (name, started, ended) in enumerate((("a", 30, 60), ("b", 30, 60), ("c", 60, 90)), 1)
    ]
    bills = [cost_of_run(trial, InstanceRuns(trials), period(ended=120), at(120)) for trial in trials]
    assert bills[0].usd == bills[1].usd == bills[2].usd, "at the same time or after each other"
    assert sum(bill.seconds for bill in bills) == 120
    whole = cost_of_seconds(trials[0].hourly_usd, 50, 120, region=trials[0].region)
    assert round(sum(bill.usd for bill in bills), 12) == round(whole, 12)
