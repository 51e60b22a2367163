"""Durable checkpoints: written aside, synced, named by step and digest, trusted only if it holds."""

import hashlib
import os
import queue
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .engine import State

_NAME = re.compile(r"step-(\d{12})-([0-9a-f]{32})\.pt")
KEPT = 2
"""The newest, and one in case a disk loses it."""


def write(folder: Path, step: int, state: State, *, kept: int = KEPT) -> Path:
    """Write a checkpoint and remove all but the newest `kept`; a crash at any moment leaves the former ones.

    Raises:
        OSError: The disk refused.
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
    for old in sorted(_found(folder), reverse=True)[kept:]:
        old.unlink(missing_ok=True)
    return path


def newest(folder: Path) -> tuple[int, State] | None:
    """Return step and state of the newest checkpoint that is whole, on the CPU; None without one."""
    for path in sorted(_found(folder), reverse=True):
        matched = _NAME.fullmatch(path.name)
        data = path.read_bytes()
        if matched and _digest(data) == matched[2]:
            # Plain values and tensors only: a file cannot bring code.
            return int(matched[1]), torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    return None


def copied(value: Any) -> Any:  # noqa: ANN401 - any tree of tensors and plain values
    """Copy a state so that training may go on while it is written or sent."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {name: copied(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(each) for each in value)
    return value


def digest_of(state: State) -> str:
    """Return a digest of every tensor and value of a state, equal only where all bits are."""
    total = hashlib.blake2b(digest_size=16)
    for name, value in _leaves(state, ""):
        total.update(name.encode())
        if isinstance(value, Tensor):
            flat = value.detach().cpu().contiguous().flatten()
            total.update(flat.view(torch.uint8).numpy().tobytes())
        else:
            total.update(repr(value).encode())
    return total.hexdigest()


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, f"{name}/{key}")
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _leaves(each, f"{name}/{number}")
    else:
        yield name, value


def _found(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step-*.pt") if _NAME.fullmatch(path.name)]


def _digest(data: "bytes | memoryview[int]") -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(slots=True, kw_only=True)
class Writer:
    """Writes checkpoints beside the training, one at a time; only the newest one waiting is written.

    Args:
        folder: Where to.
        wrote: Told step and path of each that is durable.
        failed: Told step and error of each that is not; training goes on.
    """

    folder: Path
    wrote: Callable[[int, Path], None]
    failed: Callable[[int, OSError], None]
    _waiting: "queue.Queue[tuple[int, State] | None]" = field(default_factory=queue.Queue, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def submit(self, step: int, state: State) -> None:
        """Have a state written soon; it must be a copy."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
            self._thread.start()
        self._waiting.put((step, state))

    def close(self) -> None:
        """Wait until all is written."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        last = False
        while not last:
            batch = [self._waiting.get()]
            while not self._waiting.empty():
                batch.append(self._waiting.get())
            last = None in batch
            states = [each for each in batch if each is not None]
            if states:
                self._write(*states[-1])

    def _write(self, step: int, state: State) -> None:
        try:
            self.wrote(step, write(self.folder, step, state))
        except OSError as error:
            self.failed(step, error)
