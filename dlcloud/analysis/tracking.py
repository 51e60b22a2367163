"""Runs as trackers record them: parameters, metrics over steps, tags."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dlcloud.analysis.result import Run, result_of
from dlcloud.benchmarks.harness.numbers import find_all, matched_number, read_number
from dlcloud.model.untrusted import number_of, time_or_none

RUN_TAG = "dlcloud.run"
POSITION_TAG = "dlcloud.position"
"""How many bytes of a run's records were sent: a second sender continues there."""
COST = "usd"
_UNSAFE = re.compile(r"[^\w./ -]")
LONGEST_KEY = 250
LONGEST_LINE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedPoint:
    """A value of a metric at a step; `at_ms` is milliseconds since 1970."""

    key: str
    value: float
    step: int
    at_ms: int


def parameters_of(run: Run) -> dict[str, str]:
    """Return the values of a run's trial, and the machine that it ran on under `dlcloud.`."""
    values: dict[str, str] = json.loads(run.trial_values) if run.trial_values else {}
    machine = {
        "instance_type": run.instance_type,
        "market": run.market,
        "region": run.region,
        "zone": run.zone,
        "cloud": run.cloud,
        "image": run.image_id,
        "nodes": run.nodes,
    }
    named = {safe_key(name): value for name, value in values.items()}
    return named | {f"dlcloud.{name}": str(value) for name, value in machine.items() if value}


def tags_of(run: Run) -> dict[str, str]:
    """Return what names a run on a tracker."""
    tags = {
        RUN_TAG: run.run_id,
        "dlcloud.cluster": run.cluster_name,
        "dlcloud.instance": run.instance_id,
        "dlcloud.workload": run.workload,
        "dlcloud.experiment": run.experiment,
        "dlcloud.trial": str(run.trial or ""),
        "dlcloud.rehearsal": "true" if run.rehearsal else "",
        "mlflow.source.name": "dlcloud",
    }
    return {name: value for name, value in tags.items() if value}


def points_of(run: Run, records: Iterable[Mapping[str, Any]]) -> Iterator[TrackedPoint]:
    """Yield the metrics of a run's records: samples by round, results, and the steps of trainings."""
    steps: set[int] = set()
    for record in records:
        time = time_or_none(record.get("time"))
        at_ms = milliseconds(time) if time else 0
        try:
            yield from _points(run, record, at_ms, steps)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
            continue  # no measurement


def _points(run: Run, record: Mapping[str, Any], at_ms: int, steps: set[int]) -> Iterator[TrackedPoint]:
    match record.get("record"):
        case "sample":
            key = _key(run, record, f"sample {record['metric']}")
            yield TrackedPoint(
                key=key, value=number_of(record["value"]), step=int(record.get("round") or 0), at_ms=at_ms
            )
        case "result":
            for name, metric in result_of(record).metrics.items():
                yield TrackedPoint(key=_key(run, record, name), value=metric.value, step=0, at_ms=at_ms)
        case "step" if (step := int(number_of(record["step"]))) not in steps:
            steps.add(step)
            for name in ("loss", "world_size"):
                if record.get(name) is not None:
                    yield TrackedPoint(key=name, value=number_of(record[name]), step=step, at_ms=at_ms)
            if seconds := number_of(record.get("seconds") or 0.0):
                rate = number_of(record["samples"]) / seconds
                yield TrackedPoint(key="samples_per_second", value=rate, step=step, at_ms=at_ms)


def points_of_log(lines: Iterable[str], facts: Mapping[str, str], at_ms: int) -> Iterator[TrackedPoint]:
    """Yield each number that the recipe's facts find in what a program printed: its steps are its matches."""
    expressions = {name: re.compile(expression) for name, expression in facts.items()}
    counts = dict.fromkeys(expressions, 0)
    for line in lines:
        for name, expression in expressions.items():
            match = next(find_all(expression, line[:LONGEST_LINE]), None)
            value = read_number(matched_number(match)) if match and expression.groups else None
            if value is not None:
                yield TrackedPoint(key=name, value=value, step=counts[name], at_ms=at_ms)
                counts[name] += 1


def safe_key(name: str) -> str:
    """Return a name as MLflow takes it: letters, digits, `_`, `-`, `.`, `/` and spaces."""
    return _UNSAFE.sub("_", name)[:LONGEST_KEY]


def milliseconds(time: datetime) -> int:
    return int(time.timestamp() * 1000)


def batches(points: Sequence[TrackedPoint], size: int) -> Iterator[Sequence[TrackedPoint]]:
    """Yield points in pieces; one empty piece if there are none."""
    for start in range(0, len(points) or 1, size):
        yield points[start : start + size]


def _key(run: Run, record: Mapping[str, Any], name: str) -> str:
    """Return the name of a metric: of a trial as it is, else below its case and setting."""
    case, setting = str(record.get("case", "")), str(record.get("setting", ""))
    parts = [] if run.trial else [case if case != run.workload else "", setting]
    return safe_key("/".join(part.replace("/", "_") for part in [*parts, name] if part))
