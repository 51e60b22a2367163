"""Durable checkpoints: written aside, synced, named by step and digest, and read only if the digest holds."""

import hashlib
import os
import queue
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import torch

from .coordination.ledger import LedgerReporter
from .engine import State, copy_state
from .job import TrainingState
from .records import EventName, Records
from .settings import ControlFile, Settings

_NAME = re.compile(r"step-(\d{12})-([0-9a-f]{32})\.pt")
KEPT = 2
"""The newest one, and one in case a disk loses it."""


def write(folder: Path, step: int, state: State) -> Path:
    """Write a checkpoint and remove the old ones; a crash at any moment leaves the former ones.

    Raises:
        OSError: The disk is full, or fails.
    """
    content = BytesIO()
    torch.save(state, content)
    data = content.getbuffer()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:012d}-{_digest(data)}.pt"
    unfinished = folder / f".{path.name}.{os.getpid()}.new"
    try:
        with unfinished.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)
    _sync_folder(folder)
    for old in _newest_first(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def newest(folder: Path) -> tuple[int, State] | None:
    """Return step and state of the newest whole checkpoint, on the CPU; None without one."""
    for path in _newest_first(folder):
        match = _NAME.fullmatch(path.name)
        data = path.read_bytes()
        if match and _digest(data) == match[2]:
            # Plain values and tensors only: a file cannot bring code.
            return int(match[1]), torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    return None


def _newest_first(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("step-*.pt") if _NAME.fullmatch(path.name)), reverse=True)


def _digest(data: "bytes | memoryview[int]") -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(slots=True, kw_only=True)
class Checkpoints:
    """The checkpoints of a worker, written from a thread; without a folder nothing is written.

    Attributes:
        saved: Committed steps of the newest checkpoint, which may still be being written.
        saved_at: When that was.
    """

    state: TrainingState
    settings: Settings
    records: Records
    control: ControlFile
    reporter: LedgerReporter
    clock: Callable[[], float] = time.monotonic
    saved: int = field(default=0, init=False)
    saved_at: float = field(default=0.0, init=False)
    _waiting: "queue.Queue[tuple[int, State] | None]" = field(default_factory=queue.Queue, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def resume(self) -> None:
        """Load the newest checkpoint, if there is one."""
        checkpoint = newest(self.settings.checkpoints) if self.settings.checkpoints else None
        if checkpoint is not None:
            self.state.load(checkpoint[1])
            self.saved = self.state.step
            self.records.event(EventName.RESUMED, "a checkpoint", step=self.state.step)

    def is_due(self) -> bool:
        """True right after the first step, so that a run that has begun is never without a checkpoint."""
        return not self.saved or self.clock() - self.saved_at >= self.settings.checkpoint_s

    def save_soon(self) -> None:
        """Copy the state and write it from the thread; of several waiting copies the newest is written."""
        if self.settings.checkpoints is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
            self._thread.start()
        self._waiting.put((self.state.step, copy_state(self.state.save())))
        self.saved, self.saved_at = self.state.step, self.clock()

    def close(self) -> None:
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        is_last = False
        while not is_last:
            batch = [self._waiting.get()]
            while not self._waiting.empty():
                batch.append(self._waiting.get())
            is_last = None in batch
            if copies := [item for item in batch if item is not None]:
                self._write(*copies[-1])

    def _write(self, step: int, state: State) -> None:
        folder = self.settings.checkpoints
        assert folder is not None  # noqa: S101 - the thread runs only where there is one
        try:
            path = write(folder, step, state)
        except OSError as error:
            self.records.event(EventName.CHECKPOINT_FAILED, str(error), step=step)
            return
        self.records.event(EventName.CHECKPOINT, "durable", step=step, path=os.fspath(path))
        if self.settings.durable or self.control.read().coordinates:
            self.reporter.report_soon(checkpoint=step)
