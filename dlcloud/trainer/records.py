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

The agent of an instance and its workers write to one file; each record is one write. On the coordinator the
lighthouse adds the steps of all workers to it, each once; `worker` is who took it. Secrets of the launcher
are masked: errors of the user's code may quote them.
"""

import json
import os
import sys
from collections.abc import Callable
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
        run: The run's name.
        worker: Name of the writer.
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
        """Record and log an event."""
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
