"""Identify the user at the other end of a loopback connection, where Linux reports it."""

import errno
import os
import socket
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
        tables = open_tables()
        if not tables:
            return NoUser.NOT_REPORTED
        for _ in range(_ATTEMPTS):
            for descriptor, prefix in tables:
                key = f" {prefix}{_hex(peer)} {prefix}{_hex(own)} ".encode()
                _, is_there, rest = _read(descriptor).partition(key)
                fields = rest.partition(b"\n")[0].split()
                if is_there and len(fields) > _INODE:
                    # A socket that its program has closed has neither an owner nor an inode any more.
                    return NoUser.UNKNOWN if fields[_INODE] == b"0" else int(fields[_UID])
    except OSError:
        return NoUser.UNKNOWN
    return NoUser.UNKNOWN


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
