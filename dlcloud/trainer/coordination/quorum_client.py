"""A worker's connection to the lighthouse; see `quorum_server.py` for what is sent."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .ledger import WrongRunError
from .protocol import (
    LONGEST_LINE,
    OtherRunError,
    ProtocolError,
    parse_line,
    parse_number,
    parse_quorum,
    parse_text,
)
from .quorum import Ask, NoQuorumError, Peer

CONNECT_S = 3.0
SLICE_S = 0.25
"""Of a wait: signals are handled, and what ends it is looked at, so often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The quorum of a step, how many steps the coordinator has recorded, and how many workers have left."""

    number: int
    members: tuple[Peer, ...]
    recorded: int
    left: int = 0


class QuorumClient:
    """One connection, with a thread that listens and sends signs of life.

    Args:
        address: `HOST:PORT`.
        hello: Of this worker.
        beat_s: Between signs of life.
        silent_s: A lighthouse that does not answer them for so long is gone.

    Raises:
        NoQuorumError: There is no lighthouse.
    """

    def __init__(
        self, address: str, run: str, hello: dict[str, Any], *, beat_s: float, silent_s: float
    ) -> None:
        host, _, port = address.rpartition(":")
        self._address, self._beat_s, self._silent_s = address, beat_s, silent_s
        self._run, self._own, self._unheard_s = run, str(hello.get("id", "")), 0.0
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._agreement: tuple[int, Agreement] | None = None
        self._broken, self._refused = 0, ""
        self._end = ""
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), CONNECT_S)
        except OSError as error:
            raise NoQuorumError(f"no lighthouse at {address}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(silent_s)  # a send that takes longer fails
        self._send({"run": run, "hello": hello})
        for target in (self._listen, self._beat):
            threading.Thread(target=target, name="lighthouse", daemon=True).start()

    @property
    def is_closed(self) -> bool:
        return bool(self._end)

    def ask(self, ask: Ask, records: Sequence[str]) -> None:
        self._send({"ask": asdict(ask), "records": list(records)})

    def leave(self) -> None:
        self._send({"leave": True})

    def wait(self, number: int, limit_s: float) -> Agreement | None:
        """Wait for the answer to the request of a number; None if there is none in time.

        Raises:
            NoQuorumError: The lighthouse is gone.
            WrongRunError: It serves another run.
        """
        deadline = time.monotonic() + limit_s
        with self._changed:
            while (left := deadline - time.monotonic()) > 0:
                if self._refused:
                    raise WrongRunError(f"the lighthouse at {self._address} {self._refused}")
                if self._end:
                    raise NoQuorumError(f"no lighthouse at {self._address}: {self._end}")
                if self._agreement is not None and self._agreement[0] == number:
                    return self._agreement[1]
                self._changed.wait(min(left, SLICE_S))
        return None

    def is_broken(self, number: int) -> bool:
        """True if a member of the quorum of a number is gone."""
        return self._broken >= number

    def close(self) -> None:
        self._stop("closed")

    def _send(self, message: dict[str, Any]) -> None:
        try:
            with self._sending:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            self._stop(str(error))

    def _beat(self) -> None:
        """Send signs of life; each is answered, and one that is not ends the connection."""
        before = time.monotonic()
        while not self._end:
            self._send({"beat": 1})
            time.sleep(self._beat_s)
            now = time.monotonic()
            # A longer time is a pause of this machine: its rest is not the lighthouse's silence.
            self._unheard_s += min(now - before, 2 * self._beat_s)
            before = now
            if self._unheard_s > 2 * self._silent_s:
                self._stop("it sends no whole message")

    def _listen(self) -> None:
        try:
            with self._socket.makefile("rb") as lines:
                while line := lines.readline(LONGEST_LINE + 1):
                    self._handle(parse_line(line))
                    self._unheard_s = 0.0
            self._stop("it has closed the connection")
        except OtherRunError as error:
            with self._changed:
                self._refused = str(error)
            self._stop(str(error))
        except ProtocolError as error:
            self._stop(f"it sent {error}")
        except (OSError, ValueError) as error:
            self._stop(str(error) or type(error).__name__)

    def _handle(self, message: dict[str, Any]) -> None:
        with self._changed:
            self._broken = max(self._broken, parse_number(message, "broken"))
            self._end = parse_text(message, "end") or self._end
            self._refused = parse_text(message, "refused") or self._refused
            if "quorum" in message:
                ask, quorum, members, recorded = parse_quorum(message, own=self._own, run=self._run)
                left = parse_number(message, "left")
                self._agreement = (
                    ask,
                    Agreement(number=quorum.number, members=members, recorded=recorded, left=left),
                )
            self._changed.notify_all()

    def _stop(self, reason: str) -> None:
        with self._changed:
            self._end = self._end or reason
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
