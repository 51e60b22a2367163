"""How instances boot: how long SSH takes to answer, by type, and the boots that fail on demand."""

import errno
import threading
from enum import StrEnum

# Source: published measurements of metal types, 531 to 792 s, and of others: 23 s from running to SSH.
_METAL_S = 792.0
_USUAL_S = 23.0


class BootFault(StrEnum):
    """What becomes of an instance that does not boot.

    ENDS: EC2 terminates it while it is pending. NO_KEY: so it does, as EC2 may not use the disk's KMS key.
    SILENT: it runs, and SSH never answers.
    """

    ENDS = "ends"
    NO_KEY = "no-key"
    SILENT = "silent"


def ec2_boot_s(instance_type: str) -> float:
    """Return the seconds that EC2 takes from a running instance of a type to its SSH server."""
    return _METAL_S if ".metal" in instance_type else _USUAL_S


class Boots:
    """The boots of one site. Methods may be called from any thread.

    `scale` is the part of EC2's boot times that instances take; 0: as fast as this machine boots them.
    """

    def __init__(self) -> None:
        self.scale = 0.0
        self._lock = threading.Lock()
        self._faults: list[BootFault] = []

    def fail_next(self, fault: BootFault, count: int) -> None:
        """Let the next boots fail."""
        with self._lock:
            self._faults += [fault] * count

    def next_fault(self) -> BootFault | None:
        """Return what becomes of the next boot; None: it succeeds."""
        with self._lock:
            return self._faults.pop(0) if self._faults else None

    def delay_s(self, instance_type: str, fault: BootFault | None) -> float:
        """Return for how long SSH does not answer yet."""
        return float("inf") if fault is BootFault.SILENT else self.scale * ec2_boot_s(instance_type)


async def fail_boot() -> None:
    raise OSError(errno.EIO, "this boot was to fail")
