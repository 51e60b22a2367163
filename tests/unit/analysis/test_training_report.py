"""An elastic training from its records and its instances: timeline, course, cost and report."""

import random
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from dlcloud.analysis.training import Happening, build_timelines, course_of, market_usd, summarize_training
from dlcloud.model.instance import Market
from dlcloud.model.money import ADDRESS_USD_PER_HOUR, money
from dlcloud.report.table import Format, Report, render
from dlcloud.report.training import (
    course_charts,
    step_charts,
    timeline_charts,
    training_records,
    training_report,
    trainings_section,
)
from tests.fakes import samples
from tests.fakes.samples import THEN

NOW = THEN + timedelta(hours=1)
WORKERS = [("i-0", "i-1"), ("i-0", "i-1"), ("i-0",), ("i-0", "i-2")]


def record(kind, at, worker="w0", **values):
    time = (THEN + timedelta(seconds=at)).isoformat()
    return {"record": kind, "time": time, "run": "digits", "worker": worker, **values}


def step(number, at, world_size=1, worker="w0", **other):
    values = {"step": number, "world_size": world_size, "samples": 64, "loss": 2.0, "seconds": 0.5, **other}
    return record("step", at, worker, **values)


def records(workers=WORKERS):
    """A step of 100 samples every 10 s; every worker of a step records it."""
    for number, names in enumerate(workers, 1):
        for name in names:
            more = {"samples": 100, "loss": 1 / number, "seconds": 10.0}
            yield step(number, 10 * number, len(names), name, **more)
    events = [
        (5, "joined", "i-0", {}), (16, "notice", "i-1", {}), (24, "lost", "i-0", {"workers": ["i-1"]}),
        (24.1, "lost", "i-2", {"workers": ["i-1"]}), (35, "healed", "i-2", {}), (35.1, "joined", "i-2", {}),
        (36, "checkpoint", "i-0", {}), (40, "drained", "i-2", {}),
    ]  # fmt: skip
    for seconds, name, worker, more in events:
        yield record("event", seconds, worker, event=name, **more)


def member(number, market, usd, *, launched_s=-20, seconds=60):
    launched_at = THEN + timedelta(seconds=launched_s)
    ended_at = launched_at + timedelta(seconds=seconds)
    return samples.member(number, market, usd, launched_at=launched_at, ended_at=ended_at)


MEMBERS = [
    member(0, Market.ON_DEMAND, "3.6", seconds=90),
    member(1, Market.SPOT, "0.36", seconds=50),
    member(2, Market.SPOT, "0.36", launched_s=20, seconds=40),
]


def summary(members=MEMBERS, **options):
    (timeline,) = build_timelines(records(**options))
    prices = {"c7i.xlarge": Decimal("3.6")}
    training = summarize_training(timeline, members, on_demand=prices, disk_gib=0, now=NOW)
    course = course_of(timeline, members, baseline=training.baseline, disk_gib=0, now=NOW)
    return timeline, training, course


def test_each_happening_is_marked_once_and_names_its_worker():
    _, _, course = summary()
    assert [(mark.at_s, mark.happening, mark.worker) for mark in course.marks] == [
        (25, Happening.JOIN, "i-0"),
        (36, Happening.NOTICE, "i-1"),
        (44, Happening.LOSS, "i-1"),
        (55, Happening.JOIN, "i-2"),
        (60, Happening.DRAIN, "i-2"),
    ]


def test_the_bill_ends_with_what_the_training_cost():
    _, training, course = summary()
    assert course.bill[-1] == (course.end_s, training.usd)
    assert [usd for _, usd in course.bill] == sorted(usd for _, usd in course.bill)
    assert course.bill[0][1] > Decimal("0.06")
    assert course.fixed_bill[-1] == (training.baseline.seconds, training.baseline.usd)


def test_an_interrupted_instance_is_free_only_once_it_has_ended():
    members = [*MEMBERS[:1], replace(MEMBERS[1], interrupted=True)]
    _, training, course = summary(members)
    before, after = (dict(course.bill)[at_s] for at_s in (49.5, 50))
    assert before - after > Decimal("0.005")
    assert course.bill[-1] == (90, training.usd)


def test_an_unknown_price_draws_no_bill():
    _, _, course = summary([replace(MEMBERS[0], hourly_usd=None), *MEMBERS[1:]])
    assert course.bill == ()
    assert [chart.name for chart in course_charts("t", course, 0, rehearsal=False)] == ["training-0-workers"]


