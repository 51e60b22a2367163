"""The records that training writes: JSON, one object a line, appended whole as they come.

Every record has `schema` (1), `record` (its kind), `time` (UTC, ISO 8601), `run` and `worker`. A reader
ignores keys and kinds that it does not know. By kind:

start       settings {name: value}; software {name: version}; device; what is trained, once per process
step        step: committed by this; samples; share [first, end) of them taken here; loss: mean over all of
            them; world_size; rank; quorum; generation: of the control file; attempts: 1, and one for each
            that was undone; seconds since the commit before; hash: of parameters and optimizer, or null;
            lineage: tells commits of one step apart; where there are two, the run went on with the later one
event       event: one of Event; cause; and what else belongs to it (step, deadline, path, seconds)
end         ok; status: of the process; step

One file is written by the agent of an instance and by its workers; each record goes out in one write.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Self

SCHEMA = 1


class Event(Enum):
    """What can happen to a worker, an agent or a lighthouse; the value is the name in the records."""

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
    DRAIN = "drain"
    DRAINED = "drained"
    DONE = "done"
    NOTICE = "notice"
    REBALANCE = "rebalance"
    METADATA = "metadata"
    CONTROL = "control"
    WORKER_STARTED = "worker_started"
    WORKER_ENDED = "worker_ended"
    KILLED = "killed"
    LIGHTHOUSE_STARTED = "lighthouse_started"
    LIGHTHOUSE_ENDED = "lighthouse_ended"


@dataclass(slots=True, kw_only=True)
class Records:
    """Appends records to a file.

    Args:
        path: The file, made if missing; None writes nothing.
        run: The run's name.
        worker: Who writes.
        tell: Told each event as a line.
        now: Tells the time, aware and in UTC.
    """

    path: Path | None
    run: str
    worker: str
    tell: Callable[[str], None] = lambda _line: None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _file: int = -1

    def __enter__(self) -> Self:
        """Open the file."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def start(self, **values: Any) -> None:  # noqa: ANN401 - whatever JSON holds
        """Record what begins."""
        self._write("start", values)

    def step(self, **values: Any) -> None:  # noqa: ANN401
        """Record a committed step."""
        self._write("step", values)

    def event(self, event: Event, cause: str, **values: Any) -> None:  # noqa: ANN401
        """Record and tell what happened, and why."""
        self._write("event", {"event": event.value, "cause": cause, **values})
        details = "".join(f", {name} {value}" for name, value in values.items())
        self.tell(f"{self.worker}: {event.value.replace('_', ' ')}: {cause}{details}")

    def end(self, *, status: int, **values: Any) -> None:  # noqa: ANN401
        """Record that the process ends."""
        self._write("end", {"ok": status == 0, "status": status, **values})

    def _write(self, kind: str, values: dict[str, Any]) -> None:
        if self._file < 0:
            return
        time = self.now().isoformat(timespec="milliseconds")
        head = {"schema": SCHEMA, "record": kind, "time": time, "run": self.run, "worker": self.worker}
        os.write(self._file, (json.dumps({**head, **values}, separators=(",", ":")) + "\n").encode())
