"""The status of trials by their runs, their metric, and the best of them."""

from dataclasses import replace
from decimal import Decimal

import pytest

from dlcloud.analysis.result import RunState, result_of
from dlcloud.analysis.trials import (
    ExperimentProgress,
    Trial,
    TrialState,
    TrialStatus,
    assess_search,
    assess_trials,
    intermediate_of,
    metric_of,
    number_trials,
    printed_of,
    usd_at_end,
)
from dlcloud.model.cluster import Member
from tests.fakes.samples import THEN, instance, run

ONE, TWO = number_trials([{"lr": "0.1"}, {"lr": "0.3", "depth": "2"}])


def of(trial, state, name="r-1", **other):
    return run(name, state=state, experiment="e", trial=trial.number, trial_values=trial.key, **other)


def states(runs, attempts=2, trials=(ONE, TWO)):
    return [(status.state, status.failures) for status in assess_trials(trials, runs, {}, attempts=attempts)]


@pytest.mark.parametrize(
    ("ended", "state"),
    [
        ([], (TrialState.WAITING, 0)),
        ([RunState.RUNNING], (TrialState.RUNNING, 0)),
        ([RunState.LOST, RunState.LOST, RunState.LOST], (TrialState.WAITING, 0)),
        ([RunState.FAILED], (TrialState.WAITING, 1)),
        ([RunState.FAILED, RunState.LOST, RunState.FAILED], (TrialState.FAILED, 2)),
        ([RunState.FAILED, RunState.FAILED, RunState.DONE], (TrialState.DONE, 2)),
        ([RunState.FAILED, RunState.RUNNING], (TrialState.RUNNING, 1)),
    ],
)
def test_a_lost_instance_is_no_failure_of_its_trial(ended, state):
    runs = [of(ONE, one, f"r-{number}") for number, one in enumerate(ended)]
    assert states(runs) == [state, (TrialState.WAITING, 0)]


def test_a_trial_is_known_by_its_values_when_the_matrix_has_grown():
    grown = number_trials([{"lr": "0.03"}, {"lr": "0.1"}])
    (new, known) = assess_trials(grown, [of(ONE, RunState.DONE)], {"r-1": 0.5}, attempts=1)
    assert (new.state, known.state, known.trial.number, known.value) == (
        TrialState.WAITING,
        TrialState.DONE,
        2,
        0.5,
    )


def test_two_trials_of_a_search_may_have_the_same_values():
    again = Trial(number=5, values=ONE.values)
    runs = [of(ONE, RunState.DONE), of(again, RunState.FAILED, "r-2")]
    statuses = assess_search(runs, {"r-1": 3.0}, attempts=1)
    assert [(status.trial, status.state, status.value) for status in statuses] == [
        (ONE, TrialState.DONE, 3.0),
        (again, TrialState.FAILED, None),
    ]


@pytest.mark.parametrize(
    ("printed", "value"),
    [("0.5", 0.5), ("0.5, 0.9, 0.7", 0.7), ("1e-3", 0.001), ("not printed", None), ("nan", None), ("", None),
     ("1,234.5", 1234.5), ("93.5%", 93.5), ("1.2k", 1200.0), ("inf", None), ("12,5", None)],
)  # fmt: skip
def test_a_fact_counts_by_the_median_of_its_runs(printed, value):
    result = result_of({"metrics": {}, "facts": {"printed": {"accuracy": printed}}})
    assert metric_of(result, "accuracy") == value
    no_number = "" if value is not None or printed == "not printed" else printed
    assert printed_of(result, "accuracy") == no_number


def test_throughput_and_time_are_metrics():
    metric = {"value": 5.0, "unit": "images/s"}
    result = result_of({"metrics": {"throughput": metric, "duration": {"value": 2.0, "unit": "s"}}})
    assert (metric_of(result, "throughput"), metric_of(result, "time")) == (5.0, 2.0)
    assert metric_of(result_of({"metrics": {}}), "throughput") is None


def test_only_a_number_of_a_step_is_an_intermediate_value():
    record = {"record": "intermediate", "step": 3, "value": 0.5}
    assert intermediate_of(record) == (3, 0.5)
    for change in ({"record": "sample"}, {"step": "3"}, {"step": 0}, {"value": "x"}, {"value": None}):
        assert intermediate_of({**record, **change}) is None


def test_progress_is_a_line_and_a_table():
    best = TrialStatus(trial=ONE, state=TrialState.DONE, value=0.91234)
    progress = ExperimentProgress(
        total=200, done=40, running=4, failed=1, pruned=0, usd=Decimal("0.12"), left_s=60.0, best=best
    )
    progress = replace(progress, end_usd=Decimal("0.6"))
    assert progress.describe() == (
        "40 of 200 trials done, 4 running, 1 failed, 155 left, 0.120 USD so far, about 0.600 USD at the end, "
        "best 0.9123 (lr=0.1)"
    )
    assert dict(progress.rows()) == {
        "done": "40 of 200",
        "running": "4",
        "failed": "1",
        "left": "155",
        "USD so far": "0.120",
        "USD at the end": "about 0.600",
        "best so far": "0.9123 (lr=0.1)",
    }


def test_the_cost_at_the_end_is_that_of_the_living_instances():
    priced = Member(instance=instance(), hourly_usd=Decimal(1))
    ended = replace(priced, ended_at=THEN)
    place = {"disk_gib": 0, "region": "us-east-1"}
    more = usd_at_end([priced, ended], Decimal(2), 3600.0, **place) - Decimal(2)
    assert Decimal(1) <= more < Decimal("1.01")
    assert usd_at_end([replace(priced, hourly_usd=None)], Decimal(2), 3600.0, **place) is None
    assert usd_at_end([priced], Decimal(2), None, **place) is None
