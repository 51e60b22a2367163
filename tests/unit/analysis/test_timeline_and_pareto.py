"""The Pareto front, and timelines out of trainers' records."""

import random
from datetime import timedelta

from dlcloud.analysis.ranking import pareto_front
from dlcloud.analysis.training import build_timelines
from dlcloud.model.instance import Market
from tests.fakes.samples import THEN
from tests.unit.analysis.test_ranking import line


def test_several_rehearsed_types_have_no_front():
    rehearsed = [line(1, 2, 3, cloud="local"), line(4, 5, 6, kind="c7i.large", cloud="local")]
    assert pareto_front(rehearsed, Market.ON_DEMAND) == []
    assert len(pareto_front(rehearsed[:1], Market.ON_DEMAND)) == 1


def record(kind, at, worker="w0", **values):
    time = (THEN + timedelta(seconds=at)).isoformat()
    return {"record": kind, "time": time, "run": "digits", "worker": worker, **values}


def step(number, at, world_size=1, worker="w0", **other):
    values = {"step": number, "world_size": world_size, "samples": 64, "loss": 2.0, "seconds": 0.5, **other}
    return record("step", at, worker, **values)


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
