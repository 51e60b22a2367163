"""The records that a benchmark writes: JSON, one object a line, appended and flushed as they come.

Every record has `schema` (1), `record` (its kind) and `time` (UTC, ISO 8601). A reader ignores keys and kinds
that it does not know. By kind:

start       benchmark; arguments {name: value}; seed; host: the name of the machine; environment
            {NAME: value} of the variables that steer the frameworks; hardware {cpu_model, physical_cores,
            logical_cpus, usable_cpus, affinity: the CPUs that it and all it starts may run on ("0-3"),
            cpu_flags [..], memory_gib, gpus [{name, memory_mib, driver,
            compute_capability}], governor, kernel,
            virtualization}; software {python, packages {name: version}, code: digest of the program}
progress    message; done, total: cases ended and cases in all; remaining_s: an estimate, or null
case        case; settings [..]; seconds; host: where it ran, which need not be where this program runs;
            complete: bool, true if every setting was measured, and not ended early. It follows the case's
            results; `--resume` relies on it
sample      case; setting; metric; value; unit; items; seconds; round; disturbed_share; steal_share;
            redone: times the slice was thrown away for being disturbed; latencies_ms [..] (at most 250,
            evenly taken, batch 1 only)
result      case; setting; baseline: bool; metrics {NAME: {value, low, high, unit, samples}};
            facts {NAME: value}, among them threads_running and threads_allowed_on {CPUS: threads}, as
            they were at the end; warnings [text], of the setting's own doubts alone; stable: bool
comparison  case; baseline; candidate; metric; ratio; low; high; confidence; verdict; samples.
            `ratio` is the speed-up: how many times as well the candidate does, however the metric counts
overall     a comparison with the best of several baselines, as of several engines' fp32, all measured in
            turn; keys as of `comparison`, `baseline` being the one that was best
intermediate  step; value: what the command says of its metric so far; written by dlcloud_report
failure     case; setting (null where the whole case failed); message
skip        case; setting; reason: what this machine lacks, such as memory; no failure
end         ok: bool, true where nothing failed; seconds: from start to end

`case` names the work ("vgg16 batch 1"), `setting` the way ("fp32", "int8"), `metric` is one of Metric.
Shares are 0 to 1. `verdict` is one of statistics.Verdict. An interval [low, high] holds the true value with
95 % confidence, of fewer than six samples with 1 - 2**(1 - n); of a single one, low and high are the value.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Any, TextIO

from . import masking

SCHEMA = 1

FINISH = ".finish"
"""What follows the name of the records in that of the file which asks a program to finish early."""


class Word(str, Enum):
    """An enumeration of texts; the standard library's own is of Python 3.11."""

    __str__ = str.__str__


class MetricName(Word):
    """A measured quantity; the value is its name in the records."""

    THROUGHPUT = "throughput"
    DURATION = "duration"
    LATENCY_P50 = "latency_p50"
    LATENCY_P99 = "latency_p99"
    PEAK_MEMORY = "peak_memory"
    RESIDENT_MEMORY = "resident_memory"
    EPOCH_DURATION = "epoch_duration"  # computed from the throughput; no epoch is run

    @property
    def higher_is_better(self) -> bool:
        return self is MetricName.THROUGHPUT


