"""Find the cases that an interrupted program had already measured, so that they are not measured again.

A case counts as measured where its `case` record says that every setting of it came to its end, and where all
that can change its figures is as it was: the program's own code, its arguments, the versions of Python and of
the packages, the variables that steer them, and the hardware. The kernel may differ: a new image must not
cost hours of repeated work, and within a case both settings were measured on the same one.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .records import Comparison, Measurement, Metric, RecordKind, Result

UNRELATED = frozenset({"output", "resume", "host", "cache"})
"""Arguments that change no figure."""

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
    """Which cases count, and why cases of other starts do not."""

    cases: dict[tuple[str, tuple[str, ...]], MeasuredCase] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)


def find(path: Path, start: Mapping[str, Any], *, selecting: Collection[str] = ()) -> EarlierCases:
    """Return what a records file holds of cases that need not be measured again.

    Args:
        path: The records; a file that is missing holds none.
        start: What the `start` record of this program is going to say.
        selecting: Arguments that only say which cases there are.
    """
    found = EarlierCases()
    for began, records in _starts(path):
        earlier = list(_complete(records))
        if not earlier:
            continue
        reason = difference(began, start, selecting=selecting)
        if reason is None:
            found.cases.update({(each.case, each.settings): each for each in earlier})
        else:
            found.refusals.append(f"{len(earlier)} case(s) are measured again: {reason}")
    return found


def difference(old: Mapping[str, Any], new: Mapping[str, Any], *, selecting: Collection[str]) -> str | None:
    """Say what differs between two `start` records that can change a figure; None where nothing does."""
    unrelated = UNRELATED | set(selecting)
    for name, before, after in _compared(old, new, unrelated):
        if before != after:
            return f"{name} was {_short(before)}, is {_short(after)}"
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


def _compared(
    old: Mapping[str, Any], new: Mapping[str, Any], unrelated: Collection[str]
) -> Iterator[tuple[str, Any, Any]]:
    yield "the benchmark", old.get("benchmark"), new.get("benchmark")
    yield from _pairs("--", old.get("arguments"), new.get("arguments"), unrelated)
    yield "the seed", old.get("seed"), new.get("seed")
    yield from _pairs("the variable ", old.get("environment"), new.get("environment"))
    before, after = old.get("software") or {}, new.get("software") or {}
    yield "Python", before.get("python"), after.get("python")
    yield "the program", before.get("code"), after.get("code")
    yield from _pairs("the version of ", before.get("packages"), after.get("packages"))
    before, after = old.get("hardware") or {}, new.get("hardware") or {}
    for name in HARDWARE:
        yield f"the machine's {name}", before.get(name), after.get(name)
    yield "the machine's memory in GiB", *_memory(before.get("memory_gib"), after.get("memory_gib"))


def _pairs(
    prefix: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, without: Collection[str] = ()
) -> Iterator[tuple[str, Any, Any]]:
    before, after = old or {}, new or {}
    for name in sorted((before.keys() | after.keys()) - set(without)):
        yield f"{prefix}{name}", before.get(name), after.get(name)


def _memory(before: float | None, after: float | None) -> tuple[float | None, float | None]:
    alike = before and after and abs(before - after) <= MEMORY_TOLERANCE * before
    return (None, None) if alike else (before, after)


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."  # noqa: PLR2004 - a line has room for two


def _starts(path: Path) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield each `start` record with the records that follow it."""
    began: dict[str, Any] | None = None
    since: list[dict[str, Any]] = []
    for record in _records(path):
        if record.get("record") == RecordKind.START.value:
            if began is not None:
                yield began, since
            began, since = record, []
        else:
            since.append(record)
    if began is not None:
        yield began, since


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file; a line cut off by a crash is none."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def _complete(records: Iterable[Mapping[str, Any]]) -> Iterator[MeasuredCase]:
    """Yield the cases that came to their end with every setting."""
    since: list[Mapping[str, Any]] = []
    for record in records:
        if record.get("record") != RecordKind.CASE.value:
            since.append(record)
            continue
        earlier = _earlier(record, since) if record.get("complete") else None
        since = []
        if earlier is not None:
            yield earlier


def _earlier(end: Mapping[str, Any], since: Iterable[Mapping[str, Any]]) -> MeasuredCase | None:
    """Read a case; None where a record of it is not as this program writes it."""
    mine = [record for record in since if record.get("case") == end["case"]]
    try:
        results = [_result(record) for record in mine if record["record"] == RecordKind.RESULT.value]
        comparisons = [
            _comparison(record) for record in mine if record["record"] == RecordKind.COMPARISON.value
        ]
        overall = [_comparison(record) for record in mine if record["record"] == RecordKind.OVERALL.value]
        earlier = MeasuredCase(
            case=end["case"],
            settings=tuple(end["settings"]),
            results=tuple(results),
            comparisons=tuple(comparisons),
            overall=tuple(overall),
            seconds=float(end["seconds"]),
            host=str(end.get("host", "")),
        )
    except (KeyError, TypeError, ValueError):
        return None
    return earlier if {result.setting for result in results} >= set(earlier.settings) else None


def _result(record: Mapping[str, Any]) -> Result:
    return Result(
        case=record["case"],
        setting=record["setting"],
        baseline=record["baseline"],
        metrics={Metric(name): Measurement(**told) for name, told in record["metrics"].items()},
        facts=record["facts"],
        warnings=tuple(record["warnings"]),
        stable=record["stable"],
    )


def _comparison(record: Mapping[str, Any]) -> Comparison:
    told = {name: record[name] for name in Comparison.__dataclass_fields__}
    return Comparison(**{**told, "metric": Metric(told["metric"])})
