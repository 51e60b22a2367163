"""How many spot instances were obtainable, over time, and the files that say it.

- `.json`: `{"metadata": {"gap_seconds": s, "meaning": "obtainable"}, "data": [n, …], "prices": [usd, …]}`,
  without prices, too
- `.csv`, Bamboo: `ms,add,node` and `ms,remove,node`
- `.csv`, Parcae: `ms,n`
- `.txt` or `.jsonl`, Parcae: `[ms, "add", {"nodes": […], "duration": ms}]`; `remove`, `no-op`, `migration`

The same JSON is published with two opposite meanings of 1. In the windows of the Can't Be Late evaluation
(FrontierCS/Frontier-CS) it means that spot is preempted: `TraceEnv.spot_available` of their simulator returns
`not self.trace[tick]`. In skypilot-org/spot-traces it means that one instance is obtainable; inverted, those
windows equal these traces tick by tick. A file of zeros and ones is never taken for either silently: its
metadata, or the caller, says what it means.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, groupby
from typing import Any

from dlcloud.model.errors import RecipeError

_ZONE = re.compile(r"([a-z]{2}(?:-[a-z]+)+-\d)[a-z]")
"""A zone by its name, which may have a type behind it: us-east-1a_v100_1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTrace:
    """One pool's history, as runs of equal values.

    Attributes:
        name: The pool, usually an Availability Zone.
        starts_s: When each run begins, ascending from 0.
        counts: Instances obtainable in each run.
        prices: USD an instance-hour in each run; None where the trace has no prices.
        end_s: After this the trace says nothing, and no instance is obtainable.
    """

    name: str
    starts_s: tuple[float, ...]
    counts: tuple[int, ...]
    end_s: float
    prices: tuple[float, ...] | None = None

    @property
    def region(self) -> str:
        """The Region of a zone, by its name; empty for another name."""
        match = _ZONE.match(self.name)
        return match[1] if match else ""

    @property
    def availability(self) -> float:
        """The share of the time in which at least one instance is obtainable."""
        ends = (*self.starts_s[1:], self.end_s)
        spans = zip(self.starts_s, ends, self.counts, strict=True)
        return sum(end - start for start, end, count in spans if count) / self.end_s

    @property
    def losses(self) -> int:
        """How often the number of obtainable instances falls."""
        return sum(before > after for before, after in zip(self.counts, self.counts[1:], strict=False))

    def scaled(self, factor: int) -> "PoolTrace":
        """Return the trace with this many times the instances."""
        counts = tuple(count * factor for count in self.counts)
        return PoolTrace(
            name=self.name, starts_s=self.starts_s, counts=counts, end_s=self.end_s, prices=self.prices
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Traces of several pools over the same time; what one simulated job lives through."""

    name: str
    pools: tuple[PoolTrace, ...]

    @property
    def end_s(self) -> float:
        return max(pool.end_s for pool in self.pools)


def from_ticks(
    name: str, tick_s: float, counts: Sequence[int], prices: Sequence[float] | None = None
) -> PoolTrace:
    """Return the trace of values that hold for one tick each."""
    values = (
        list(zip(counts, prices, strict=True)) if prices is not None else [(count, 0.0) for count in counts]
    )
    runs = [(value, len(list(run))) for value, run in groupby(values)]
    begins = [0, *accumulate(length for _, length in runs)]
    return PoolTrace(
        name=name,
        starts_s=tuple(begin * tick_s for begin in begins[:-1]),
        counts=tuple(count for (count, _), _ in runs),
        prices=tuple(price for (_, price), _ in runs) if prices is not None else None,
        end_s=len(counts) * tick_s,
    )


def from_changes(name: str, changes: Sequence[tuple[float, int]], end_s: float) -> PoolTrace:
    """Return the trace of (time in seconds, change of the number) pairs, in any order."""
    counts: dict[float, int] = {0.0: 0}
    count = 0
    for at_s, change in sorted(changes):
        count = max(0, count + change)
        counts[at_s] = count
    merged = list(_without_repeats(sorted(counts.items())))
    return PoolTrace(
        name=name,
        starts_s=tuple(at_s for at_s, _ in merged),
        counts=tuple(value for _, value in merged),
        end_s=max(end_s, merged[-1][0]),
    )


def _without_repeats(values: Sequence[tuple[float, int]]) -> Iterator[tuple[float, int]]:
    last: int | None = None
    for at_s, value in values:
        if value != last:
            yield at_s, value
        last = value


MS = 1000.0
LAST_RUN_S = 60.0
"""So long the last line of a CSV holds, which says nothing of its end: the tick of these traces."""
HINT = "docs/deadlines.md lists the formats"
UNKNOWN_MEANING_HINT = (
    "give --values obtainable (skypilot-org/spot-traces) or --values preempted (Can't Be Late's simulator), "
    'or add "meaning": "obtainable" to its metadata'
)
NO_CHANGE = frozenset({"no-op", "migration"})
_MOST_INSTANCES = 1_000_000
_MOST_DIGITS = 100
_MOST_USD = 1e6
_LEAST_S, _MOST_S = 1e-3, 1e10
"""The gap of two ticks and the time of an event; 1e10 s are 317 years."""
_LARGEST = 1e18


class Meaning(StrEnum):
    """What the numbers of a JSON trace are.

    OBTAINABLE: instances that could run at the tick. PREEMPTED: 1 if none could run, else 0.
    """

    OBTAINABLE = "obtainable"
    PREEMPTED = "preempted"


class _FaultError(ValueError):
    """A fault of a line; the line's number is added where it is known."""


class _UnknownMeaningError(_FaultError):
    """Zeros and ones, and nothing says which of them is an obtainable instance."""


def read_trace(text: str, file: str, *, pool: str, meaning: Meaning | None = None) -> PoolTrace:
    """Return the trace in a file's text.

    Args:
        text: The content.
        file: The name, whose ending chooses the format; it is in messages.
        pool: The name of the pool.
        meaning: What the numbers of a JSON file are, if the file does not say it.

    Raises:
        RecipeError: With the file and the line.
    """
    ending = file.rpartition(".")[2].lower()
    if ending == "json":
        return _read_json(text, file, pool, meaning)
    reader = READERS.get(ending)
    if reader is None:
        raise RecipeError(f"{file}: not a trace: the name ends in none of {', '.join(ENDINGS)}", HINT)
    return reader(text, file, pool)


def obtainable_counts(values: Mapping[str, Any], meaning: Meaning | None = None) -> list[int]:
    """Return the obtainable instances by tick of a JSON trace.

    Args:
        values: The whole trace: `metadata`, `data`, and what else its source writes.
        meaning: What the numbers are, if the trace does not say it.

    Raises:
        ValueError: The data are no numbers of instances, or it is unknown or contradictory what they mean.
    """
    counts = values.get("data")
    if not isinstance(counts, list) or not counts:
        raise _FaultError("data must be a list of at least one number")
    for place, count in enumerate(counts):
        if not _is_count(count):
            raise _FaultError(f"data[{place}] is {_short(count)}, not a number of instances")
    in_file = _known_meaning(values)
    if in_file is not None and meaning is not None and in_file is not meaning:
        raise _FaultError(f"--values {meaning}, but the file says that its values mean: {in_file}")
    most = max(counts)
    decided = in_file or meaning or (Meaning.OBTAINABLE if most > 1 else None)
    if decided is None:
        raise _UnknownMeaningError("its values are 0 and 1 only: is 1 an obtainable or a preempted instance?")
    if decided is Meaning.OBTAINABLE:
        return counts
    if most > 1:
        raise _FaultError(f"values that mean {decided} are 0 or 1, not {most}")
    return [1 - count for count in counts]


def _known_meaning(values: Mapping[str, Any]) -> Meaning | None:
    """Return what a trace says of its values, in `metadata.meaning` or by the metadata of its source."""
    metadata = values.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    stated = metadata.get("meaning")
    if stated is None:
        # Both archives of the Can't Be Late evaluation name the recording that a window was cut from.
        is_cut = "original_trace" in values or "source_file" in metadata
        return Meaning.PREEMPTED if is_cut else None
    text = str(stated).casefold().removeprefix("1:").removeprefix(" one instance").strip()
    for meaning in Meaning:
        if text.startswith(meaning):
            return meaning
    raise _FaultError(f"metadata.meaning is {_short(stated)}, neither obtainable nor preempted")


def _read_json(text: str, file: str, pool: str, meaning: Meaning | None) -> PoolTrace:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise RecipeError(f"{file}:{error.lineno}: not JSON: {error.msg}", HINT) from error
    except ValueError as error:  # Python converts 4,300 digits at most
        raise RecipeError(f"{file}:1: not a trace: a number has too many digits", HINT) from error
    except RecursionError as error:
        raise RecipeError(f"{file}:1: not a trace: too deeply nested", HINT) from error
    try:
        return _window(values, pool, meaning)
    except _UnknownMeaningError as error:
        raise RecipeError(f"{file}:1: {error}", UNKNOWN_MEANING_HINT) from error
    except _FaultError as error:
        raise RecipeError(f"{file}:1: {error}", HINT) from error


def _window(values: object, pool: str, meaning: Meaning | None) -> PoolTrace:
    if not isinstance(values, dict):
        raise _FaultError("expected an object with metadata and data")
    metadata = values.get("metadata")
    tick_s: Any = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if not _is_number(tick_s) or tick_s <= 0:
        raise _FaultError("metadata.gap_seconds must be a number above 0")
    if not _LEAST_S <= tick_s <= _MOST_S:
        raise _FaultError(f"metadata.gap_seconds is {tick_s!r}, not within {_LEAST_S:g} and {_MOST_S:g}")
    counts, prices = obtainable_counts(values, meaning), values.get("prices")
    if prices is not None:
        _check_prices(prices, len(counts))
    return from_ticks(pool, float(tick_s), counts, prices)


def _check_prices(prices: object, ticks: int) -> None:
    if not isinstance(prices, list) or len(prices) != ticks:
        raise _FaultError(f"prices must be a list as long as data, {ticks}")
    for place, price in enumerate(prices):
        if not _is_number(price) or not 0 <= price <= _MOST_USD:
            raise _FaultError(f"prices[{place}] is {_short(price)}, not a price")


def _read_csv(text: str, file: str, pool: str) -> PoolTrace:
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise RecipeError(f"{file}:1: the file is empty", HINT)
    of_events = lines[0][1].count(",") == 2  # noqa: PLR2004  time, event, node
    changes = _each_line(file, lines, _csv_events() if of_events else _csv_counts())
    return from_changes(pool, changes, changes[-1][0] + LAST_RUN_S)


Reader = Callable[[str], Iterable[tuple[float, int]]]


def _csv_events() -> Reader:
    """Return a reader of `ms,add,node` lines, which remembers the nodes that are there."""
    nodes: set[str] = set()

    def read(line: str) -> Iterator[tuple[float, int]]:
        fields = line.split(",")
        if len(fields) != 3:  # noqa: PLR2004
            raise _FaultError(f"expected ms,add,node or ms,remove,node: {_short(line)}")
        yield _milliseconds(fields[0]), _change(fields[1], [fields[2]], nodes)

    return read


def _csv_counts() -> Reader:
    """Return a reader of `ms,n` lines."""
    last = 0

    def read(line: str) -> Iterator[tuple[float, int]]:
        nonlocal last
        fields = line.split(",")
        digits = fields[-1].strip()
        if len(fields) != 2 or not digits.isdecimal():  # noqa: PLR2004
            raise _FaultError(f"expected ms,number or ms,add,node: {_short(line)}")
        if len(digits) > _MOST_DIGITS or int(digits) > _MOST_INSTANCES:
            raise _FaultError(f"{_short(digits)} instances are more than any pool has")
        count, before = int(digits), last
        last = count
        yield _milliseconds(fields[0]), count - before

    return read


def _read_json_lines(text: str, file: str, pool: str) -> PoolTrace:
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise RecipeError(f"{file}:1: the file is empty", HINT)
    nodes: set[str] = set()
    end_s = 0.0

    def read(line: str) -> Iterator[tuple[float, int]]:
        nonlocal end_s
        at_s, event, details = _json_event(line)
        duration = details.get("duration", LAST_RUN_S * MS)
        if not _is_number(duration) or not 0 <= duration <= _MOST_S * MS:
            raise _FaultError("duration must be a number of milliseconds")
        end_s = max(end_s, at_s + duration / MS)
        if event not in NO_CHANGE:
            yield at_s, _change(event, details.get("nodes"), nodes)

    changes = _each_line(file, lines, read)
    if end_s <= 0:
        raise RecipeError(f"{file}:1: the trace lasts no time", HINT)
    return from_changes(pool, changes, end_s)


def _json_event(line: str) -> tuple[float, str, Mapping[str, Any]]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _FaultError("not JSON") from error
    is_event = isinstance(values, list) and len(values) == 3  # noqa: PLR2004  time, event, details
    if not is_event or not isinstance(values[1], str) or not isinstance(values[2], dict):
        raise _FaultError('expected [ms, "add" or "remove" or "no-op", {"nodes": […]}]')
    return _milliseconds(values[0]), values[1], values[2]


def _each_line(file: str, lines: Iterable[tuple[int, str]], read: Reader) -> list[tuple[float, int]]:
    changes: list[tuple[float, int]] = []
    for number, line in lines:
        try:
            of_line = list(read(line))
        except _FaultError as error:
            raise RecipeError(f"{file}:{number}: {error}", HINT) from error
        if changes and of_line and of_line[0][0] < changes[-1][0]:
            raise RecipeError(f"{file}:{number}: the time is before that of an earlier line", HINT)
        changes += of_line
    return changes


def _change(event: str, names: object, nodes: set[str]) -> int:
    """Return by how many an event changes the number of `nodes`, which it updates."""
    if event not in {"add", "remove"}:
        raise _FaultError(f"{_short(event)} is not an event; expected add or remove")
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise _FaultError("nodes must be a list of names")
    before = len(nodes)
    if event == "add":
        nodes.update(names)
    elif not nodes.issuperset(names):
        raise _FaultError(f"{min(set(names) - nodes)[:60]} is removed but was not there")
    else:
        nodes.difference_update(names)
    return len(nodes) - before


def _milliseconds(value: object) -> float:
    """Return seconds of a number, or of its text, in milliseconds."""
    try:
        milliseconds = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        milliseconds = math.nan
    if not 0 <= milliseconds <= _MOST_S * MS:
        raise _FaultError(f"{_short(value)} is not a time in milliseconds")
    return milliseconds / MS


def _short(value: object) -> str:
    """Return a value as Python writes it, shortened for a message."""
    return f"{value!r:.60}"


def _is_number(value: Any) -> bool:  # noqa: ANN401  a value of JSON
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and -_LARGEST <= value <= _LARGEST


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_INSTANCES


READERS: Mapping[str, Callable[[str, str, str], PoolTrace]] = {
    "csv": _read_csv,
    "txt": _read_json_lines,
    "jsonl": _read_json_lines,
}
ENDINGS = ("json", *READERS)
