"""Start a worker process, talk to it, freeze it while others are measured, and notice when it dies."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from . import load

PIECE_BYTES = 1 << 16


class VariantError(Exception):
    """A setting cannot be measured; the message says why.

    Args:
        message: One sentence.
        missing: The module that is not installed, where that is the reason.
    """

    def __init__(self, message: str, missing: str | None = None) -> None:
        super().__init__(message)
        self.missing = missing


@dataclass(slots=True)
class WorkerProcess:
    """A running worker; between requests it is frozen so that it cannot disturb the others.

    What it starts itself, such as a Java machine, is ended with it, but not frozen: what is frozen outlives
    a coordinator that is killed.

    Args:
        environment: The whole environment of the process.
        python: The interpreter.
    """

    environment: Mapping[str, str]
    python: str = sys.executable
    _process: subprocess.Popen[bytes] = field(init=False)
    _unread: bytes = field(init=False, default=b"")

    def __post_init__(self) -> None:
        """Start the process."""
        package = __package__ or "benchmarks.harness"
        root = Path(__file__).resolve().parents[package.count(".") + 1]
        path = os.pathsep.join(part for part in (str(root), self.environment.get("PYTHONPATH", "")) if part)
        self._process = subprocess.Popen(
            [self.python, "-m", f"{package}.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**self.environment, "PYTHONPATH": path},
        )

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def __enter__(self) -> Self:
        """Return the process, to be ended with the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        self.close()

    def ask(self, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Send a request, wait for its reply, and freeze the process again.

        Raises:
            VariantError: The worker refused, died, or did not answer in time.
        """
        try:
            self._process.send_signal(signal.SIGCONT)
            self._stdin.write(json.dumps(request).encode() + b"\n")
            self._stdin.flush()
        except BrokenPipeError:
            raise VariantError(self._death()) from None
        reply: dict[str, Any] = json.loads(self._line(request["do"], timeout_s))
        if "error" in reply:
            raise VariantError(reply["error"], reply["missing"])
        self._process.send_signal(signal.SIGSTOP)
        return reply

    def cpu_s(self) -> float:
        """Return the CPU seconds it has used."""
        return load.process_cpu_s(self.pid)

    def close(self) -> None:
        """Kill the process, frozen or not, and wait until it is gone."""
        self._kill_family()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                _close_quietly(pipe)

    def _kill_family(self) -> None:
        if self._process.poll() is None:
            for pid in load.family(self.pid):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None  # noqa: S101 - asked for as a pipe above
        return self._process.stdin

    def _line(self, what: str, timeout_s: float) -> bytes:
        assert self._process.stdout is not None  # noqa: S101 - asked for as a pipe above
        stream = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            readable, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise VariantError(f"no answer to {what} within {timeout_s:.0f} s")
            piece = os.read(stream, PIECE_BYTES)
            if not piece:
                raise VariantError(self._death())
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _death(self) -> str:
        return f"the worker process {ending(self._process.wait())}"


def ending(status: int) -> str:
    """Say how a process ended, from its exit status as subprocess gives it."""
    if status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name
    return f"was ended by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")


def _close_quietly(pipe: IO[bytes]) -> None:
    try:
        pipe.close()
    except BrokenPipeError:  # what was still buffered for a dead process
        return
