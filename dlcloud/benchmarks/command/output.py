"""Read throughputs from the output of a command."""

import codecs
import io
import itertools
import json
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from ..harness import statistics
from ..harness.case import VariantError
from ..harness.numbers import find_all, matched_number, read_number

LONGEST_LINE = 1 << 20
"""Characters; of a longer line only its end is read."""

LONGEST_SHOWN = 160
"""Characters of a line that a message shows."""

LONGEST_FACT = 80
"""Characters of a fact that are kept."""

_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "µs": 1e6}
_TIME = re.compile(r"(.*[0-9])\s?(s|ms|us|µs)")


class ThroughputReader(Protocol):
    """Reads throughputs from lines of output."""

    def values(self, line: str) -> list[float]:
        """Return the throughputs in a line, in order.

        Raises:
            VariantError: The text in place of a throughput is not a number above 0.
        """

    def describe(self) -> str:
        """Return what a line needs, as the predicate of a message."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Reads every match of a regular expression with one group, as the whole number that it is part of."""

    expression: re.Pattern[str]
    unit: str = ""

    @classmethod
    def parse(cls, text: str, unit: str = "") -> "Pattern":
        """Compile the expression.

        Raises:
            ValueError: It is not a regular expression, or has not exactly one group.
        """
        try:
            expression = re.compile(text)
        except re.error as error:
            raise ValueError(f"--throughput is not a regular expression: {error}") from None
        if expression.groups != 1:
            raise ValueError(
                f"--throughput must have one group, not {expression.groups}; (?:...) groups without"
            )
        return cls(expression, unit)

    def values(self, line: str) -> list[float]:
        return [_number(matched_number(match, self.unit), line) for match in find_all(self.expression, line)]

    def describe(self) -> str:
        return f"matches {self.expression.pattern!r}"


@dataclass(frozen=True, slots=True)
class JsonField:
    """Reads a field of lines that are JSON objects; `a.b` is the field b of the object a."""

    name: str

    def values(self, line: str) -> list[float]:
        if not line.lstrip().startswith("{"):
            return []
        try:
            value: Any = json.loads(line)
        except json.JSONDecodeError:
            return []
        for part in self.name.split("."):
            if not isinstance(value, dict) or part not in value:
                return []
            value = value[part]
        return [_number(str(value), line)]

    def describe(self) -> str:
        return f"is a JSON object with the field {self.name!r}"


@dataclass(frozen=True, slots=True)
class Reported:
    """Reads the lines of the file that the program reports to: numbers, one a line."""

    def values(self, line: str) -> list[float]:
        return [_number(line.strip(), line)] if line.strip() else []

    def describe(self) -> str:
        return "is needed, but a call of dlcloud_report.throughput or .step, and there was none"


class OutputLines:
    """Splits the output of one run into lines as it arrives, and reads them; CR ends a line too.

    Args:
        reader: Reads the throughputs; None: there are none.
        facts: Expressions of what else is read, by name; their last matches are kept.
    """

    def __init__(
        self, reader: ThroughputReader | None, facts: Mapping[str, re.Pattern[str]] | None = None
    ) -> None:
        self._reader = reader
        self._expressions = facts or {}
        self._decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), True)
        self._unfinished = ""
        self.values: list[float] = []
        self.facts: dict[str, str] = {}
        self.last = ""
        """The last line that is not blank."""

    def feed(self, output: bytes) -> None:
        """Read the lines that end in the next piece of output."""
        lines = list(io.StringIO(self._unfinished + self._decoder.decode(output)))
        rest = lines.pop() if lines and not lines[-1].endswith("\n") else ""
        self._unfinished = rest[-LONGEST_LINE:]
        self._read(lines)

    def close(self) -> None:
        """Read the last line, which may lack its newline."""
        self._read([self._unfinished + self._decoder.decode(b"", final=True)])

    def _read(self, lines: list[str]) -> None:
        self.last = next((line.strip() for line in reversed(lines) if line.strip()), self.last)
        if self._reader is not None:
            with _limited("the throughput"):
                self.values.extend(itertools.chain.from_iterable(map(self._reader.values, lines)))
        for name, expression in self._expressions.items():
            with _limited(f"the fact {name}"):
                matches = (match for line in reversed(lines) for match in find_all(expression, line))
                if (last := next(matches, None)) is not None:
                    self.facts[name] = matched_number(last)[:LONGEST_FACT]


LIMIT_S = 5.0
"""CPU seconds that a pattern has for a piece of output, which takes milliseconds."""


@contextmanager
def _limited(subject: str) -> Iterator[None]:
    """End a pattern that takes too long. Only the main thread can; there `benchmarks` read their output.

    Raises:
        VariantError: It took longer than LIMIT_S.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_: int, __: FrameType | None) -> None:
        raise VariantError(f"the pattern of {subject} takes more than {LIMIT_S:.0f} s for a piece of output")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The throughputs of one run that count; `settled` is False if they never agreed."""

    counted: tuple[float, ...]
    settled: bool


def after_warm_up(values: list[float]) -> Values:
    """Leave out the leading values that belong to the warm-up.

    Of fewer than two groups of three all values count; of values that never agree, the second half.
    """
    if len(values) < 2 * statistics.WARM_UP_GROUP:
        return Values(counted=tuple(values), settled=True)
    length = statistics.warm_up_length(values)
    if length is None:
        return Values(counted=tuple(values[len(values) // 2 :]), settled=False)
    return Values(counted=tuple(values[length:]), settled=True)


def _number(text: str, line: str) -> float:
    """Return a throughput; of a time, such as `9ms` of `9ms/step`, how many such times a second has."""
    value = read_number(text)
    if value is None and (time := _TIME.fullmatch(text)) and (length := read_number(time[1])):
        value = _PER_SECOND[time[2]] / length
    if value is None or value <= 0:
        where = "" if line.strip() == text else f", in the line {line.strip()[:LONGEST_SHOWN]!r}"
        raise VariantError(f"the throughput reads {text[:80]!r}, not a number above 0{where}")
    return value
