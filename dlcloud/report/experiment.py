"""An experiment as a table and as charts: its trials with their values, the metric, time and cost.

For people the best trial comes first; for programs trials keep their order. The charts show the metric by
each parameter and by cost, and the runs over time by instance.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from statistics import fmean, median, stdev
from typing import Any

from dlcloud.analysis.cost import RunCost
from dlcloud.analysis.result import Run, RunState
from dlcloud.analysis.trials import TrialState, TrialStatus, best_trial
from dlcloud.benchmarks.harness.numbers import read_number
from dlcloud.model.money import millionths, money
from dlcloud.report.cells import digits, short
from dlcloud.report.page import (
    BLUE,
    DESCRIPTION,
    PALETTE,
    ROW_PX,
    WIDE_SPREAD,
    Chart,
    Spec,
    field,
    nominal,
    scale,
)
from dlcloud.report.table import Cell, Report, Section

MOST_ROWS = 30
"""Of trials with a result, on a terminal; the other formats have all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentTable:
    """What the tables of an experiment are made of.

    Attributes:
        costs: Of the trials' runs, by run id.
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
    means = means_over_seeds(table)
    sections = [_trials(table), *_means(table, means), *([_failures(failed)] if failed else [])]
    names = _names(table.statuses)
    best = best_trial(table.statuses, maximize=table.maximize)
    return Report(
        command=command,
        records=[_record(table, status, names) for status in table.statuses],
        sections=sections,
        empty="",
        extra={
            "experiment": table.name,
            "best": None if best is None else _record(table, best, names),
            "means": [_mean_record(mean) for mean in means],
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanOverSeeds:
    """The metric of trials that differ in their seed alone; `deviation` is the sample's standard one."""

    values: Mapping[str, str]
    count: int
    mean: float
    deviation: float
    worst: float


def means_over_seeds(table: ExperimentTable) -> list[MeanOverSeeds]:
    """Return means of trials with equal values but for a seed, the best first; none without a seed."""
    groups: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for status in table.statuses:
        others = tuple((name, text) for name, text in status.trial.values.items() if not _is_seed(name))
        if status.value is not None and len(others) < len(status.trial.values):
            groups.setdefault(others, []).append(status.value)
    means = [
        MeanOverSeeds(
            values=dict(others),
            count=len(values),
            mean=fmean(values),
            deviation=stdev(values),
            worst=min(values) if table.maximize else max(values),
        )
        for others, values in groups.items()
        if len(values) > 1
    ]
    return sorted(means, key=lambda mean: mean.mean, reverse=table.maximize)


def _is_seed(name: str) -> bool:
    """True for `seed`, `data_seed`, `trainer.random-seed`."""
    return re.split(r"[^a-z]+", name.lower())[-1] == "seed"


def _means(table: ExperimentTable, means: Sequence[MeanOverSeeds]) -> list[Section]:
    if not means:
        return []
    names = list(dict.fromkeys(name for mean in means for name in mean.values))
    titles = (*names, "seeds", f"mean {table.metric}", "deviation", "worst")
    rows = [
        (
            *(mean.values.get(name, "") for name in names),
            str(mean.count),
            *(_figure(figure) for figure in (mean.mean, mean.deviation, mean.worst)),
        )
        for mean in means[:MOST_ROWS]
    ]
    return [
        Section(
            heading=f"means over seeds{_mark(table)}",
            titles=titles,
            rows=rows,
            numeric=frozenset(range(len(names), len(titles))),
        )
    ]


def _mean_record(mean: MeanOverSeeds) -> dict[str, Cell]:
    return {
        **{f"value_{name}": text for name, text in mean.values.items()},
        "seeds": mean.count,
        "mean": mean.mean,
        "deviation": mean.deviation,
        "worst": mean.worst,
    }


DIVERGED = 1e12


def _figure(value: float) -> str:
    """Return a figure; that of a trial that diverged with an exponent."""
    return f"{value:.2e}" if abs(value) >= DIVERGED else digits(value)


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
    no_number = [status.printed for status in done if status.value is None and status.printed]
    if no_number:
        texts = ", ".join(dict.fromkeys(no_number))
        notes.append(f"{len(no_number)} trial(s) printed {table.metric}, but no finite number: {texts}")
    if without := sum(status.value is None and not status.printed for status in done):
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
        *(short(status.trial.values.get(name, "")) for name in names),
        status.printed if status.value is None else _figure(status.value),
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
        "usd": millionths(usd),
        "rehearsal": table.rehearsal,
    }


FAR = 100
"""Median deviations from the median beyond which a trial is not drawn: it would scale all others away."""
FEWEST_VALUES = 4
MOST_DIVERGED = 5
MOST_POINTS = 2000
"""Of more trials, every second, third ... is drawn."""
HEIGHT_PX = 220
STATES = (RunState.DONE, RunState.FAILED, RunState.LOST, RunState.PRUNED, RunState.RUNNING)


