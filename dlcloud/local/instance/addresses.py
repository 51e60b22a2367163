"""Loopback addresses for instances: one each where the system has 127.0.0.0/8, else one with many ports."""

import errno
import secrets
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from dlcloud.local.instance.firewall import GuardedListener

# sshd's own port where this process may bind it, as root may; else any user may bind the next.
_SSH_PORTS = (22, 2222)
_METADATA_PORTS = (1338,)
_LOOPBACK = "127.0.0.1"
_ATTEMPTS = 512
_USUAL_ATTEMPTS = 32  # at the usual ports; another user may listen there at every address
_Socket = TypeVar("_Socket", bound=socket.socket)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """The bound sockets of one instance, not yet listening: until they do, connections are refused."""

    host: str
    ssh: GuardedListener
    ssh_port: int
    metadata: socket.socket
    metadata_port: int

    def close(self) -> None:
        self.ssh.close()
        self.metadata.close()


class AddressPool:
    """Addresses that no instance of this site had before, so that host keys never clash.

    Args:
        many: True if every 127.x.y.z can be bound, as on Linux; else all instances share 127.0.0.1.
        instance_users: The user ids of instances' programs.
    """

    def __init__(self, *, many: bool, instance_users: range = range(0)) -> None:
        self._lock = threading.Lock()
        self._hosts = _loopback_hosts()
        self._many = many
        self._instance_users = instance_users
        # The ports that all instances share: the usual ones, or free ones where those are taken.
        host = next(self._hosts)
        self._ports = (_free_port(host, _SSH_PORTS), _free_port(host, _METADATA_PORTS)) if many else (0, 0)

    def take(self) -> Listeners:
        """Bind the next free address.

        Raises:
            OSError: None of many addresses could be bound.
        """
        with self._lock:
            for attempt in range(_ATTEMPTS):
                host = next(self._hosts) if self._many else _LOOPBACK
                try:
                    return self._bind_both(host, self._ports if attempt < _USUAL_ATTEMPTS else (0, 0))
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
            raise OSError(errno.EADDRINUSE, "no free loopback address for an instance")

    def _bind_both(self, host: str, usual: tuple[int, int]) -> Listeners:
        ssh = _bound(GuardedListener(self._instance_users), host, usual[0])
        try:
            metadata = _bound(_tcp_socket(), host, usual[1])
        except OSError:
            ssh.close()
            raise
        ports = ssh.getsockname()[1], metadata.getsockname()[1]
        return Listeners(host=host, ssh=ssh, ssh_port=ports[0], metadata=metadata, metadata_port=ports[1])


def _loopback_hosts() -> Iterator[str]:
    """Yield 127.x.y.z from a random start, so that the sites of one machine rarely meet."""
    start = secrets.randbelow(190 * 256) + 64 * 256
    while True:
        for block in range(start, 254 * 256):
            for last in range(1, 255):
                yield f"127.{block // 256}.{block % 256}.{last}"
        start = 64 * 256


def has_many_addresses() -> bool:
    """True if the system answers on the whole of 127.0.0.0/8 (Linux), False if on 127.0.0.1 only (macOS)."""
    try:
        _bound(_tcp_socket(), "127.64.0.1", 0).close()
    except OSError:
        return False
    return True


def _free_port(host: str, preferred: tuple[int, ...]) -> int:
    for port in (*preferred, 0):
        try:
            with _bound(_tcp_socket(), host, port) as probe:
                return int(probe.getsockname()[1])
        except OSError:
            continue
    raise OSError(errno.EADDRINUSE, f"no free port on {host}")


def _tcp_socket() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)


def _bound(listener: _Socket, host: str, port: int) -> _Socket:
    """Return a socket after binding it; one that cannot be bound is closed."""
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
