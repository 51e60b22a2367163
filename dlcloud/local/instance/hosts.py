"""/etc/hosts of the instances: the DNS names of those that run, which a VPC's resolver would resolve."""

import contextlib
from collections.abc import Sequence

from dlcloud.local.tree.instance_tree import InstanceTree

HOSTS = "etc/hosts"
"""Where it is in an instance's folder."""
_BEGIN = "# instances of the local EC2, kept up to date:\n"
_END = "# end of instances\n"


def hosts_line(host: str, names: Sequence[str]) -> str:
    """Return the line of one instance: the fully qualified private name first, as `hostname -f` prints it."""
    private, *others = names
    return f"{host} {' '.join((private, private.partition('.')[0], *others))}\n"


def write_hosts(tree: InstanceTree, lines: Sequence[str]) -> None:
    """Replace the lines of instances in the hosts file, and keep those that others wrote.

    The file is written in place: it is part of a mounted layer. One that is gone, is no plain file or exceeds
    1 MiB, as programs of the instance may have arranged, is left alone.
    """

    def replace(content: bytes) -> bytes:
        before, _, rest = content.partition(_BEGIN.encode())
        _, _, after = rest.partition(_END.encode())
        return b"".join([before, f"{_BEGIN}{''.join(lines)}{_END}".encode(), after])

    with contextlib.suppress(OSError):
        tree.update(HOSTS, replace)
