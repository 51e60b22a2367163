"""A file that one program at a time holds: the next one waits for it, started and ready."""

import fcntl
import os
from dataclasses import dataclass, field
from pathlib import Path

from ..harness.variant import VariantError


@dataclass
class Turn:
    """Holds a file, until this process ends at the latest; without a path there is nothing to wait for."""

    path: Path | None = None
    _file: int | None = field(init=False, default=None)

    def take(self) -> None:
        """Wait until no other process holds the file.

        Raises:
            VariantError: It cannot be made.
        """
        if self.path is None or self._file is not None:
            return
        try:
            # No program that this process starts inherits it.
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except OSError as error:
            raise VariantError(f"--turn {self.path}: {error.strerror}") from error

    def end(self) -> None:
        """Let the next one go on."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
