"""An experiment as a table: its trials with their values, the metric, time and cost; the best first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from dlcloud.model.money import money, rounded
from dlcloud.report.cells import digits
from dlcloud.report.table import Cell, Report, Section
from dlcloud.results.cost import RunCost
from dlcloud.results.trials import TrialState, TrialStatus, best_trial

MOST_ROWS = 30
"""Of trials with a result, on a terminal; the other formats have all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentTable:
    """What the tables of an experiment are made of.

    Attributes:
        name: Of the recipe.
        statuses: Of all trials, in their order.
        costs: Of the trials' runs, by run id.
        metric: Its name.
        maximize: Whether the largest metric is best.
        rehearsal: It ran on the local EC2.
        total: All trials, with those that a search has not chosen yet.
    """

    name: str
    statuses: Sequence[TrialStatus]
    costs: Mapping[str, RunCost]
    metric: str
    maximize: bool
    rehearsal: bool
    total: int


def experiment_report(table: ExperimentTable, *, command: str = "up") -> Report:
    """Return the trials: for programs in their order, for people the best first."""
    failed = [status for status in table.statuses if status.state is TrialState.FAILED]
    sections = [_trials(table), *([_failures(failed)] if failed else [])]
    names = _names(table.statuses)
    best = best_trial(table.statuses, maximize=table.maximize)
    return Report(
        command=command,
        records=[_record(table, status, names) for status in table.statuses],
        sections=sections,
        empty="",
        extra={"experiment": table.name, "best": None if best is None else _record(table, best, names)},
    )


def _trials(table: ExperimentTable) -> Section:
    done = [status for status in table.statuses if status.state is TrialState.DONE]
    ranked = sorted(done, key=lambda status: _rank(status, maximize=table.maximize))
    shown = ranked[:MOST_ROWS]
    names = _names(table.statuses)
    titles = ("trial", *names, table.metric, "s", "USD", "type", "run")
    count = len(titles)
    return Section(
        heading=f"experiment {table.name}: {len(done)} of {table.total} trials have a result{_mark(table)}",
        titles=titles,
        rows=[_row(table, status, names) for status in shown],
        notes=[*_notes(table, done, shown)],
        numeric=frozenset({0, count - 5, count - 4, count - 3}),
        optional=(count - 2, count - 1),
    )


def _mark(table: ExperimentTable) -> str:
    return " (rehearsal)" if table.rehearsal else ""


def _notes(table: ExperimentTable, done: Sequence[TrialStatus], shown: Sequence[TrialStatus]) -> list[str]:
    notes = []
    if len(done) > len(shown):
        notes.append(f"{len(done) - len(shown)} more trials: --output csv lists all")
    if pruned := sum(status.state is TrialState.PRUNED for status in table.statuses):
        notes.append(f"{pruned} trial(s) were pruned: they lagged behind the others")
    without = sum(status.value is None for status in done)
    if without:
        notes.append(f"{without} trial(s) ended well without printing {table.metric}")
    if table.rehearsal:
        notes.append("rehearsal on this machine: times are its own, prices those of the types")
    return notes


def _failures(failed: Sequence[TrialStatus]) -> Section:
    return Section(
        heading=f"{len(failed)} trial(s) were given up",
        titles=("trial", "values", "failures", "log"),
        rows=[
            (
                str(status.trial.number),
                str(status.trial),
                str(status.failures),
                "" if status.run is None else f"dlcloud logs {status.run.run_id}",
            )
            for status in failed
        ],
        notes=["dlcloud up RECIPE --retry-failed runs them again"],
        numeric=frozenset({0, 2}),
    )


def _rank(status: TrialStatus, *, maximize: bool) -> tuple[bool, float, int]:
    value = status.value or 0.0
    return status.value is None, -value if maximize else value, status.trial.number


def _names(statuses: Sequence[TrialStatus]) -> list[str]:
    return [*dict.fromkeys(name for status in statuses for name in status.trial.values)]


def _row(table: ExperimentTable, status: TrialStatus, names: Sequence[str]) -> tuple[str, ...]:
    usd = _usd(table, status)
    return (
        str(status.trial.number),
        *(status.trial.values.get(name, "") for name in names),
        "" if status.value is None else digits(status.value),
        _seconds_text(status),
        "" if usd is None else money(usd),
        "" if status.run is None else status.run.instance_type,
        "" if status.run is None else status.run.run_id,
    )


def _seconds_text(status: TrialStatus) -> str:
    seconds = _seconds(status)
    return "" if seconds is None else f"{seconds:.1f}"


def _seconds(status: TrialStatus) -> float | None:
    run = status.run
    if run is None or run.ended_at is None:
        return None
    return (run.ended_at - run.started_at).total_seconds()


def _usd(table: ExperimentTable, status: TrialStatus) -> Decimal | None:
    cost = None if status.run is None else table.costs.get(status.run.run_id)
    return None if cost is None else cost.usd


def _record(table: ExperimentTable, status: TrialStatus, names: Sequence[str]) -> dict[str, Cell]:
    run, usd = status.run, _usd(table, status)
    return {
        "trial": status.trial.number,
        "state": str(status.state),
        **{f"value_{name}": status.trial.values.get(name) for name in names},
        "metric": table.metric,
        "value": status.value,
        "failures": status.failures,
        "run": None if run is None else run.run_id,
        "instance_type": None if run is None else run.instance_type,
        "market": None if run is None else str(run.market),
        "started_at": None if run is None else run.started_at,
        "seconds": _seconds(status),
        "usd": None if usd is None else rounded(usd, 6),
        "rehearsal": table.rehearsal,
    }
