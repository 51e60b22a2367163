"""The course of an elastic training: workers by pool, what happened to them, and the bill."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from dlcloud.analysis.training import Happening, build_timelines, course_of, summarize_training
from dlcloud.model.cluster import Member
from dlcloud.model.instance import Market
from dlcloud.report.table import Format, Report, render
from dlcloud.report.training import course_charts, step_charts, training_records, trainings_section
from tests.fakes.samples import THEN, instance

NOW = THEN + timedelta(hours=1)
WORKERS = [("i-0", "i-1"), ("i-0", "i-1"), ("i-0",), ("i-0", "i-2")]


def at(seconds):
    return (THEN + timedelta(seconds=seconds)).isoformat()


def records(workers=WORKERS, missing=()):
    """A step of 100 samples every 10 s; every worker of a step records it."""
    for number, names in enumerate(workers, 1):
        for name in names:
            if (number, name) not in missing:
                yield {
                    "record": "step", "run": "r", "worker": name, "time": at(10 * number), "step": number,
                    "samples": 100, "world_size": len(names), "loss": 1 / number, "seconds": 10.0,
                }  # fmt: skip
    events = [
        (5, "joined", "i-0", {}), (16, "notice", "i-1", {}), (24, "lost", "i-0", {"workers": ["i-1"]}),
        (24.1, "lost", "i-2", {"workers": ["i-1"]}), (35, "healed", "i-2", {}), (35.1, "joined", "i-2", {}),
        (36, "checkpoint", "i-0", {}), (40, "drained", "i-2", {}),
    ]  # fmt: skip
    for seconds, name, worker, more in events:
        yield {"record": "event", "run": "r", "worker": worker, "time": at(seconds), "event": name, **more}


def member(number, market, usd, *, launched_s, seconds, **more):
    launched_at = THEN + timedelta(seconds=launched_s)
    return Member(
        instance=instance(f"i-{number}", market=market, launched_at=launched_at),
        hourly_usd=usd and Decimal(usd),
        ended_at=launched_at + timedelta(seconds=seconds),
        **more,
    )


MEMBERS = [
    member(0, Market.ON_DEMAND, "3.6", launched_s=-20, seconds=90),
    member(1, Market.SPOT, "0.36", launched_s=-20, seconds=50),
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