def test_the_picture_has_workers_marks_bill_throughput_and_loss():
    timeline, _, course = summary()
    charts = course_charts("t", course, 0, rehearsal=True) + step_charts(timeline, "t", 0, course)
    titles = [chart.caption.partition(": ")[2] for chart in charts]
    assert titles == ["workers by market and type", "USD so far", "samples/s", "loss"]
    start, _, points = charts[0].spec["layer"]
    assert start["data"]["values"][0]["to"] == 30
    assert {point["happening"] for point in points["data"]["values"]} == set(map(str, Happening))
    domains = [
        (chart.spec.get("layer") or [chart.spec])[-1]["encoding"]["x"]["scale"]["domain"] for chart in charts
    ]
    assert domains == [[0, 90]] * 4
    assert ("44.0", "loss", "i-1", "2", "") in [tuple(row) for row in charts[0].rows]


def test_a_training_has_its_row():
    _, training, _ = summary()
    assert (training.start_s, training.trained_s, training.samples_per_s) == (30, 40, 10)
    assert training.is_minimum_billed
    rows = {"t-1": (training, True)}
    (record,) = training_records(rows)
    assert record["usd_per_million"] == round(training.usd * 2500, 6)
    assert record["longest_pause_seconds"] == pytest.approx(0)
    report = Report(command="x", records=[], sections=trainings_section(rows, whole=False), empty="")
    text = render(report, Format.TABLE, 80)
    assert "t-1" in text
    assert "EC2 bills a minute of each instance at least, which decides: t-1" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_run_of_one_step_claims_no_saving_and_no_speed():
    _, training, course = summary(workers=WORKERS[:1])
    assert (training.saved_fraction, training.samples_per_s) == (None, None)
    assert course_charts("t", course, 0, rehearsal=False)
    text = render(
        Report(command="x", records=[], sections=trainings_section({"t": (training, False)}), empty=""),
        Format.TABLE,
    )
    assert "%" not in text


RECORDS = [
    record("event", 0, event="worker_started", cause="asked for"),
    step(1, 1),
    step(2, 2, 2),
    step(2, 2.1, 2, "w1"),
    record("event", 2.5, "w1", event="drain", cause="notice"),
    step(3, 3, seconds=0, loss=None),
]


def test_a_timeline_has_each_step_once_and_its_events_with_their_causes():
    (timeline,) = build_timelines(random.Random(1).sample(RECORDS, len(RECORDS)))
    assert [(step.step, step.at_s, step.world_size) for step in timeline.steps] == [
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 1),
    ]
    assert [step.throughput for step in timeline.steps] == [128, 128, None]
    assert [(event.at_s, event.event, event.cause, event.worker) for event in timeline.events] == [
        (0, "worker started", "asked for", "w0"),
        (2.5, "drain", "notice", "w1"),
    ]
    assert (timeline.run, timeline.began_at) == ("digits", THEN)


def test_the_step_of_another_cluster_that_a_checkpoint_brought_is_left_out():
    """It began the timeline: the time between the clusters was a pause, and no time passed before it."""
    (timeline,) = build_timelines([step(1, -3600), step(2, 1), step(3, 2)], since=THEN)
    assert [(step.step, step.at_s) for step in timeline.steps] == [(2, 0), (3, 1)]


def test_records_that_cannot_be_read_are_left_out():
    broken = [step("x", 1), step(2, 1, None), {"record": "step"}, record("step", 1), {"record": "end"}, {}]
    assert build_timelines(broken) == []
    assert len(build_timelines([*broken, step(1, 1)])[0].steps) == 1
    assert build_timelines([record("event", 1, event="drain", cause="x")]) == []


def test_of_a_step_that_was_committed_twice_the_later_commit_counts():
    """A coordinator committed step 3 alone and was lost; the others took it again."""
    records = [
        step(2, 1, 3, lineage=5),
        step(3, 2, 3, lineage=6, loss=1.0),
        step(3, 9, 2, "w1", lineage=7, loss=3.0),
        step(3, 9.1, 2, "w2", lineage=7, loss=3.0),
    ]
    (timeline,) = build_timelines(records)
    assert [(step.step, step.loss, step.at_s) for step in timeline.steps] == [(2, 2.0, 0), (3, 3.0, 8)]
    assert len(timeline.replaced) == 1


def test_a_commit_that_no_later_step_descends_from_is_replaced():
    """A worker was stopped in a step; it records it when it wakes, long after the others took it again."""
    records = [
        step(2, 1, 3, lineage=5, parent=4),
        step(3, 2, 2, lineage=6, parent=5, loss=1.0),
        step(4, 3, 2, lineage=8, parent=6, loss=1.5),
        step(3, 9, 3, "woken", lineage=7, parent=5, loss=3.0),
        step(5, 10, 2, lineage=9, parent=8, loss=1.25),
    ]
    (timeline,) = build_timelines(records)
    assert [(step.step, step.loss) for step in timeline.steps] == [(2, 2.0), (3, 1.0), (4, 1.5), (5, 1.25)]
    assert [step.loss for step in timeline.replaced] == [3.0]


