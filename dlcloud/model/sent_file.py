"""A file of the user that goes to an instance."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class SentFile:
    """A file, folder or link.

    Attributes:
        path: On this machine.
        name: Relative to the target folder, with slashes.
        size: In bytes; 0 for a folder or a link.
        stamp: Changes with the content: of a file its mode, size and time, of a link its target.
    """

    path: Path
    name: str
    size: int = 0
    stamp: str = ""
