"""Messages between the head and a worker: JSON objects over a connection that proves a shared secret.

`multiprocessing.connection` authenticates both sides by HMAC before the first message. Its pickles are not
used: a message is bytes of JSON.
"""

import contextlib
import json
import os
import socket
import threading
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

BEAT_S = 2.0
"""Seconds between signs of life."""

SILENCE_S = 60.0
"""A peer that was silent for so long is lost: an instance that lost its power closes no connection."""

LARGEST = 1 << 20
"""Of a message, in bytes."""


class LostError(Exception):
    """The other side is gone."""


@dataclass(slots=True, kw_only=True)
class Channel:
    """One side of a connection; any thread may send, one receives."""

    connection: Connection
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _closed: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def send(self, **message: object) -> None:
        """Send a message; one that cannot be sent is lost, which `receive` notices."""
        with contextlib.suppress(OSError, ValueError), self._lock:
            self.connection.send_bytes(json.dumps(message).encode())

    def receive(self) -> dict[str, Any]:
        """Return the next message that is not a sign of life.

        Raises:
            LostError: The other side closed, was silent for SILENCE_S, or sent no JSON object.
        """
        while True:
            try:
                if not self.connection.poll(SILENCE_S):
                    raise LostError(f"silent for {SILENCE_S:.0f} s")
                message = json.loads(self.connection.recv_bytes(LARGEST))
            except (OSError, EOFError, ValueError) as error:
                raise LostError("the connection was closed") from error
            if not isinstance(message, dict):
                raise LostError("it sent no message")
            if message:
                return message

    def close(self) -> None:
        """Shut the connection down, which a thread in `receive` notices at once."""
        self._closed.set()
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.connection.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_S):
            self.send()
