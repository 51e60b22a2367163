"""The records of a program: written as they come, and read again by the run that continues it.

A `Recorder` writes them (`schema.py` says what is in them), reports progress, and keeps what the final table
shows. `Session` and `protocol.py` call it for each slice, result and case.

`find_cases` returns the cases that an interrupted program had already measured, so that they are not measured
again. A case counts as measured if its `case` record says that every setting of it was measured, and if
everything that can change its figures is unchanged: the program's own code, its arguments, the versions of
Python and of the packages, the variables that steer them, and the hardware. The kernel may differ: a new
image must not cost hours of repeated work, and within a case both settings were measured on the same one.

No secret may be in them: the launcher's are masked (`masking.py`), and `redact_variables` and its siblings
hide values whose name looks secret, and passwords in addresses.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from . import masking
from .schema import SCHEMA, Comparison, Failure, Measurement, MetricName, RecordKind, Result, Skip

FINISH = ".finish"
"""What follows the name of the records in that of the file which asks a program to finish early."""
NOTICE, ASKED = ".notice", ".asked"
"""The same of the file which says that the instance ends soon, and of the answer, once the command was asked
to stop: `templates/checkpoints.py` writes the first and reads the second."""
WORKED = ".worked"
"""The same of the file with the seconds that a command has worked for the checkpoint which it begins with."""


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


UNRELATED = frozenset({"output", "resume", "host", "cache"})
"""Arguments that change no figure."""

MEMORY = "the machine's memory in GiB"

MEMORY_TOLERANCE = 0.02
"""Two instances of one type, or two kernels on it, show slightly different amounts of memory."""

HARDWARE = ("cpu_model", "physical_cores", "logical_cpus", "usable_cpus", "cpu_flags", "governor", "gpus",
            "virtualization")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCase:
    """A case that was measured before; `seconds` is how long it took, `host` where it ran."""

    case: str
    settings: tuple[str, ...]
    results: tuple[Result, ...]
    comparisons: tuple[Comparison, ...]
    overall: tuple[Comparison, ...]
    seconds: float
    host: str


@dataclass(slots=True, kw_only=True)
class EarlierCases:
    """The cases that count, and why the cases of other starts do not."""

    cases: dict[tuple[str, tuple[str, ...]], MeasuredCase] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)


def find_cases(path: Path, start: Mapping[str, Any], *, selecting: Collection[str] = ()) -> EarlierCases:
    """Return the cases in a records file that need not be measured again; a missing file holds none.

    `start` is the coming `start` record of this program; arguments `selecting` cases may differ.
    """
    cases = EarlierCases()
    for began, records in _split_by_start(path):
        earlier = list(_complete_cases(records))
        if not earlier:
            continue
        reason = explain_change(began, start, selecting=selecting)
        if reason is None:
            cases.cases.update({(case.case, case.settings): case for case in earlier})
        else:
            cases.refusals.append(f"{len(earlier)} case(s) are measured again: {reason}")
    return cases


def explain_change(
    old: Mapping[str, Any], new: Mapping[str, Any], *, selecting: Collection[str]
) -> str | None:
    """Return the first difference of two `start` records that can change a figure; None if there is none."""
    before, after = (_decisive_values(start, UNRELATED | set(selecting)) for start in (old, new))
    for name in {**before, **after}:
        if before.get(name) != after.get(name) and not (name == MEMORY and _is_near(before, after)):
            return f"{name} was {_shorten(before.get(name))}, is {_shorten(after.get(name))}"
    return None


def code_digest(package: str) -> str:
    """Return a digest of the program that measures: the harness, the benchmark's own package, the pins."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    # The pins count, too: of an engine with an environment of its own the versions are nowhere else.
    parts = ("harness/**/*.py", f"{package}/**/*.py", "requirements/*.txt")
    for path in sorted(path for part in parts for path in root.glob(part)):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _decisive_values(start: Mapping[str, Any], unrelated: Collection[str]) -> dict[str, Any]:
    """Return what can change a figure, by its name in messages."""
    software, hardware = start.get("software") or {}, start.get("hardware") or {}
    arguments, variables = start.get("arguments") or {}, start.get("environment") or {}
    return {
        "the benchmark": start.get("benchmark"),
        **{f"--{name}": value for name, value in arguments.items() if name not in unrelated},
        "the seed": start.get("seed"),
        **{f"the variable {name}": text for name, text in variables.items()},
        "Python": software.get("python"),
        "the program": software.get("code"),
        **{f"the version of {name}": version for name, version in (software.get("packages") or {}).items()},
        **{f"the machine's {name}": hardware.get(name) for name in HARDWARE},
        MEMORY: hardware.get("memory_gib"),
    }


