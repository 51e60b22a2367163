"""Terminals of an instance with namespaces: of its /dev/pts, where anything may be mounted by now."""

import fcntl
import os
import struct
from pathlib import Path

from dlcloud.local.tree.beneath import HANDLE, open_device

# Source: include/uapi/asm-generic/ioctls.h.
_UNLOCK_TERMINAL, _OPEN_PEER = 0x40045431, 0x5441
# Source: Documentation/admin-guide/devices.txt, /dev/ptmx.
_TERMINALS = os.makedev(5, 2)


def open_terminal_in(root: Path) -> tuple[int, int]:
    """Return both ends of a new terminal; `root` is the root folder of the instance's first process.

    Raises:
        OSError: What is at /dev/pts/ptmx does not make terminals.
    """
    folder = os.open(root, HANDLE | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        master = open_device(folder, "dev/pts/ptmx", _TERMINALS, os.O_RDWR)
    finally:
        os.close(folder)
    try:
        fcntl.ioctl(master, _UNLOCK_TERMINAL, struct.pack("i", 0))
        slave = fcntl.ioctl(master, _OPEN_PEER, os.O_RDWR | os.O_NOCTTY)
    except OSError:
        os.close(master)
        raise
    os.set_blocking(master, True)
    return master, slave
