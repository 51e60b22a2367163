"""Identify the user at the other end of a loopback connection, where Linux reports it."""

import os
import socket
import sys
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_MAPPED = "0000000000000000FFFF0000"  # an IPv4 address of a socket that was made for IPv6
_UID, _INODE = 4, 6  # fields after the two addresses

Address = tuple[str, int]


def belongs_to_other_user(peer: Address, own: Address, instance_users: range) -> bool:
    """True if a connection is known to come from a user that is not root, the daemon's or an instance's."""
    uid = peer_uid(peer, own)
    return uid not in (None, 0, os.getuid()) and uid not in instance_users


def peer_uid(peer: Address, own: Address) -> int | None:
    """Return the user at the other end of a connection; None where the system does not report it.

    Args:
        peer: Address of the other end.
        own: Address of this end.
    """
    for table, prefix in zip(_TABLES, ("", _MAPPED), strict=True):
        try:
            content = table.read_bytes()
        except OSError:
            continue
        key = f" {prefix}{_hex(peer)} {prefix}{_hex(own)} ".encode()
        _, _, rest = content.partition(key)
        fields = rest.partition(b"\n")[0].split()
        # A socket that its program has closed has neither an owner nor an inode any more.
        if len(fields) > _INODE and fields[_INODE] != b"0":
            return int(fields[_UID])
    return None


def _hex(address: Address) -> str:
    host = int.from_bytes(socket.inet_aton(address[0]), sys.byteorder)
    return f"{host:08X}:{address[1]:04X}"
