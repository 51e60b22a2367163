"""The logged-in transports of one connection: another one is opened if the server refuses a session.

OpenSSH limits the sessions of a transport (MaxSessions, 10 by default), and counts a command whose channel
was closed until its programs have ended.
"""

import threading
import time
from collections.abc import Callable

from dlcloud.ssh.handshake import close_transport
from dlcloud.ssh.library import Channel, SSHException, Transport


class Transports:
    """Opens sessions on the first transport that allows one. Threads may share it.

    Args:
        first: A logged-in transport.
        reconnect: Opens another transport to the same instance.
    """

    def __init__(self, first: Transport, reconnect: Callable[[], Transport]) -> None:
        self._all = [first]
        self._reconnect = reconnect
        self._lock = threading.Lock()
        self._is_closed = False

    def is_active(self) -> bool:
        return any(transport.is_active() for transport in self._all)

    def open_session(self, timeout_s: float) -> tuple[Transport, Channel]:
        """Open a session; the newest transport is tried first.

        Raises:
            OSError, EOFError, SSHException: The connection is broken, or the server allows no session.
            HostKeyError: Another machine answered.
        """
        deadline = time.monotonic() + timeout_s
        with self._lock:
            active = [transport for transport in self._all if transport.is_active()] or self._all[:1]
        for transport in reversed(active):
            try:
                return transport, transport.open_session(timeout=timeout_s)
            except SSHException:
                if not transport.is_active() or time.monotonic() >= deadline:
                    raise
        transport = self._add()
        return transport, transport.open_session(timeout=timeout_s)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            transports = list(self._all)
        for transport in transports:
            close_transport(transport)

    def _add(self) -> Transport:
        transport = self._reconnect()
        with self._lock:
            self._all.append(transport)
            is_closed = self._is_closed
        if is_closed:
            close_transport(transport)
        return transport
