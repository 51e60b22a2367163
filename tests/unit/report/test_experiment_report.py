"""The table and the charts of an experiment: the best first for people, in their order for programs."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from dlcloud.analysis.cost import RunCost
from dlcloud.analysis.result import RunState
from dlcloud.analysis.trials import TrialState, TrialStatus, number_trials
from dlcloud.report.experiment import (
    MOST_POINTS,
    MOST_ROWS,
    ExperimentTable,
    experiment_charts,
    experiment_report,
)
from dlcloud.report.table import Format, render
from tests.fakes.samples import THEN, run

TRIALS = number_trials([{"lr": "0.1"}, {"lr": "0.3", "depth": "2"}, {"lr": "1.0"}])


def experiment(*statuses, **other):
    values = {
        "name": "sweep",
        "statuses": statuses,
        "costs": {},
        "metric": "accuracy",
        "maximize": True,
        "rehearsal": False,
        "total": len(statuses),
    }
    return ExperimentTable(**(values | other))


def table(*statuses):
    return experiment_report(experiment(*statuses))


def done(trial, value):
    return TrialStatus(trial=trial, state=TrialState.DONE, run=run(f"r-{trial.number}"), value=value)


def test_the_best_is_the_first_row_and_programs_have_all_in_order():
    report = table(done(TRIALS[0], 0.5), done(TRIALS[1], 0.9), done(TRIALS[2], None))
    rows = [row[:4] for row in report.sections[0].rows]
    assert rows == [("2", "0.3", "2", "0.9"), ("1", "0.1", "", "0.5"), ("3", "1.0", "", "")]
    assert [record["trial"] for record in report.records] == [1, 2, 3]
    assert report.extra["best"]["value_lr"] == "0.3"
    assert "1 trial(s) ended well without printing accuracy" in report.sections[0].notes


def test_what_was_printed_and_is_no_number_is_shown():
    report = table(done(TRIALS[0], 0.5), replace(done(TRIALS[1], None), printed="nan"))
    assert [row[3] for row in report.sections[0].rows] == ["0.5", "nan"]
    assert "1 trial(s) printed accuracy, but no finite number: nan" in report.sections[0].notes


def test_trials_that_were_given_up_are_named_with_their_logs():
    failed = TrialStatus(trial=TRIALS[0], state=TrialState.FAILED, run=run("r-1"), failures=2)
    text = render(table(failed), Format.TABLE, 80)
    assert "1 trial(s) were given up" in text
    assert "dlcloud logs r-1" in text
    assert "dlcloud up RECIPE --retry-failed runs them again" in text


def test_a_terminal_has_the_best_rows_and_says_how_many_more_there_are():
    trials = number_trials([{"lr": str(number)} for number in range(MOST_ROWS + 7)])
    report = table(*(done(trial, float(trial.number)) for trial in trials))
    assert len(report.sections[0].rows) == MOST_ROWS
    assert report.sections[0].notes == ["7 more trials: --output csv lists all"]
    assert len(report.records) == MOST_ROWS + 7
    assert max(map(len, render(report, Format.TABLE, 80).splitlines())) <= 80


def seeds_table():
    values = {("0.1", "1"): 2.0, ("0.1", "2"): 4.0, ("0.2", "1"): 1.0, ("0.2", "2"): 1e27, ("0.3", "1"): 0.5}
    trials = number_trials([{"lr": lr, "trainer.seed": seed} for lr, seed in values])
    statuses = [
        TrialStatus(trial=trial, state=TrialState.DONE, value=value)
        for trial, value in zip(trials, values.values(), strict=True)
    ]
    return experiment(*statuses, metric="loss", maximize=False)


def test_means_over_seeds_are_ranked_with_their_deviation():
    report = experiment_report(seeds_table())
    section = next(section for section in report.sections if section.heading == "means over seeds")
    assert section.titles == ("lr", "seeds", "mean loss", "deviation", "worst")
    assert section.rows == [("0.1", "2", "3", "1.414", "4"), ("0.2", "2", "5.00e+26", "7.07e+26", "1.00e+27")]
    assert report.extra["means"][0] == {
        "value_lr": "0.1",
        "seeds": 2,
        "mean": 3.0,
        "deviation": pytest.approx(1.4142, abs=1e-4),
        "worst": 4.0,
    }


def test_a_trial_that_diverged_is_shown_with_an_exponent_and_not_drawn():
    table = seeds_table()
    assert "1.00e+27" in experiment_report(table).sections[0].rows[-1]
    chart = experiment_charts(table, [])[0]
    assert chart.caption == "loss by lr, without 1 that diverged (trial 4)"
    assert max(value["y"] for value in chart.spec["data"]["values"]) == 4.0


COST = RunCost(
    boot_s=0, setup_s=0, run_s=10, rest_s=0, instance_usd=Decimal("0.5"), volume_usd=Decimal(0), final=True
)


def charts_of(values, *, costs=True, runs=()):
    statuses = [done(trial, float(trial.number)) for trial in number_trials(values)]
    known = {status.run.run_id: COST for status in statuses} if costs else {}
    charts = experiment_charts(experiment(*statuses, costs=known, rehearsal=True), runs)
    return {chart.name: chart for chart in charts}


def test_the_metric_is_drawn_by_each_parameter_and_by_cost():
    charts = charts_of([{"lr": "0.001", "kind": "relu"}, {"lr": "0.1", "kind": "gelu"}])
    assert list(charts) == ["parameter-0", "parameter-1", "cost"]
    by_rate, by_kind = charts["parameter-0"].spec, charts["parameter-1"].spec
    assert by_rate["encoding"]["x"]["scale"]["type"] == "log"
    assert [value["x"] for value in by_rate["data"]["values"]] == [0.001, 0.1]
    assert by_kind["encoding"]["x"]["type"] == "nominal"
    assert charts["cost"].spec["data"]["values"][0]["x"] == 0.5
    assert charts["parameter-0"].caption == "accuracy by lr (rehearsal)"


def test_without_costs_or_values_there_is_no_chart_of_them():
    assert list(charts_of([{"x": "1"}], costs=False)) == ["parameter-0"]
    assert charts_of([]) == {}


def test_many_trials_are_thinned_out():
    charts = charts_of([{"x": str(number)} for number in range(3 * MOST_POINTS)])
    assert len(charts["parameter-0"].spec["data"]["values"]) == MOST_POINTS


def test_runs_that_have_ended_are_drawn_over_time_by_instance():
    later = THEN + timedelta(seconds=5)
    runs = [
        run("a", started_at=THEN, ended_at=later, state=RunState.DONE, trial=1),
        run("b", started_at=later, ended_at=later + timedelta(seconds=2), state=RunState.LOST, trial=2),
        run("c", started_at=later, ended_at=None, state=RunState.RUNNING, trial=3),
    ]
    chart = charts_of([], runs=runs)["runs"]
    assert [(value["from"], value["to"], value["state"]) for value in chart.spec["data"]["values"]] == [
        (0.0, 5.0, "done"),
        (5.0, 7.0, "lost"),
    ]
