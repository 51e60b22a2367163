"""/etc/hosts of the instances: the DNS names of those that run, which a VPC's resolver would resolve."""

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

_BEGIN = "# instances of the local EC2, kept up to date:\n"
_END = "# end of instances\n"
_MOST_BYTES = 1 << 20


def hosts_line(host: str, names: Sequence[str]) -> str:
    """Return the line of one instance: the fully qualified private name first, as `hostname -f` prints it."""
    private, *others = names
    return f"{host} {' '.join((private, private.partition('.')[0], *others))}\n"


def write_hosts(path: Path, lines: Sequence[str]) -> None:
    """Replace the lines of instances in a hosts file, and keep those that others wrote.

    The file is written in place: it is part of a mounted layer. One that is gone, is no plain file or exceeds
    1 MiB, as programs of the instance may have arranged, is left alone.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.suppress(OSError), os.fdopen(os.open(path, flags), "r+b") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode) or state.st_size > _MOST_BYTES:
            return
        content = file.read()
        before, _, rest = content.partition(_BEGIN.encode())
        _, _, after = rest.partition(_END.encode())
        file.seek(0)
        file.write(b"".join([before, f"{_BEGIN}{''.join(lines)}{_END}".encode(), after]))
        file.truncate()
