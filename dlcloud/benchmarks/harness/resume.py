"""Find the cases that an interrupted program had already measured, so that they are not measured again.

A case counts as measured if its `case` record says that every setting of it was measured, and if everything
that can change its figures is unchanged: the program's own code, its arguments, the versions of Python and of
the packages, the variables that steer them, and the hardware. The kernel may differ: a new image must not
cost hours of repeated work, and within a case both settings were measured on the same one.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .schema import Comparison, Measurement, MetricName, RecordKind, Result

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