def test_steps_taken_again_from_an_older_state_count_at_once():
    steps = [step(n, n, lineage=n, parent=n - 1, loss=1.0) for n in range(1, 5)]
    again = [step(2, 8, lineage=12, parent=1, loss=2.0), step(3, 9, lineage=13, parent=12, loss=2.0)]
    (timeline,) = build_timelines([*steps, *again])
    assert [step.loss for step in timeline.steps] == [1.0, 2.0, 2.0, 1.0]


SIZES = [3] * 10 + [2] * 10 + [3] * 10


def resized_records():
    """A step each second; the first at another size takes half a second more."""
    at = 0.0
    for number, size in enumerate(SIZES, 1):
        changed = number > 1 and SIZES[number - 2] != size
        seconds = 1.5 if changed else 1.0
        at += seconds
        yield step(number, at, size, "i-0", samples=96, loss=1.0 / number, seconds=seconds)
    for name in ("notice", "retry", "worker_started", "done"):
        yield record("event", 0, "i-1", event=name)


RESIZED = [
    member(0, Market.ON_DEMAND, "3.6"),
    member(1, Market.SPOT, "0.36"),
    member(2, Market.SPOT, "0.36", seconds=120),
]


def training(members=RESIZED, on_demand=None):
    (timeline,) = build_timelines(resized_records())
    prices = {"c7i.xlarge": Decimal("3.6")} if on_demand is None else on_demand
    return summarize_training(timeline, members, on_demand=prices, disk_gib=0, now=THEN + timedelta(hours=1))


def test_steps_that_are_taken_again_have_a_price():
    """Two steps of a second were committed before all was lost, and again from an older state."""
    lost = [
        {**record, "lineage": "lost", "seconds": 1.0}
        for record in resized_records()
        if record["record"] == "step" and record["step"] in {4, 5}
    ]
    (timeline,) = build_timelines([*lost, *resized_records()])
    run = summarize_training(timeline, RESIZED[:2], on_demand={}, disk_gib=0, now=THEN)
    assert run.steps_redone == 3
    # Two instances of which each is billed for 60 s.
    assert run.redone_usd == pytest.approx(run.usd * 2 / 60)
    text = render(training_report(run, cluster="sample", rehearsal=False), Format.TABLE)
    assert f"3 step(s) redone, which cost {money(run.redone_usd)} USD" in text


def test_a_stall_at_the_same_size_begins_a_line_with_its_pause():
    stalled = [dict(record) for record in resized_records() if record["record"] == "step"]
    for record in stalled[5:]:
        record["time"] = (datetime.fromisoformat(record["time"]) + timedelta(seconds=395)).isoformat()
    (timeline,) = build_timelines(stalled)
    run = summarize_training(timeline, RESIZED, on_demand={}, disk_gib=0, now=THEN)
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
    steps = [{**record, "reduced_bytes": 10**9} for record in resized_records()]
    (timeline,) = build_timelines(steps)
    late = THEN + timedelta(seconds=12.6)  # after 12 steps, the last two of them of two workers
    first, *others = RESIZED
    elsewhere = replace(first, instance=replace(first.instance, zone="us-east-1b"), ended_at=late)
    more = {"on_demand": {}, "disk_gib": 0, "now": THEN}
    assert summarize_training(timeline, RESIZED, **more).traffic_gb == 0
    run = summarize_training(timeline, [elsewhere, *others], **more)
    assert run.traffic_gb == 10 * 4 + 2 * 2
    assert run.traffic_usd == Decimal("0.88")
    text = render(training_report(run, cluster="x", rehearsal=False), Format.TABLE)
    assert "traffic between zones, at most, not in the total: 44 GB, 0.880 USD" in " ".join(text.split())


def test_without_a_price_nothing_is_claimed():
    assert training(on_demand={}).baseline is None
    unknown = training([*RESIZED, member(3, Market.SPOT, None)])
    assert (unknown.usd, unknown.saved_fraction) == (None, None)
    text = render(training_report(unknown, cluster="x", rehearsal=False), Format.TABLE)
    assert "a price is not known" in text


def test_an_instance_that_is_up_is_billed_until_now():
    up = replace(RESIZED[0], ended_at=None)
    assert training([up]).costs[0].seconds == 3620


def test_the_report_fits_a_terminal_and_marks_a_rehearsal():
    report = training_report(training(), cluster="sample-1a2b", rehearsal=True)
    text = render(report, Format.TABLE)
    assert max(map(len, text.splitlines())) <= 80
    assert "rehearsal: the workers ran on this machine" in text
    assert "57 % saved" in text
    assert '"rehearsal": true' in render(report, Format.JSON)
