"""What deadlines are expected to cost: pools, windows of a price history, and the curve."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from dlcloud.model.instance import Market
from dlcloud.report.deadlines import deadline_costs_chart, deadline_costs_report
from dlcloud.report.table import Format, render
from dlcloud.scheduling.policies import POLICIES
from dlcloud.scheduling.simulation.generate import AVAILABILITY, Rates, generate_window, history_windows
from dlcloud.scheduling.simulation.replay import SimulatedJob, replay
from dlcloud.scheduling.simulation.summary import choose_pools, cost_of_deadlines, keep_base
from dlcloud.scheduling.simulation.traces import from_ticks
from tests.fakes import samples

NOW = datetime(2026, 11, 22, tzinfo=UTC)
JOB = SimulatedJob(
    work_s=160 * 3600, allowed_s=0, on_demand_usd=3.0, spot_usd=1.0, maximum=8, boot_s=300, changeover_s=10
)
POLICY = keep_base(POLICIES["elastic"], 1)


def windows(number=6, pools=2):
    rates = Rates(count=8, up_h=1.2, down_h=1.5)
    return [generate_window(seed, hours=60, pools=pools, rates=rates) for seed in range(number)]


def price(zone, usd, days_ago):
    made = samples.price(usd=usd, market=Market.SPOT, zone=zone)
    return replace(made, as_of=NOW - timedelta(days=days_ago))


def test_pools_are_compared_together_and_each_alone():
    choices = choose_pools(windows())
    assert list(choices) == ["all 2 pools", "pool-0", "pool-1"]
    assert {len(window.pools) for window in choices["pool-1"]} == {1}
    assert list(choose_pools(windows(pools=1))) == ["pool-0"]


def test_a_later_deadline_costs_less_and_more_pools_do():
    costs = cost_of_deadlines(JOB, [22, 30, 44], choose_pools(windows()), POLICY)
    pooled = [cost for cost in costs if cost.pools == "all 2 pools"]
    assert all(late.usd <= early.usd for early, late in pairwise(pooled))
    assert all(cost.low_usd <= cost.usd <= cost.high_usd for cost in costs)
    assert pooled[-1].usd < min(
        cost.usd for cost in costs if cost.hours == 44 and cost.pools != "all 2 pools"
    )
    assert sum(cost.missed for cost in costs) == 0


def test_the_base_is_on_demand_from_start_to_end():
    job = SimulatedJob(work_s=3600, allowed_s=36_000, on_demand_usd=3.0, spot_usd=1.0, maximum=4)
    outcome = replay(job, windows(1)[0], POLICY)
    assert outcome.on_demand_s >= outcome.finished_s * 0.99
    assert replay(job, windows(1)[0], keep_base(POLICIES["elastic"], 0)).on_demand_s < outcome.on_demand_s


def test_a_price_history_gives_its_prices_at_their_times():
    history = [price("us-east-1a", "1.00", 4), price("us-east-1a", "2.00", 2), price("us-east-1b", "0.50", 4)]
    first, last = history_windows(
        history, hours=24, end=NOW, shares={"us-east-1a": 1.0, "us-east-1b": 0.0}, count=5, number=2
    )
    assert [pool.prices for pool in first.pools] == [(1.0,), (0.5,)]
    assert [pool.prices for pool in last.pools] == [(2.0,), (0.5,)]
    assert [pool.counts for pool in last.pools] == [(5,), (0,)]
    middle = history_windows(history, hours=96, end=NOW, shares={"us-east-1a": 1.0}, count=5, number=1)[0]
    assert middle.pools[0].starts_s == (0.0, 48 * 3600)


def test_assumed_capacity_has_its_share_of_the_time():
    made = history_windows([price("z", "1", 9)], hours=200, end=NOW, shares={"z": 0.8}, count=1, number=40)
    assert sum(w.pools[0].availability for w in made) / 40 == pytest.approx(0.8, abs=0.05)
    unknown = history_windows([price("z", "1", 9)], hours=200, end=NOW, shares={}, count=1, number=40)
    assert sum(w.pools[0].availability for w in unknown) / 40 == pytest.approx(AVAILABILITY, abs=0.05)


def test_the_table_has_all_pools_and_the_cheapest_alone():
    costs = cost_of_deadlines(JOB, [22, 30], choose_pools(windows(2, pools=4)), POLICY)
    report = deadline_costs_report(costs, heading="h", notes=["n"])
    text = render(report, Format.TABLE)
    assert text.count("all 4 pools") == 2
    assert "2 other pool(s) alone would cost more" in text
    assert len(report.records) == 10
    assert "set the earlier one" not in text
    first, *others = costs
    dearer = [replace(cost, usd=2 * first.usd) if cost.pools == first.pools else cost for cost in others]
    noted = deadline_costs_report([first, *dearer], heading="h", notes=[]).sections[0].notes
    saved = f"{first.usd:.2f} USD less than 30.0 h with all 4 pools"
    assert noted[-1] == f"deadline 22.0 h costs {saved}: set the earlier one"
    unsafe = deadline_costs_report([replace(first, missed=1), *dearer], heading="h", notes=[])
    assert "set the earlier one" not in render(unsafe, Format.TABLE)
    chart = deadline_costs_chart(costs, caption="c")
    assert "all on-demand" in chart.caption
    assert len(chart.rows) == 6


def test_one_pool_without_a_choice_has_no_others():
    trace = from_ticks("only", 600, [8] * 300)
    (window,) = [windows(1)[0].__class__(name="w", pools=(trace,))]
    (cost,) = cost_of_deadlines(JOB, [30], choose_pools([window]), POLICY)
    assert cost.pools == "only"
    assert cost.usd < cost.on_demand_usd
