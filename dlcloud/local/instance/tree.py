"""The files of an instance, as the daemon reads them: never through a name that leads out of its folder."""

import errno
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dlcloud.local.instance.beneath import HANDLE, open_beneath, open_file, open_root

_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class InstanceTree:
    """A folder whose content belongs to the programs of an instance; paths are those below it.

    A link within it leads where it does if the folder is the root. What is no regular file is refused.

    Args:
        root: The folder; its own name is the daemon's.
        owners: Who may own a file that has further names, outside perhaps; empty: anyone.
    """

    root: Path
    owners: Collection[int] = ()

    def read(self, path: str, *, most: int = _MOST_BYTES) -> bytes:
        """Return the content of a file.

        Raises:
            OSError: It cannot be read, or has more than `most` bytes.
        """
        content = self.read_end(path, most + 1)
        if len(content) > most:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return content

    def read_end(self, path: str, most: int) -> bytes:
        """Return the last bytes of a file, at most so many.

        Raises:
            OSError: It cannot be read.
        """
        with self._open_root() as root:
            descriptor = open_file(root, path, follow=True, owners=self.owners)
        with os.fdopen(descriptor, "rb") as stream:
            stream.seek(max(0, os.fstat(descriptor).st_size - most))
            return stream.read(most)

    def exists(self, path: str) -> bool:
        """True if there is something at a path."""
        try:
            self.state(path)
        except OSError:
            return False
        return True

    def state(self, path: str) -> os.stat_result:
        """Return the state of what is at a path, the target of a link.

        Raises:
            OSError: There is nothing.
        """
        with self._open_root() as root:
            handle = open_beneath(root, path, HANDLE, follow=True)
        try:
            return os.fstat(handle)
        finally:
            os.close(handle)

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; none if there is no such folder."""
        try:
            with self._open_root() as root:
                folder = open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY, follow=True)
        except OSError:
            return []
        try:
            return sorted(os.listdir(folder))  # noqa: PTH208 - a descriptor
        finally:
            os.close(folder)

    @contextmanager
    def _open_root(self) -> Iterator[int]:
        root = open_root(self.root)
        try:
            yield root
        finally:
            os.close(root)
