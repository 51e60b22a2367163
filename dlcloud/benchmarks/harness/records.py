"""Write the records of a benchmark (see `schema.py`), report progress, keep what the final table shows."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from . import masking
from .schema import SCHEMA, Comparison, Failure, Measurement, RecordKind, Result, Skip

FINISH = ".finish"
"""What follows the name of the records in that of the file which asks a program to finish early."""
NOTICE, ASKED = ".notice", ".asked"
"""The same of the file which says that the instance ends soon, and of the answer, once the command was asked
to stop: `templates/checkpoints.py` writes the first and reads the second."""


@dataclass(slots=True, kw_only=True)
class Recorder:
    """Writes records to a file, reports progress on stderr, and keeps what the final table needs."""

    output: TextIO | None  # the file that records are appended to, or None
    messages: TextIO  # stream of the progress messages
    host: str = ""
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)  # current time, aware and in UTC
    results: list[Result] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    overall: list[Comparison] = field(default_factory=list)
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

    def result(self, result: Result) -> None:
        self.results.append(result)
        metrics = {metric: _fields(measured) for metric, measured in result.metrics.items()}
        self._write(RecordKind.RESULT, {**_fields(result), "metrics": metrics})

    def comparison(self, comparison: Comparison) -> None:
        self.comparisons.append(comparison)
        self._write(RecordKind.COMPARISON, _fields(comparison))

    def overall_comparison(self, comparison: Comparison) -> None:
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


def _fields(value: Measurement | Result | Comparison | Failure | Skip) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
