"""The addresses of an instance, and who reaches its SSH port.

`AddressPool` binds a loopback address for each instance: one of 127.0.0.0/8, or one port of 127.0.0.1 where
that is all there is. Connections from where no security group has a rule time out, as on EC2:
`GuardedListener` drops them. An instance without a public address is reached from inside its VPC only
(`inside_sources`, `connect_inside`).
"""

import asyncio
import contextlib
import ctypes
import errno
import ipaddress
import logging
import secrets
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any, TypeVar

import asyncssh

from dlcloud.local.instance.peers import NoUser, peer_user
from dlcloud.model.instance import SSH_PORT

GROUP_ACTIONS = frozenset({"AuthorizeSecurityGroupIngress", "RevokeSecurityGroupIngress"})
"""Actions that change what reaches an instance."""

_LOOPBACK_NETWORK = ipaddress.IPv4Network("127.0.0.0/8")
_HELD = 64
# Source: Linux, include/uapi/linux/filter.h and bpf_common.h; asm-generic/socket.h.
_SO_ATTACH_FILTER = 26
_SOURCE_ADDRESS = 0xFFF00000 + 12  # SKF_NET_OFF: from the IP header on
_LOAD, _SAVE, _RESTORE, _AND, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x02, 0x60, 0x54, 0x15, 0x06
_WHOLE = 0xFFFFFFFF
_MOST_NETWORKS = 1000  # a program has at most 4,096 instructions

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """From where the security groups let connections reach port 22.

    Args:
        networks: The networks of their rules.
        instances: A rule names a group, so that instances get through.
    """

    networks: tuple[ipaddress.IPv4Network, ...] = ()
    instances: bool = False

    def admits(self, host: str) -> bool:
        """True if a rule covers an address."""
        address = ipaddress.IPv4Address(host)
        return any(address in network for network in self.networks)


NOWHERE = Sources()


def ssh_sources(groups: Iterable[Any]) -> Sources:
    """Return the sources that moto's security groups allow together."""
    rules = [rule for group in groups for rule in list(group.ingress_rules) if _is_of_ssh(rule)]
    networks = [ipaddress.IPv4Network(rule.cidr_ipv4, strict=False) for rule in rules if rule.cidr_ipv4]
    return Sources(networks=tuple(networks), instances=any(rule.source_group for rule in rules))


def _is_of_ssh(rule: Any) -> bool:  # noqa: ANN401 - moto's object
    if rule.ip_protocol == "tcp":
        return bool(rule.from_port <= SSH_PORT <= rule.to_port)
    return bool(rule.ip_protocol == "-1")


class GuardedListener(socket.socket):
    """A listening socket that answers connections from admitted sources only.

    The kernel drops the packets that ask for other connections, by a filter on the socket (Linux). What it
    cannot tell apart is held open and never answered: on other systems all of them, and where a rule admits
    instances, those of this machine's own programs.
    """

    def __init__(self, instance_users: range) -> None:
        """Admit nothing yet.

        Args:
            instance_users: The user ids of instances' programs.
        """
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self._instance_users = instance_users
        self._held: deque[socket.socket] = deque(maxlen=_HELD)
        self.admit(NOWHERE)

    def admit(self, sources: Sources) -> None:
        """Admit other sources from now on; connections that are open stay."""
        self._sources = sources
        if self.fileno() < 0:
            return
        passed = (*sources.networks, _LOOPBACK_NETWORK) if sources.instances else sources.networks
        if sys.platform == "linux":
            try:
                _attach_filter(self, passed[:_MOST_NETWORKS])
            except OSError as error:
                log.warning("connections to port 22 are held instead of dropped: %s", error)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection.

        Raises:
            BlockingIOError: There is none, or its source is not admitted.
        """
        connection, address = super().accept()
        if self._admits(connection, address):
            return connection, address
        self._held.append(connection)
        raise BlockingIOError

    def close(self) -> None:
        super().close()
        self._held.clear()

    def _admits(self, connection: socket.socket, address: tuple[str, int]) -> bool:
        if self._sources.admits(address[0]):
            return True
        if not self._sources.instances:
            return False
        user = peer_user(address, connection.getsockname())
        return user is NoUser.NOT_REPORTED or user in self._instance_users


def _attach_filter(listener: socket.socket, networks: Iterable[ipaddress.IPv4Network]) -> None:
    """Let the kernel drop packets to a socket from other networks than these.

    Accepted connections keep the filter that was there when they came.

    Raises:
        OSError: The system does not do it.
    """
    program = [(_LOAD, 0, 0, _SOURCE_ADDRESS), (_SAVE, 0, 0, 0)]
    for network in networks:
        program += [
            (_RESTORE, 0, 0, 0),
            (_AND, 0, 0, int(network.netmask)),
            (_JUMP_IF_EQUAL, 0, 1, int(network.network_address)),
            (_RETURN, 0, 0, _WHOLE),
        ]
    program.append((_RETURN, 0, 0, 0))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    listener.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(program), ctypes.addressof(code))
    )


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


ADDRESS = "127.0.0.2"
"""The address from which endpoints and bastions connect."""
_TIMEOUT_S = 10.0
_PIECE = 1 << 16


def inside_sources(sources: Sources, vpc_cidr: str) -> Sources:
    """Return from where connections reach an instance that has no public address.

    What a rule lets in from its VPC comes from `ADDRESS` here. Where the system has one loopback address
    (macOS), what is outside cannot be distinguished.
    """
    vpc = IPv4Network(vpc_cidr)
    inside = (IPv4Network(ADDRESS),) if has_many_addresses() else (IPv4Network("127.0.0.1"),)
    is_open = any(network.overlaps(vpc) for network in sources.networks)
    return Sources(networks=inside if is_open else (), instances=sources.instances)


def connect_inside(host: str, port: int) -> socket.socket:
    """Connect to an instance from inside."""
    source = (ADDRESS, 0) if has_many_addresses() else None
    connected = socket.create_connection((host, port), timeout=_TIMEOUT_S, source_address=source)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.settimeout(None)
    return connected


async def carry(
    connected: socket.socket, reader: "asyncssh.SSHReader[bytes]", writer: "asyncssh.SSHWriter[bytes]"
) -> None:
    """Carry bytes between a connection and a client's channel until either ends."""
    far_reader, far_writer = await asyncio.open_connection(sock=connected)
    copies = [_copy(reader, far_writer), _copy(far_reader, writer)]
    tasks = [asyncio.ensure_future(copy) for copy in copies]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    far_writer.close()
    writer.close()


async def _copy(reader: Any, writer: Any) -> None:  # noqa: ANN401  asyncio's streams or asyncssh's
    with contextlib.suppress(OSError, asyncssh.Error):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
