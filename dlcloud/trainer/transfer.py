"""The transfer of a state from a worker to one that is behind: plain HTTP inside the security group."""

import http.client
import io
import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from .coordination.history import History
from .engine import State
from .limits import time_limit

IDLE_S = 5.0
"""A transfer in which nothing comes for so long has failed."""

CHUNK = 1 << 20


SLOWEST = 64 << 10
"""Bytes a second: a transfer that is slower than this over its whole time has failed."""

SPARE = 64 << 20
"""Bytes that a state may have beyond twice those of the worker's own."""

LONGEST_HISTORY = 256 << 20


class TransferError(Exception):
    """A state could not be fetched."""


class StateServer(ThreadingHTTPServer):
    """Serves the state of this worker while a step is taken in which a peer needs it, and its history."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, history: History) -> None:
        super().__init__((host, 0), _Handler)
        self.history = history
        self._published: tuple[int, State] | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self.serve_forever, name="state", daemon=True).start()

    def publish(self, quorum: int, state: State) -> None:
        """Serve a state, which must not change, to the members of a quorum."""
        with self._changed:
            self._published = quorum, state
            self._changed.notify_all()

    def withdraw(self) -> None:
        with self._changed:
            self._published = None

    def find(self, quorum: int) -> State | None:
        """Return the state for a quorum, which may be about to be published."""
        with self._changed:
            self._changed.wait_for(lambda: self._published and self._published[0] >= quorum, IDLE_S)
            published = self._published
        return published[1] if published and published[0] == quorum else None

    def handle_error(self, *_: Any) -> None:  # noqa: ANN401 - as the library has it
        """Write no log: the peer repeats its request."""

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: StateServer
    timeout = 4 * IDLE_S

    def do_GET(self) -> None:
        kind, _, number = self.path.strip("/").partition("/")
        if kind == "history":
            self._answer(HTTPStatus.OK)
            self.wfile.write(json.dumps(self.server.history.all()).encode())
            return
        state = self.server.find(int(number)) if kind == "state" and number.isdecimal() else None
        self._answer(HTTPStatus.OK if state is not None else HTTPStatus.NOT_FOUND)
        if state is not None:
            # Its end is the index: a reader recognizes one that was cut off.
            torch.save(state, self.wfile)

    def _answer(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - as the library has it
        """Write no log."""


def fetch_state(
    address: str, quorum: int, is_broken: Callable[[], bool], *, step: int, most_bytes: int
) -> State:
    """Fetch a peer's state.

    Args:
        address: `HOST:PORT` of its server.
        quorum: In which both take part.
        is_broken: True once a worker of it is gone.
        step: Committed steps that it must have.
        most_bytes: A longer answer is given up.

    Raises:
        TransferError: The peer is gone, or has no such state.
    """
    data = _fetch(address, f"/state/{quorum}", is_broken, most_bytes)
    try:
        # Plain values and tensors only: a peer cannot send code.
        state: State = torch.load(data, map_location="cpu", weights_only=True)
    except Exception as error:
        # PyTorch's errors for a file that was cut off have no class in common.
        raise TransferError(f"the state of {address} is not whole: {error}") from error
    if not isinstance(state, dict) or type(state.get("step")) is not int or state["step"] != step:
        raise TransferError(f"{address} gave no state of step {step}")
    return state


def count_bytes(state: Any) -> int:  # noqa: ANN401 - any tree of tensors and plain values
    """Count the bytes of all tensors in a state."""
    if isinstance(state, torch.Tensor):
        return int(state.numel() * state.element_size())
    values = state.values() if isinstance(state, dict) else state
    return sum(count_bytes(value) for value in values) if isinstance(state, dict | list | tuple) else 0


def fetch_history(address: str) -> list[str]:
    """Fetch the records that a peer has; raises as `fetch_state` does."""
    try:
        lines = json.loads(_fetch(address, "/history", lambda: False, LONGEST_HISTORY).getvalue())
    except (ValueError, RecursionError) as error:
        raise TransferError(f"the history of {address} is not whole") from error
    if not isinstance(lines, list):
        raise TransferError(f"the history of {address} is no list")
    return [line for line in lines if isinstance(line, str)]


def _fetch(address: str, path: str, is_broken: Callable[[], bool], most_bytes: int) -> io.BytesIO:
    data, started_at = io.BytesIO(), time.monotonic()
    connection = http.client.HTTPConnection(address, timeout=2 * IDLE_S)
    try:
        connection.connect()
        with time_limit(connection.sock, 4 * IDLE_S):
            connection.request("GET", path)
            answer = connection.getresponse()
        if answer.status != HTTPStatus.OK:
            raise TransferError(f"{address}{path}: status {answer.status}")
        while chunk := answer.read1(CHUNK):
            data.write(chunk)
            if is_broken():
                raise TransferError("a worker is gone")
            if data.tell() > most_bytes:
                raise TransferError(f"{address}{path}: more than {most_bytes} bytes")
            if data.tell() < SLOWEST * (time.monotonic() - started_at - 4 * IDLE_S):
                raise TransferError(f"{address}{path}: slower than {SLOWEST} bytes a second")
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise TransferError(f"{address}{path}: {error}") from error
    finally:
        connection.close()
    data.seek(0)
    return data
