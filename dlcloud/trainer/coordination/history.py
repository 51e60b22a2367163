"""The records of a run's steps, at the workers that took them and on the coordinator.

A worker sends the record of a step with its next request to the lighthouse, so a step is recorded there
before another one begins. It keeps all of them, and those that a peer had when it joined: a coordinator that
replaces a lost one is sent what it lacks.
"""

import json
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LONGEST_RECORD = 64 << 10
LARGEST = 1 << 53
"""Of a number: what JSON keeps exactly."""

AT_ONCE = 500
"""Records of one request: a coordinator that lacks many receives them over several steps."""

KEPT = 200_000
"""Steps that a worker keeps in memory, of about 400 bytes each; older ones are at the coordinator only."""


@dataclass(slots=True)
class History:
    """The step records that a worker knows, by step.

    Attributes:
        recorded: The coordinator has every step up to this one.
        run: Records of another run are not taken; empty takes any.
    """

    recorded: int = 0
    run: str = ""
    _lines: dict[int, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, step: int, line: str) -> None:
        """Add a record; a step that was taken again has a new one."""
        with self._lock:
            self._lines[step] = line
            if len(self._lines) > KEPT:
                del self._lines[min(self._lines)]

    def find(self, step: int) -> str | None:
        """Return the record of a step."""
        with self._lock:
            return self._lines.get(step)

    def rewind(self, step: int, line: str | None) -> None:
        """Continue from a state with this many steps; `line` is the record of its last one."""
        with self._lock:
            self._lines = {number: own for number, own in self._lines.items() if number < step}
            if line is not None and parse_record(line, run=self.run, most=step) is not None:
                self._lines[step] = line

    def fill(self, lines: Iterable[str], step: int) -> None:
        """Add the records of a peer, with whose state of a step this worker continues."""
        with self._lock:
            for line, record in _parse(lines, self.run, step):
                self._lines[record["step"]] = line

    def all(self) -> list[str]:
        with self._lock:
            return [self._lines[step] for step in sorted(self._lines)]

    def unrecorded(self, step: int, *, with_older: bool) -> list[str]:
        """Return records to send: that of the last step, and older ones that the coordinator lacks."""
        with self._lock:
            first = self.recorded + 1 if with_older else step
            steps = range(max(first, step - KEPT), step)
            older = [self._lines[n] for n in steps if n in self._lines][: AT_ONCE - 1]
            return [*older, *([self._lines[step]] if step in self._lines else [])]


class Journal:
    """The steps that are recorded on the coordinator, in the file of its records.

    Args:
        path: What is in it already counts; None keeps none.
        run: Records of another run are not taken; empty takes any.
    """

    def __init__(self, path: Path | None, run: str = "") -> None:
        self.recorded, self._run = 0, run
        self._seen: dict[int, set[object]] = {}
        self._file = -1
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                for _, record in _parse(path.read_text(errors="replace").split("\n"), run):
                    self._note(record)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, lines: Iterable[str], most: int = LARGEST) -> None:
        """Write the records that are new, each in one write; those of steps after `most` are not taken.

        Raises:
            OSError: The disk is full.
        """
        for line, record in _parse(lines, self._run, most):
            if self._file >= 0 and self._is_new(record):
                os.write(self._file, line.encode() + b"\n")
                self._note(record)

    def _is_new(self, record: dict[str, Any]) -> bool:
        return record.get("lineage") not in self._seen.get(record["step"], ())

    def _note(self, record: dict[str, Any]) -> None:
        self._seen.setdefault(record["step"], set()).add(record.get("lineage"))
        while self.recorded + 1 in self._seen:
            self.recorded += 1


def parse_record(line: str, *, run: str, most: int) -> dict[str, Any] | None:
    """Return the record of a step if a line is one: of this run, and of no step after `most`."""
    if len(line) > LONGEST_RECORD or "\n" in line:
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("record") != "step":
        return None
    step, lineage = record.get("step"), record.get("lineage")
    is_of_run = not run or record.get("run", run) == run
    is_whole = type(step) is int and 0 < step <= most and (lineage is None or type(lineage) is int)
    return record if is_of_run and is_whole else None


def _parse(lines: Iterable[str], run: str, most: int = LARGEST) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in lines:
        record = parse_record(line, run=run, most=most)
        if record is not None:
            yield line, record
