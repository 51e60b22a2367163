"""Bounds on connections: how many, and how slow. Clients that hang must not stop others."""

import contextlib
import io
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

MOST_CONNECTIONS = 256
"""Open connections of one kind of client: the daemon's user with root, or all instances together."""
IDLE_S = 75.0
"""How long a connection may wait for its next request."""
GRACE_S = 30.0
LEAST_BYTES_PER_S = 32 * 1024
"""A request or a reply may take the grace, and its length at this rate."""
_PIECE = 1 << 16


@dataclass(eq=False, kw_only=True)
class Connections:
    """The open connections. Methods may be called from any thread.

    Beyond the limit of its kind, a new connection takes the place of the one whose client has kept a thread
    waiting for the longest time; where no thread waits, it is refused.
    """

    most: int = MOST_CONNECTIONS
    _waiting: dict[socket.socket, tuple[str, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def admit(self, connection: socket.socket, kind: str) -> bool:
        """Count a new connection; False if it is one too many."""
        with self._lock:
            others = [one for one, (its_kind, _) in self._waiting.items() if its_kind == kind]
            if len(others) >= self.most:
                longest = min(others, key=lambda one: self._waiting[one][1])
                if self._waiting[longest][1] == float("inf"):
                    return False
                del self._waiting[longest]
                with contextlib.suppress(OSError):
                    longest.shutdown(socket.SHUT_RDWR)
            self._waiting[connection] = (kind, time.monotonic())
            return True

    def wait(self, connection: socket.socket) -> None:
        """Note that a client has just sent something, and is waited for."""
        self._note(connection, time.monotonic())

    def work(self, connection: socket.socket) -> None:
        """Note that a client is not waited for, until the next call of `wait`."""
        self._note(connection, float("inf"))

    def leave(self, connection: socket.socket) -> None:
        """Forget a connection."""
        with self._lock:
            self._waiting.pop(connection, None)

    def _note(self, connection: socket.socket, since: float) -> None:
        with self._lock:
            if connection in self._waiting:
                self._waiting[connection] = (self._waiting[connection][0], since)


class PacedSocket(io.RawIOBase):
    """Reads and writes a connection, whose client must keep a least rate.

    Args:
        connection: The connection.
        on_bytes: Called when the client has sent something.
    """

    def __init__(self, connection: socket.socket, on_bytes: Callable[[], None]) -> None:
        super().__init__()
        self._connection = connection
        self._on_bytes = on_bytes
        self._begin: float | None = None
        self._moved = 0

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def rest(self) -> None:
        """Wait for a next request, which has not begun."""
        self._begin = None

    def begin(self) -> None:
        """Measure from now on: a request, or a reply."""
        self._begin, self._moved = time.monotonic(), 0

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        self._connection.settimeout(self._left_s())
        count = self._connection.recv_into(buffer)
        if self._begin is None:
            self.begin()
        self._moved += count
        self._on_bytes()
        return count

    def write(self, content: "bytes | memoryview") -> int:  # type: ignore[override]
        self._connection.settimeout(self._left_s())
        count = self._connection.send(memoryview(content)[:_PIECE])
        self._moved += count
        return count

    def _left_s(self) -> float:
        if self._begin is None:
            return IDLE_S
        left = self._begin + GRACE_S + self._moved / LEAST_BYTES_PER_S - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client is too slow")
        return left
