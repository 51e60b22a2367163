"""The charts of an experiment: every trial with a value, every run that has ended."""

from datetime import timedelta
from decimal import Decimal

from dlcloud.analysis.cost import RunCost
from dlcloud.analysis.result import RunState
from dlcloud.analysis.trials import TrialState, TrialStatus, number_trials
from dlcloud.report.experiment import MOST_POINTS, ExperimentTable, experiment_charts
from tests.fakes.samples import THEN, run

COST = RunCost(
    boot_s=0, setup_s=0, run_s=10, rest_s=0, instance_usd=Decimal("0.5"), volume_usd=Decimal(0), final=True
)


def charts_of(values, *, costs=True, runs=()):
    statuses = [
        TrialStatus(
            trial=trial, state=TrialState.DONE, run=run(f"r-{trial.number}"), value=float(trial.number)
        )
        for trial in number_trials(values)
    ]
    table = ExperimentTable(
        name="sweep",
        statuses=statuses,
        costs={status.run.run_id: COST for status in statuses} if costs else {},
        metric="accuracy",
        maximize=True,
        rehearsal=True,
        total=len(statuses),
    )
    return {chart.name: chart for chart in experiment_charts(table, runs)}


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
