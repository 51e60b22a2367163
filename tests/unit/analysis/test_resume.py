"""What a new run takes over of those that were cut off."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from dlcloud.analysis.result import RunState
from dlcloud.analysis.resume import RESUME_WINDOW, expected_hours, finished_cases, resumable_runs
from tests.fakes.samples import run

DONE, FAILED, LOST, RUNNING = RunState.DONE, RunState.FAILED, RunState.LOST, RunState.RUNNING
NEW = replace(run("new"), state=RUNNING)


def before(minutes, state=LOST, **other):
    at = NEW.started_at - timedelta(minutes=minutes)
    return replace(NEW, run_id=f"{state}-{minutes}", state=state, started_at=at, **other)


def chosen(*runs):
    return [candidate.run_id for candidate in resumable_runs([*runs, NEW], NEW)]


def test_interrupted_runs_of_the_same_kind_are_chosen_oldest_first():
    assert chosen(before(10), before(30, FAILED), before(20)) == ["failed-30", "lost-20", "lost-10"]


@pytest.mark.parametrize(
    "other", [{"workload": "other"}, {"instance_type": "g4dn.xlarge"}, {"cloud": "aws2"}]
)
def test_other_work_types_and_clouds_do_not_count(other):
    assert chosen(before(10, **other)) == []


def test_runs_under_way_and_old_ones_do_not_count():
    assert chosen(before(10, RUNNING)) == []
    assert chosen(before(RESUME_WINDOW.total_seconds() / 60 + 1)) == []


def lines(*records):
    return [json.dumps({"record": kind, **other}) for kind, other in records]


START = ("start", {"host": "i-1"})
RESULT = ("result", {"case": "a", "setting": "fp32"})
END = ("case", {"case": "a", "settings": ["fp32"], "complete": True, "seconds": 3.2, "host": "i-1"})


def test_a_finished_case_has_its_start_but_no_samples_or_progress():
    best = ("overall", {"case": "a", "ratio": 2.0})
    records = lines(START, ("progress", {}), ("sample", {}), RESULT, best, END, ("result", {"case": "b"}))
    (case,) = finished_cases(records)
    assert (case.name, case.start, case.lines) == ("a", records[0], (records[3], records[4], records[5]))


def test_a_case_that_failed_or_was_cut_off_is_not_finished():
    assert finished_cases(lines(START, RESULT, ("case", END[1] | {"complete": False}))) == []
    assert finished_cases(lines(START, RESULT, START, END))[0].lines == tuple(lines(END))
    assert finished_cases([*lines(RESULT, END), "", "{"]) == []


def test_what_was_taken_over_once_is_not_sent_twice():
    again = ("case", END[1] | {"time": "later"})
    assert len(finished_cases(lines(START, RESULT, END, START, RESULT, again))) == 1


def test_starting_over_costs_more_the_longer_the_work():
    resumed, anew = expected_hours(4.0)
    assert resumed == pytest.approx(4.04)
    assert anew == pytest.approx(4.97, abs=0.01)
    assert expected_hours(40.0)[1] > 500
