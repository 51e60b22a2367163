"""An experiment as charts: the metric by each parameter and by cost, and its runs over time by instance."""

from collections.abc import Sequence
from datetime import datetime
from math import isfinite
from typing import Any

from dlcloud.model.money import money
from dlcloud.report.cells import digits
from dlcloud.report.chart import (
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
from dlcloud.report.experiment_tables import ExperimentTable
from dlcloud.results.result import Run, RunState
from dlcloud.results.trials import TrialStatus

MOST_POINTS = 2000
"""Of more trials, every second, third ... is drawn."""
HEIGHT_PX = 220
STATES = (RunState.DONE, RunState.FAILED, RunState.LOST, RunState.PRUNED, RunState.RUNNING)


def experiment_charts(table: ExperimentTable, runs: Sequence[Run]) -> list[Chart]:
    """Return the charts of an experiment; `runs` are all of its runs, the oldest first."""
    valued = [status for status in table.statuses if status.value is not None]
    valued = valued[:: -(-len(valued) // MOST_POINTS)] if valued else []
    names = list(dict.fromkeys(name for status in valued for name in status.trial.values))
    charts = [_by_parameter(table, valued, name, place) for place, name in enumerate(names)] if valued else []
    return [*charts, *_by_cost(table, valued), *_over_time(table, runs)]


def _by_parameter(table: ExperimentTable, valued: Sequence[TrialStatus], name: str, place: int) -> Chart:
    texts = [status.trial.values.get(name, "") for status in valued]
    numbers = [_number(text) for text in texts]
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
    # Vega warns of a zero beside a logarithm.
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
    priced = [
        (status, cost.usd)
        for status in valued
        if status.run and (cost := table.costs.get(status.run.run_id)) and cost.usd is not None
    ]
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
    spans = [(run, _seconds(first, run.started_at), _seconds(first, run.ended_at)) for run in runs]
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


def _seconds(first: datetime, moment: datetime | None) -> float:
    return 0.0 if moment is None else round((moment - first).total_seconds(), 3)


def _mark(table: ExperimentTable) -> str:
    return " (rehearsal)" if table.rehearsal else ""


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None
