"""Identify the user at the other end of a loopback connection, where Linux reports it.

Linux looks up one connection through netlink (sock_diag(7)) in 20 µs. Where it lacks that, or does not find
the connection, its tables in /proc are read, in 4 ms on a machine of 24 GiB: they have room for all
connections that there may be.
"""

import errno
import os
import socket
import struct
import sys
import threading
from enum import Enum, auto
from functools import cache
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_MAPPED = "0000000000000000FFFF0000"  # an IPv4 address of a socket that was made for IPv6
_UID, _INODE = 4, 6  # fields after the two addresses
_PIECE = 1 << 20
_ATTEMPTS = 3  # the kernel writes a table in pieces, between which entries move
_lock = threading.Lock()

# Source: linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST, _ANY = 4, 20, 1, 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
_ENDS = struct.Struct("!HH16s16s")
_QUESTION = struct.Struct(f"=BBxxI{_ENDS.size}sIII")
_ANSWER = struct.Struct(f"=4x{_ENDS.size}s12xIIIII")

Address = tuple[str, int]


class NoUser(Enum):
    """Why the user at the other end is not known.

    UNKNOWN: the system reports users, and this one's connection is closed or not in its tables.
    NOT_REPORTED: this system does not report them.
    """

    UNKNOWN = auto()
    NOT_REPORTED = auto()


def is_refused_peer(peer: Address | None, own: Address | None, instance_users: range) -> bool:
    """True unless a connection is root's, the daemon's user's or an instance's, or the system never says."""
    user = NoUser.UNKNOWN if peer is None or own is None else peer_user(peer, own)
    if isinstance(user, NoUser):
        return user is NoUser.UNKNOWN
    return user not in (0, os.getuid()) and user not in instance_users


def peer_user(peer: Address, own: Address) -> int | NoUser:
    """Return the id of the user at the other end of a connection, or why it is not known.

    Args:
        peer: Address of the other end.
        own: Address of this end.
    """
    try:
        if (user := _ask(peer, own)) is not None:
            return user
        tables = open_tables()
        if not tables:
            return NoUser.NOT_REPORTED
        for _ in range(_ATTEMPTS):
            for descriptor, prefix in tables:
                key = f" {prefix}{_hex(peer)} {prefix}{_hex(own)} ".encode()
                _, is_there, rest = _read(descriptor).partition(key)
                fields = rest.partition(b"\n")[0].split()
                if is_there and len(fields) > _INODE:
                    return _owner(int(fields[_UID]), int(fields[_INODE]))
    except OSError:
        return NoUser.UNKNOWN
    return NoUser.UNKNOWN


def _owner(user: int, inode: int) -> int | NoUser:
    """A socket that its program has closed has neither an owner nor an inode any more."""
    return user if inode else NoUser.UNKNOWN


def _ask(peer: Address, own: Address) -> int | NoUser | None:
    """Return the user by netlink; None where it does not say."""
    hosts = [socket.inet_aton(address[0]) for address in (peer, own)]
    ends, mapped = (
        _ENDS.pack(peer[1], own[1], *[prefix + host for host in hosts])
        for prefix in (b"", bytes(10) + b"\xff\xff")
    )
    question = _QUESTION.pack(socket.AF_INET, socket.IPPROTO_TCP, _ANY, ends, 0, _ANY, _ANY)
    header = _HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST, 0, 0)
    try:
        with _lock:
            diagnostics = _open_diagnostics()
            diagnostics.send(header + question)
            answer = diagnostics.recv(_PIECE)
    except OSError:
        return None
    kind = _HEADER.unpack_from(answer)[1]
    if kind != _SOCK_DIAG_BY_FAMILY or len(answer) < _HEADER.size + _ANSWER.size:
        return None
    shown, *_, user, inode = _ANSWER.unpack_from(answer, _HEADER.size)
    return _owner(user, inode) if shown in (ends, mapped) else None  # else it is a socket that listens


@cache
def _open_diagnostics() -> socket.socket:
    """Open a netlink socket for good.

    Raises:
        OSError: This system has none.
    """
    if sys.platform != "linux":
        raise OSError(errno.EPROTONOSUPPORT, os.strerror(errno.EPROTONOSUPPORT))
    diagnostics = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG)
    diagnostics.settimeout(1)
    return diagnostics


@cache
def open_tables() -> tuple[tuple[int, str], ...]:
    """Open the kernel's tables of connections for good: later there may be no descriptor left for them.

    Raises:
        OSError: They are there, and cannot be opened.
    """
    tables = []
    for path, prefix in zip(_TABLES, ("", _MAPPED), strict=True):
        try:
            tables.append((os.open(path, os.O_RDONLY | os.O_CLOEXEC), prefix))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                raise
    return tuple(tables)


def _read(descriptor: int) -> bytes:
    with _lock:
        os.lseek(descriptor, 0, os.SEEK_SET)
        return b"".join(iter(lambda: os.read(descriptor, _PIECE), b""))


def _hex(address: Address) -> str:
    host = int.from_bytes(socket.inet_aton(address[0]), sys.byteorder)
    return f"{host:08X}:{address[1]:04X}"
