"""The table of an experiment: the best first for people, in their order for programs."""

from dataclasses import replace

import pytest

from dlcloud.analysis.trials import Trial, TrialState, TrialStatus, number_trials
from dlcloud.report.experiment import (
    MOST_ROWS,
    ExperimentTable,
    experiment_charts,
    experiment_report,
)
from dlcloud.report.table import Format, render
from tests.fakes.samples import run

TRIALS = number_trials([{"lr": "0.1"}, {"lr": "0.3", "depth": "2"}, {"lr": "1.0"}])


def table(*statuses, **other):
    values = {
        "name": "sweep",
        "statuses": statuses,
        "costs": {},
        "metric": "accuracy",
        "maximize": True,
        "rehearsal": False,
        "total": len(statuses),
    }
    return experiment_report(ExperimentTable(**(values | other)))


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


def seeds_table(*, maximize=False):
    values = {("0.1", "1"): 2.0, ("0.1", "2"): 4.0, ("0.2", "1"): 1.0, ("0.2", "2"): 1e27, ("0.3", "1"): 0.5}
    statuses = [
        TrialStatus(
            trial=Trial(number=number, values={"lr": lr, "trainer.seed": seed}),
            state=TrialState.DONE,
            value=value,
        )
        for number, ((lr, seed), value) in enumerate(values.items(), start=1)
    ]
    return ExperimentTable(
        name="a", statuses=statuses, costs={}, metric="loss", maximize=maximize, rehearsal=False, total=5
    )


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
