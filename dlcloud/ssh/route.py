"""Ways to an instance's SSH server: directly, through a bastion, or through a program that carries bytes."""

import contextlib
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paramiko import Channel, PKey, RejectPolicy, SSHClient, SSHException

from dlcloud.model.errors import HostKeyError, StoreError, UnreachableError
from dlcloud.model.remote import Endpoint

_UNANSWERED_MS = 60_000

Stream = socket.socket | Channel
Connect = Callable[[Endpoint, float], Stream]
"""Opens a connection to an endpoint within that many seconds; raises OSError or SSHException."""


def connect_directly(endpoint: Endpoint, timeout_s: float) -> socket.socket:
    """Open a TCP connection to the endpoint's own address."""
    connected = socket.create_connection((endpoint.host, endpoint.port), timeout=timeout_s)
    _tune(connected)
    return connected


def _tune(connected: socket.socket) -> None:
    """Send small packets immediately, and detect a peer that is gone without a packet."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if (option := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:  # Linux only
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, option, _UNANSWERED_MS)


@dataclass(slots=True, kw_only=True)
class BastionRoute:
    """Connects through one login on a host of the user's own, whose host key must be known.

    Args:
        host: Its name or address.
        port: Of its SSH server.
        user: The login user there.
        key: The file of the user's private key.
        known_hosts: The file of its host key.
    """

    host: str
    port: int
    user: str
    key: Path
    known_hosts: Path
    _client: SSHClient | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def connect(self, endpoint: Endpoint, timeout_s: float) -> Channel:
        """Open a connection from the bastion to the endpoint.

        Raises:
            UnreachableError: The bastion does not let this user in, or cannot reach the endpoint.
            HostKeyError: The bastion's host key is not the known one.
        """
        transport = self._logged_in(timeout_s).get_transport()
        if transport is None:
            raise SSHException(f"the bastion {self.host} has closed the connection")
        target = (endpoint.host, endpoint.port)
        return transport.open_channel("direct-tcpip", target, ("127.0.0.1", 0), timeout=timeout_s)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _logged_in(self, timeout_s: float) -> SSHClient:
        with self._lock:
            transport = self._client.get_transport() if self._client is not None else None
            if self._client is None or transport is None or not transport.is_active():
                self._client = self._log_in(timeout_s)
            return self._client

    def _log_in(self, timeout_s: float) -> SSHClient:
        client = SSHClient()
        client.set_missing_host_key_policy(RejectPolicy())
        try:
            client.load_host_keys(str(self.known_hosts))
            key = PKey.from_path(self.key)
        except (OSError, SSHException, ValueError, TypeError) as error:
            raise StoreError(f"cannot read the bastion's key or host key: {error}") from error
        try:
            client.connect(
                self.host,
                self.port,
                self.user,
                pkey=key,
                timeout=timeout_s,
                allow_agent=False,
                look_for_keys=False,
            )
        except SSHException as error:
            client.close()
            if "not found in known_hosts" in str(error) or "host key" in str(error).lower():
                hint = f"compare and add it: ssh-keyscan -p {self.port} {self.host} >> {self.known_hosts}"
                raise HostKeyError(f"the bastion's host key is not the known one: {error}", hint) from error
            raise UnreachableError(f"no login on the bastion {self.user}@{self.host}: {error}") from error
        return client


def connect_by_program(
    words: Sequence[str], environment: Mapping[str, str], timeout_s: float
) -> socket.socket:
    """Start a program that carries bytes between its standard input and output and an instance's SSH server.

    Raises:
        UnreachableError: There is no such program.
    """
    own, others = socket.socketpair()
    own.settimeout(timeout_s)
    try:
        subprocess.Popen(
            words,
            stdin=others.fileno(),
            stdout=others.fileno(),
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        own.close()
        raise UnreachableError(f"cannot start {words[0]}: {error.strerror}") from error
    finally:
        others.close()
    return own
