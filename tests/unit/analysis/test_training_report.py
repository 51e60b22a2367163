"""What an elastic run came to, from its records and its instances."""

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from dlcloud.analysis.training import build_timelines, market_usd, summarize_training
from dlcloud.model.cluster import Member
from dlcloud.model.instance import Market
from dlcloud.model.money import ADDRESS_USD_PER_HOUR, money
from dlcloud.report.table import Format, render
from dlcloud.report.training import timeline_charts, training_report
from tests.fakes.samples import THEN, instance

SIZES = [3] * 10 + [2] * 10 + [3] * 10


def records():
    """A step each second; the first at another size takes half a second more."""
    at = 0.0
    for number, size in enumerate(SIZES, 1):
        changed = number > 1 and SIZES[number - 2] != size
        seconds = 1.5 if changed else 1.0
        at += seconds
        yield {
            "record": "step", "run": "r", "worker": "i-0", "time": (THEN + timedelta(seconds=at)).isoformat(),
            "step": number, "samples": 96, "world_size": size, "loss": 1.0 / number, "seconds": seconds,
        }  # fmt: skip
    for event in ("notice", "retry", "worker_started", "done"):
        yield {"record": "event", "run": "r", "worker": "i-1", "time": THEN.isoformat(), "event": event}


def member(number, market, usd, *, seconds=60):
    made = instance(f"i-{number}", market=market, launched_at=THEN - timedelta(seconds=20))
    ended = THEN - timedelta(seconds=20) + timedelta(seconds=seconds)
    return Member(
        instance=made, hourly_usd=usd and Decimal(usd), price_source="", price_as_of=None, ended_at=ended
    )


MEMBERS = [
    member(0, Market.ON_DEMAND, "3.6"),
    member(1, Market.SPOT, "0.36"),
    member(2, Market.SPOT, "0.36", seconds=120),
]


def training(members=MEMBERS, on_demand=None):
    (timeline,) = build_timelines(records())
    prices = {"c7i.xlarge": Decimal("3.6")} if on_demand is None else on_demand
    return summarize_training(timeline, members, on_demand=prices, disk_gib=0, now=THEN + timedelta(hours=1))


def test_steps_that_are_taken_again_have_a_price():
    """Two steps of a second were committed before all was lost, and again from an older state."""
    lost = [
        {**record, "lineage": "lost", "seconds": 1.0}
        for record in records()
        if record["record"] == "step" and record["step"] in {4, 5}
    ]
    (timeline,) = build_timelines([*lost, *records()])
    run = summarize_training(timeline, MEMBERS[:2], on_demand={}, disk_gib=0, now=THEN)
    assert run.steps_redone == 3
    # Two instances of which each is billed for 60 s.
    assert run.redone_usd == pytest.approx(run.usd * 2 / 60)
    text = render(training_report(run, cluster="sample", rehearsal=False), Format.TABLE)
    assert f"3 step(s) redone, which cost {money(run.redone_usd)} USD" in text


def test_a_stall_at_the_same_size_begins_a_line_with_its_pause():
    stalled = [dict(record) for record in records() if record["record"] == "step"]
    for record in stalled[5:]:
        record["time"] = (datetime.fromisoformat(record["time"]) + timedelta(seconds=395)).isoformat()
    (timeline,) = build_timelines(stalled)
    run = summarize_training(timeline, MEMBERS, on_demand={}, disk_gib=0, now=THEN)
    assert [(period.world_size, period.steps) for period in run.periods] == [(3, 5), (3, 5), (2, 10), (3, 10)]
    assert run.periods[1].pause_s == pytest.approx(395)
    assert [run.periods[0].pause_s, run.periods[2].pause_s] == [None, pytest.approx(0.5)]
    panels = timeline_charts(timeline, 0)
    assert {point["segment"] for point in panels[0].spec["data"]["values"]} == {0, 1}


def test_the_cost_beside_a_fixed_run_on_demand():
    run = training()
    address = ADDRESS_USD_PER_HOUR / 60
    assert round(run.usd - 4 * address, 9) == Decimal("0.06") + Decimal("0.006") + Decimal("0.012")
    assert round(market_usd(run, Market.SPOT) - 3 * address, 9) == Decimal("0.018")
    # Twenty seconds of boot, one to the first step, thirty at their usual speed: below the 60 s minimum.
    assert (run.baseline.instances, round(run.baseline.usd - 3 * address, 9)) == (3, Decimal("0.18"))
    assert run.saved_fraction == 1 - run.usd / run.baseline.usd


def test_traffic_is_bounded_while_instances_of_two_zones_are_up():
    """The ring of three workers sends 4 times the vector, that of two twice; the steps end at 31 s."""
    steps = [{**record, "reduced_bytes": 10**9} for record in records()]
    (timeline,) = build_timelines(steps)
    late = THEN + timedelta(seconds=12.6)  # after 12 steps, the last two of them of two workers
    first, *others = MEMBERS
    elsewhere = replace(first, instance=replace(first.instance, zone="us-east-1b"), ended_at=late)
    more = {"on_demand": {}, "disk_gib": 0, "now": THEN}
    assert summarize_training(timeline, MEMBERS, **more).traffic_gb == 0
    run = summarize_training(timeline, [elsewhere, *others], **more)
    assert run.traffic_gb == 10 * 4 + 2 * 2
    assert run.traffic_usd == Decimal("0.88")
    text = render(training_report(run, cluster="x", rehearsal=False), Format.TABLE)
    assert "traffic between zones, at most, not in the total: 44 GB, 0.880 USD" in " ".join(text.split())


def test_without_a_price_nothing_is_claimed():
    assert training(on_demand={}).baseline is None
    unknown = training([*MEMBERS, member(3, Market.SPOT, None)])
    assert (unknown.usd, unknown.saved_fraction) == (None, None)
    text = render(training_report(unknown, cluster="x", rehearsal=False), Format.TABLE)
    assert "a price is not known" in text


def test_an_instance_that_is_up_is_billed_until_now():
    up = replace(MEMBERS[0], ended_at=None)
    assert training([up]).costs[0].seconds == 3620


def test_the_report_fits_a_terminal_and_marks_a_rehearsal():
    report = training_report(training(), cluster="sample-1a2b", rehearsal=True)
    text = render(report, Format.TABLE)
    assert max(map(len, text.splitlines())) <= 80
    assert "rehearsal: the workers ran on this machine" in text
    assert "57 % saved" in text
    assert '"rehearsal": true' in render(report, Format.JSON)