def experiment_charts(table: ExperimentTable, runs: Sequence[Run]) -> list[Chart]:
    """Return the charts of an experiment; `runs` are all of its runs, the oldest first."""
    valued, diverged = _without_diverged(table.statuses)
    valued = valued[:: -(-len(valued) // MOST_POINTS)] if valued else []
    names = list(dict.fromkeys(name for status in valued for name in status.trial.values))
    charts = [_by_parameter(table, valued, name, place) for place, name in enumerate(names)] if valued else []
    charts += _by_cost(table, valued)
    if diverged:
        numbers = ", ".join(str(status.trial.number) for status in diverged[:MOST_DIVERGED])
        more = ", …" if len(diverged) > MOST_DIVERGED else ""
        note = f", without {len(diverged)} that diverged (trial {numbers}{more})"
        charts = [replace(chart, caption=f"{chart.caption}{note}") for chart in charts]
    return [*charts, *_over_time(table, runs)]


def _without_diverged(statuses: Sequence[TrialStatus]) -> tuple[list[TrialStatus], list[TrialStatus]]:
    """Return the trials with a metric, and those of them whose metric is far from most others."""
    pairs = [(status, status.value) for status in statuses if status.value is not None]
    middle = median(value for _, value in pairs) if pairs else 0.0
    spread = median(abs(value - middle) for _, value in pairs) if pairs else 0.0
    if len(pairs) < FEWEST_VALUES or not spread:
        return [status for status, _ in pairs], []
    far = [status for status, value in pairs if abs(value - middle) > FAR * spread]
    return [status for status, _ in pairs if status not in far], far


def _by_parameter(table: ExperimentTable, valued: Sequence[TrialStatus], name: str, place: int) -> Chart:
    texts = [status.trial.values.get(name, "") for status in valued]
    numbers = [read_number(text) for text in texts]
    numeric = [number for number in numbers if number is not None]
    is_numeric = len(numeric) == len(numbers)
    values = [
        {
            "x": number if is_numeric else text,
            "y": status.value,
            "description": f"{status.trial}: {table.metric} {digits(status.value or 0.0)}",
        }
        for status, text, number in zip(valued, texts, numbers, strict=True)
    ]
    is_wide = is_numeric and min(numeric) > 0 and max(numeric) >= WIDE_SPREAD * min(numeric)
    # Vega warns of a zero next to a logarithm.
    kind: Spec = {"type": "log"} if is_wide else {"type": "linear", "zero": False}
    x = field("x", name, scale={**kind, "nice": False})
    return Chart(
        name=f"parameter-{place}",
        caption=f"{table.metric} by {name}{_mark(table)}",
        spec=_points(values, x if is_numeric else nominal("x", name, axis={"labelAngle": 0}), table.metric),
        titles=(name, table.metric),
        rows=[(text, digits(status.value or 0.0)) for text, status in zip(texts, valued, strict=True)],
        numeric=frozenset({0, 1} if is_numeric else {1}),
    )


def _by_cost(table: ExperimentTable, valued: Sequence[TrialStatus]) -> list[Chart]:
    priced = [(status, usd) for status in valued if (usd := _usd(table, status)) is not None]
    if not priced:
        return []
    values = [
        {
            "x": float(usd),
            "y": status.value,
            "description": f"{status.trial}: {digits(status.value or 0.0)} for {money(usd)} USD",
        }
        for status, usd in priced
    ]
    chart = Chart(
        name="cost",
        caption=f"{table.metric} by cost{_mark(table)}",
        spec=_points(values, field("x", "USD", scale={"zero": False}, axis={"tickCount": 4}), table.metric),
        titles=("USD", table.metric),
        rows=[(money(usd), digits(status.value or 0.0)) for status, usd in priced],
        numeric=frozenset({0, 1}),
    )
    return [chart]


def _points(values: Sequence[dict[str, Any]], x: Spec, metric: str) -> Spec:
    return {
        "data": {"values": [*values]},
        "height": HEIGHT_PX,
        "mark": {"type": "point", "filled": True, "size": 50, "opacity": 0.75, "color": BLUE},
        "encoding": {
            "x": x,
            "y": field("y", metric, scale={"zero": False}),
            "description": DESCRIPTION,
            "tooltip": DESCRIPTION,
        },
    }


def _over_time(table: ExperimentTable, runs: Sequence[Run]) -> list[Chart]:
    runs = [run for run in runs if run.ended_at is not None]
    runs = runs[:: -(-len(runs) // MOST_POINTS)] if runs else []
    if not runs:
        return []
    first = min(run.started_at for run in runs)
    spans = [
        (run, _chart_seconds(first, run.started_at), _chart_seconds(first, run.ended_at)) for run in runs
    ]
    instances = list(dict.fromkeys(run.instance_id for run in runs))
    states = [str(state) for state in STATES if any(run.state is state for run in runs)]
    values = [
        {
            "instance": run.instance_id,
            "from": begun,
            "to": ended,
            "state": str(run.state),
            "description": f"trial {run.trial}, {begun:.1f} to {ended:.1f} s: {run.state}",
        }
        for run, begun, ended in spans
    ]
    spec = {
        "data": {"values": values},
        "height": ROW_PX * len(instances),
        "mark": {"type": "bar", "height": {"band": 0.7}, "stroke": "white", "strokeWidth": 0.3},
        "encoding": {
            "y": nominal("instance", None, sort=instances, axis={"labelLimit": 90}),
            "x": field("from", "seconds", scale={"nice": False}),
            "x2": {"field": "to"},
            "color": nominal("state", None, scale=scale(states, PALETTE)),
            "description": DESCRIPTION,
            "tooltip": DESCRIPTION,
        },
    }
    chart = Chart(
        name="runs",
        caption=f"{table.name}{_mark(table)}: runs by instance, from {first:%Y-%m-%d %H:%M:%S} UTC on",
        spec=spec,
        titles=("instance", "trial", "from s", "to s", "state"),
        rows=[
            (run.instance_id, str(run.trial), f"{begun:.1f}", f"{ended:.1f}", str(run.state))
            for run, begun, ended in spans
        ],
        numeric=frozenset({1, 2, 3}),
    )
    return [chart]


def _chart_seconds(first: datetime, moment: datetime | None) -> float:
    return 0.0 if moment is None else round((moment - first).total_seconds(), 3)
