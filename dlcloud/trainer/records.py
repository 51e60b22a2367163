"""The records that training writes: JSON, one object a line, appended whole as they come.

Every record has `schema` (1), `record` (its kind), `time` (UTC, ISO 8601), `run` and `worker`. A reader
ignores unknown keys and kinds. By kind:

start       settings {name: value}; software {name: version}; device; once per process
step        step: number of committed steps, this one included; samples; share [first, end) of them computed
            here; loss: mean over all of them; world_size: workers; instances: on which they run; rank;
            quorum; generation: of the control file; reduced_bytes: that each worker summed with the others;
            attempts: 1, and one for each that was rolled back; seconds since the commit before; hash: of
            parameters and optimizer, or null; lineage: distinguishes commits of one step; parent: lineage of
            the step before: where a step has two commits, the run continued with the one that later steps
            descend from
event       event: one of `EventName`; cause; and what else belongs to it (step, deadline, path, seconds)
end         ok; status: of the process; step

The agent of an instance and its workers write to one file (`Records`); each record is one write. Secrets of
the launcher are masked: errors of the user's code may quote them.

The coordinator has the steps of all workers, each once; `worker` is who took it. A worker sends the record of
a step with its next request to the lighthouse, so a step is recorded there (`Journal`) before another one
begins. A worker keeps all of them, and those that a peer had when it joined (`History`): a coordinator that
replaces a lost one is sent what it lacks.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from .masking import mask, secret_texts


class EventName(StrEnum):
    """An event of a worker, an agent or a lighthouse; the value is its name in the records.

    The launcher reads records by these names.
    """

    JOINED = "joined"
    HEALED = "healed"
    COORDINATOR = "coordinator"
    RESUMED = "resumed"
    LEAVING_SEEN = "leaving_seen"
    LOST = "lost"
    RETRY = "retry"
    NO_QUORUM = "no_quorum"
    HOLD = "hold"
    CHECKPOINT = "checkpoint"
    CHECKPOINT_FAILED = "checkpoint_failed"
    STORED = "checkpoint_stored"
    STORE_FAILED = "checkpoint_store_failed"
    DRAIN = "drain"
    DRAINED = "drained"
    DONE = "done"
    NOTICE = "notice"
    REBALANCE = "rebalance"
    METADATA = "metadata"
    CONTROL = "control"
    ORPHANED = "orphaned"
    TAKE_OVER = "take_over"
    WORKER_STARTED = "worker_started"
    WORKER_ENDED = "worker_ended"
    KILLED = "killed"
    LIGHTHOUSE_STARTED = "lighthouse_started"
    LIGHTHOUSE_ENDED = "lighthouse_ended"


def event_words(name: str) -> str:
    """Return the name of an event, which may be unknown here, as people read it."""
    return name.replace("_", " ")


SCHEMA = 1


@dataclass(slots=True, kw_only=True)
class Records:
    """Appends records to a file.

    Args:
        path: The file, created if missing; None writes nothing.
        log: Receives a line for each event.
    """

    path: Path | None
    run: str
    worker: str
    log: Callable[[str], None] = lambda _line: None
    _file: int = -1
    _secrets: tuple[str, ...] = field(default_factory=secret_texts, repr=False)

    def __enter__(self) -> Self:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def start(self, **values: Any) -> None:  # noqa: ANN401 - whatever JSON holds
        self._write("start", values)

    def step(self, **values: Any) -> str:  # noqa: ANN401
        """Record a committed step; return the line, for the coordinator."""
        return self._write("step", values)

    def event(self, event: EventName, cause: str, **values: Any) -> None:  # noqa: ANN401
        cause, values = mask(cause, self._secrets), mask(values, self._secrets)
        self._write("event", {"event": event.value, "cause": cause, **values})
        details = "".join(f", {name} {value}" for name, value in values.items())
        self.log(f"{self.worker}: {event_words(event)}: {cause}{details}")

    def end(self, *, status: int, **values: Any) -> None:  # noqa: ANN401
        self._write("end", {"ok": status == 0, "status": status, **values})

    def _write(self, kind: str, values: dict[str, Any]) -> str:
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        head = {"schema": SCHEMA, "record": kind, "time": time, "run": self.run, "worker": self.worker}
        content = {**head, **values}
        line = json.dumps(mask(content, self._secrets) if self._secrets else content, separators=(",", ":"))
        if self._file >= 0:
            os.write(self._file, line.encode() + b"\n")
        return line


def log_to_stderr(line: str) -> None:
    """Write a line immediately."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


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