class RecordKind(Word):
    """The kind of a record."""

    START = "start"
    PROGRESS = "progress"
    CASE = "case"
    SAMPLE = "sample"
    RESULT = "result"
    COMPARISON = "comparison"
    OVERALL = "overall"
    FAILURE = "failure"
    SKIP = "skip"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A metric's value with its interval."""

    value: float
    low: float
    high: float
    unit: str
    samples: int

    @classmethod
    def exact(cls, value: float, unit: str) -> "Measurement":
        """Return a single value, rounded to 2 decimals, without an interval."""
        value = round(value, 2)
        return cls(value=value, low=value, high=value, unit=unit, samples=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRecord:
    """The result of one setting in one case."""

    case: str
    setting: str
    baseline: bool
    metrics: Mapping[MetricName, Measurement]
    facts: Mapping[str, Any]
    warnings: tuple[str, ...]
    stable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRecord:
    """A candidate compared with its baseline; `ratio` above 1 is better."""

    case: str
    baseline: str
    candidate: str
    metric: MetricName
    ratio: float
    low: float
    high: float
    confidence: float
    verdict: str
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A setting, or a whole case where `setting` is None, that could not be measured."""

    case: str
    setting: str | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A setting that was left out because this machine cannot run it."""

    case: str
    setting: str
    reason: str


@dataclass(slots=True, kw_only=True)
class Recorder:
    """Writes records to a file, reports progress on stderr, and keeps what the final table needs."""

    output: TextIO | None  # the file that records are appended to, or None
    messages: TextIO  # stream of the progress messages
    host: str = ""
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)  # current time, aware and in UTC
    results: list[ResultRecord] = field(default_factory=list)
    comparisons: list[ComparisonRecord] = field(default_factory=list)
    overall: list[ComparisonRecord] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)
    secrets: tuple[str, ...] = field(default_factory=masking.secret_texts, repr=False)

    def start(
        self, benchmark: str, arguments: Mapping[str, Any], seed: int, machine: Mapping[str, Any]
    ) -> None:
        values = {"benchmark": benchmark, "arguments": arguments, "seed": seed, "host": self.host, **machine}
        self._write(RecordKind.START, values)

    def progress(self, message: str, *, done: int, total: int, remaining_s: float | None = None) -> None:
        self._write(
            RecordKind.PROGRESS,
            {"message": message, "done": done, "total": total, "remaining_s": remaining_s},
        )
        left = f", about {format_duration(remaining_s)} left" if remaining_s is not None else ""
        self._print(f"[{done}/{total}{left}] {message}")

    def case_end(
        self, case: str, settings: Sequence[str], *, seconds: float, complete: bool, host: str = ""
    ) -> None:
        """Record that a case has ended; `host` is the machine that it ran on, if that was not this one."""
        values = {"case": case, "settings": list(settings), "seconds": round(seconds, 3)}
        self._write(RecordKind.CASE, {**values, "host": host or self.host, "complete": complete})

    def sample(self, values: Mapping[str, Any]) -> None:
        """Record one slice, or one value of it."""
        self._write(RecordKind.SAMPLE, values)

    def result(self, result: ResultRecord) -> None:
        self.results.append(result)
        metrics = {metric: _fields(measured) for metric, measured in result.metrics.items()}
        self._write(RecordKind.RESULT, {**_fields(result), "metrics": metrics})

    def comparison(self, comparison: ComparisonRecord) -> None:
        self.comparisons.append(comparison)
        self._write(RecordKind.COMPARISON, _fields(comparison))

    def overall_comparison(self, comparison: ComparisonRecord) -> None:
        """Record a comparison with the best of several baselines."""
        self.overall.append(comparison)
        self._write(RecordKind.OVERALL, _fields(comparison))

    def failure(self, case: str, setting: str | None, message: str) -> None:
        """Record and print that a setting, or a whole case if it is None, could not be measured."""
        failure = Failure(case=case, setting=setting, message=message)
        self.failures.append(failure)
        self._write(RecordKind.FAILURE, _fields(failure))
        self._print(f"failed: {case}, {setting or 'every setting'}: {message}")

    def skip(self, case: str, setting: str, reason: str) -> None:
        skip = Skip(case=case, setting=setting, reason=reason)
        self.skips.append(skip)
        self._write(RecordKind.SKIP, _fields(skip))
        self._print(f"skipped: {case}, {setting}: {reason}")

    def end(self, *, ok: bool, seconds: float) -> None:
        self._write(RecordKind.END, {"ok": ok, "seconds": round(seconds, 3)})

    def _write(self, kind: RecordKind, values: Mapping[str, Any]) -> None:
        if self.output is None:
            return
        time = self.now().isoformat(timespec="milliseconds")
        record = {"schema": SCHEMA, "record": kind, "time": time, **values}
        record = masking.mask(record, self.secrets) if self.secrets else record
        self.output.write(json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n")
        self.output.flush()

    def _print(self, message: str) -> None:
        self.messages.write(message + "\n")
        self.messages.flush()


@contextmanager
def open_records(path: Path | None) -> Iterator[TextIO | None]:
    """Open a records file for appending, in a new folder if need be; None opens nothing.

    A line that was cut off by a crash is ended first.
    """
    if path is None:
        yield None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    cut_off = path.exists() and not _ends_a_line(path)
    with path.open("a", encoding="utf-8") as stream:
        stream.write("\n" if cut_off else "")
        yield stream


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as content:
        if not content.seek(0, os.SEEK_END):
            return True
        content.seek(-1, os.SEEK_END)
        return content.read(1) == b"\n"


def format_duration(seconds: float) -> str:
    """Return a duration for people: `40 s`, `12 min`, `2 h 5 min`."""
    minutes = round(seconds / 60)
    if minutes < 2:  # noqa: PLR2004 - shorter durations are shown in seconds
        return f"{seconds:.0f} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _fields(value: Measurement | ResultRecord | ComparisonRecord | Failure | Skip) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