def _is_near(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    old, new = before[MEMORY], after[MEMORY]
    return bool(old and new and abs(old - new) <= MEMORY_TOLERANCE * old)


def _shorten(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."  # noqa: PLR2004 - a line has room for two


def _split_by_start(path: Path) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield each `start` record with the records that follow it."""
    began: dict[str, Any] | None = None
    since: list[dict[str, Any]] = []
    for record in _records(path):
        if record.get("record") == RecordKind.START:
            if began is not None:
                yield began, since
            began, since = record, []
        else:
            since.append(record)
    if began is not None:
        yield began, since


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file without lines that a crash cut off."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def _complete_cases(records: Iterable[Mapping[str, Any]]) -> Iterator[MeasuredCase]:
    since: list[Mapping[str, Any]] = []
    for record in records:
        if record.get("record") != RecordKind.CASE:
            since.append(record)
            continue
        earlier = _read_case(record, since) if record.get("complete") else None
        since = []
        if earlier is not None:
            yield earlier


def _read_case(end: Mapping[str, Any], since: Iterable[Mapping[str, Any]]) -> MeasuredCase | None:
    """Read a case; None if a record of it is not as this program writes it."""
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for record in since:
        if record.get("case") == end["case"]:
            by_kind.setdefault(str(record.get("record")), []).append(record)
    try:
        case = MeasuredCase(
            case=end["case"],
            settings=tuple(end["settings"]),
            results=tuple(map(_read_result, by_kind.get(RecordKind.RESULT, ()))),
            comparisons=tuple(map(_read_comparison, by_kind.get(RecordKind.COMPARISON, ()))),
            overall=tuple(map(_read_comparison, by_kind.get(RecordKind.OVERALL, ()))),
            seconds=float(end["seconds"]),
            host=str(end.get("host", "")),
        )
    except (KeyError, TypeError, ValueError):
        return None
    return case if {result.setting for result in case.results} >= set(case.settings) else None


def _read_result(record: Mapping[str, Any]) -> Result:
    fields = {name: record[name] for name in Result.__dataclass_fields__}
    metrics = {MetricName(name): Measurement(**values) for name, values in record["metrics"].items()}
    return Result(**{**fields, "metrics": metrics, "warnings": tuple(record["warnings"])})


def _read_comparison(record: Mapping[str, Any]) -> Comparison:
    fields = {name: record[name] for name in Comparison.__dataclass_fields__}
    return Comparison(**{**fields, "metric": MetricName(fields["metric"])})


HIDDEN = "(hidden)"

_WORD = r"(?:TOKEN|(?:KEY|SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIAL)S?)"
_NAME = re.compile(rf"{_WORD}(?=$|[_-])|API_?KEY", re.IGNORECASE)
_ASSIGNED = re.compile(rf"((?<![\w-])[\w-]*{_WORD}(?:[_-][\w-]*)?=)(\"[^\"]*\"|'[^']*'|\S+)", re.IGNORECASE)
_OPTION = re.compile(rf"(--?[\w-]*{_WORD}(?:[_-][\w-]*)?\s+)(\"[^\"]*\"|'[^']*'|[^\s-]\S*)", re.IGNORECASE)
_ADDRESS = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")


def is_secret_name(name: str) -> bool:
    """True if the name is that of a secret: HF_TOKEN is, MAX_TOKENS is not."""
    return _NAME.search(name) is not None


def redact_variables(environment: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the variables without secret values; None, a removed variable, stays."""
    return {
        name: value if value is None else HIDDEN if is_secret_name(name) else redact_text(value)
        for name, value in environment.items()
    }


def redact_text(given: str) -> str:
    """Return a command line or value without the secrets of `NAME=value`, `--name value` and addresses."""
    for pattern in (_ASSIGNED, _OPTION):
        given = pattern.sub(rf"\1{HIDDEN}", given)
    return _ADDRESS.sub(rf"\1{HIDDEN}@", given)


def redact_words(arguments: Iterable[str]) -> list[str]:
    """Return the words of a command line without the secrets, also after a secret option."""
    shown: list[str] = []
    secret = False
    for word in arguments:
        shown.append(HIDDEN if secret and not word.startswith("-") else redact_text(word))
        secret = word.startswith("-") and "=" not in word and is_secret_name(word)
    return shown
