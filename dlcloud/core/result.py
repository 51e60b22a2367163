"""Runs, and their results as programs report them: one JSON record a line.

`dlcloud.benchmarks.harness.records` documents the records; here they are read, leniently: unknown keys and
kinds are kept in the raw line and otherwise ignored, so that an older dlcloud reads a newer program.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from dlcloud.core.instance import Market

Facts = Mapping[str, str | int | float | bool | None]


class RunState(StrEnum):
    """The state of a run. LOST: its instance ended before the run did; its results until then are kept."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A median with its 95 % interval; `low` and `high` are None where one sample gives none."""

    value: float
    low: float | None
    high: float | None
    unit: str
    samples: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """The bounds; None where there are none, or they do not differ."""
        if self.low is None or self.high is None or self.low == self.high:
            return None
        return self.low, self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The measurement of one setting of one case."""

    case: str
    setting: str
    baseline: bool
    metrics: Mapping[str, Metric]
    facts: Facts = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    stable: bool = True


FASTER, SLOWER, NO_DIFFERENCE, UNDECIDED = "faster", "slower", "no difference seen", "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A setting against the baseline of its case: a ratio above 1 favours the candidate."""

    case: str
    baseline: str
    candidate: str
    metric: str
    ratio: float
    low: float
    high: float
    verdict: str

    @property
    def is_decided(self) -> bool:
        """True if a difference was seen: the interval of the ratio excludes 1."""
        return self.verdict in {FASTER, SLOWER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The hardware that a run ran on, as its program reported it."""

    cpu_model: str = "unknown CPU"
    physical_cores: int | None = None
    logical_cpus: int | None = None
    cpu_flags: tuple[str, ...] = ()
    memory_gib: float | None = None
    gpus: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """A short name: the GPUs if there are any, else the CPU with its cores."""
        if self.gpus:
            return f"{len(self.gpus)}x {self.gpus[0]}"
        return (
            self.cpu_model
            if self.physical_cores is None
            else f"{self.cpu_model}, {self.physical_cores} cores"
        )


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

    @property
    def rehearsal(self) -> bool:
        """True if the instance type was only rehearsed: its price is its own, its speed is not."""
        return self.cloud == "local"


def parse_record(line: str) -> dict[str, Any] | None:
    """Return the record of a line; None for any other line (a torn write, a stray print)."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("record"), str) else None


def result_of(record: Mapping[str, Any]) -> Result:
    """Read a `result` record."""
    return Result(
        case=str(record.get("case", "")),
        setting=str(record.get("setting", "")),
        baseline=bool(record.get("baseline", False)),
        metrics={name: _metric(metric) for name, metric in record.get("metrics", {}).items()},
        facts=dict(record.get("facts", {})),
        warnings=tuple(str(warning) for warning in record.get("warnings", ())),
        stable=bool(record.get("stable", True)),
    )


def comparison_of(record: Mapping[str, Any]) -> Comparison:
    """Read a `comparison` or an `overall` record."""
    return Comparison(
        case=str(record.get("case", "")),
        baseline=str(record.get("baseline", "")),
        candidate=str(record.get("candidate", "")),
        metric=str(record.get("metric", "throughput")),
        ratio=float(record["ratio"]),
        low=float(record["low"]),
        high=float(record["high"]),
        verdict=str(record.get("verdict", "")),
    )


def hardware_of(record: Mapping[str, Any]) -> Hardware:
    """Read the hardware of a `start` record."""
    hardware = record.get("hardware", {})
    return Hardware(
        cpu_model=str(hardware.get("cpu_model") or "unknown CPU"),
        physical_cores=hardware.get("physical_cores"),
        logical_cpus=hardware.get("logical_cpus"),
        cpu_flags=tuple(hardware.get("cpu_flags", ())),
        memory_gib=hardware.get("memory_gib"),
        gpus=tuple(
            gpu.get("name", "GPU") if isinstance(gpu, dict) else str(gpu) for gpu in hardware.get("gpus", ())
        ),
    )


def _metric(values: Mapping[str, Any]) -> Metric:
    return Metric(
        value=float(values["value"]),
        low=_optional(values.get("low")),
        high=_optional(values.get("high")),
        unit=str(values.get("unit", "")),
        samples=int(values.get("samples", 1)),
    )


def _optional(value: float | None) -> float | None:
    return None if value is None else float(value)
