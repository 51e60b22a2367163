"""Runs, and their results as programs report them: one JSON record a line.

`dlcloud.benchmarks.harness.schema` documents the records and has their classes, which instances write. Here
they are read leniently: unknown keys and kinds stay in the raw line and are otherwise ignored, so that an
older dlcloud reads a newer program.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from dlcloud.benchmarks.harness.schema import Comparison, Measurement, Result
from dlcloud.model.instance import Market
from dlcloud.model.untrusted import count_or_none, number_of, number_or_none, parse_json


class RunState(StrEnum):
    """The state of a run.

    LOST: its instance ended before the run did; its results until then are kept. PRUNED: its search ended it.
    """

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    PRUNED = "pruned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution of a workload on one instance, with the instance's price."""

    run_id: str
    cluster_id: str
    cluster_name: str
    instance_id: str
    workload: str
    cloud: str
    region: str
    zone: str
    instance_type: str
    market: Market
    image_id: str
    hourly_usd: Decimal | None
    price_source: str
    price_as_of: datetime | None
    state: RunState
    started_at: datetime
    ended_at: datetime | None = None
    exit_status: int | None = None
    setup_at: datetime | None = None
    """Begin of the set-up, when the instance answered; None for a run of an older dlcloud."""
    nodes: int = 1
    """The instances on which the workload ran in parallel, each with its own run."""
    rank: int = 0
    """Of the instance among the nodes; the run of rank 0 holds the records."""
    head_run_id: str = ""
    """The run of rank 0, for that of another node."""
    experiment: str = ""
    """A digest of what the trials of an experiment have in common; empty for a run of no experiment."""
    trial: int = 0
    """The number of the trial, from 1; 0 for a run of no experiment."""
    trial_values: str = ""
    """The values of the trial, a JSON object with sorted keys."""

    @property
    def rehearsal(self) -> bool:
        """True if the instance type was only rehearsed: its price is its own, its speed is not."""
        return self.cloud == "local"


def parse_record(line: str) -> dict[str, Any] | None:
    """Return the record of a line; None for any other line (a torn write, a stray print).

    Its texts are printable, and its numbers finite.
    """
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("record"), str) else None


def is_good_end(record: Mapping[str, Any]) -> bool:
    """True for the last record of a program that ended well."""
    return record.get("record") == "end" and record.get("ok") is True


def result_of(record: Mapping[str, Any]) -> Result:
    """Read a `result` record.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: It is none.
    """
    return Result(
        case=str(record.get("case", "")),
        setting=str(record.get("setting", "")),
        baseline=bool(record.get("baseline", False)),
        metrics={name: _measurement(metric) for name, metric in record.get("metrics", {}).items()},
        facts={name: value for name, value in record.get("facts", {}).items() if _is_fact(value)},
        warnings=tuple(str(warning) for warning in record.get("warnings", ())),
        stable=bool(record.get("stable", True)),
    )


def comparison_of(record: Mapping[str, Any]) -> Comparison:
    """Read a `comparison` or an `overall` record; raises as `result_of`."""
    return Comparison(
        case=str(record.get("case", "")),
        baseline=str(record.get("baseline", "")),
        candidate=str(record.get("candidate", "")),
        metric=str(record.get("metric", "throughput")),
        ratio=number_of(record["ratio"]),
        low=number_of(record["low"]),
        high=number_of(record["high"]),
        confidence=number_or_none(record.get("confidence")) or 0.0,
        verdict=str(record.get("verdict", "")),
        samples=count_or_none(record.get("samples")) or 0,
    )


def _measurement(values: Mapping[str, Any]) -> Measurement:
    return Measurement(
        value=number_of(values["value"]),
        low=number_or_none(values.get("low")),
        high=number_or_none(values.get("high")),
        unit=str(values.get("unit", "")),
        samples=count_or_none(values.get("samples")) or 1,
    )


def _is_fact(value: object) -> bool:
    """True for a scalar, and for a list or mapping of them, such as the environment of a setting."""
    match value:
        case dict():
            return all(map(_is_scalar, value.values()))
        case list():
            return all(map(_is_scalar, value))
    return _is_scalar(value)


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool)
