"""Files that several processes use: replaced whole, and locked; how many of them a process may have open.

The lock is our own, not the library filelock (1.4 MB installed, 27 ms to import): filelock does not say which
process holds a lock, waits by polling, and falls back to a lock that outlives a killed process where a file
system has no flock.
"""

import contextlib
import errno
import fcntl
import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from dlcloud.model.errors import StoreError, UnwritableError

PRIVATE = 0o600
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


def unwritable_hint(error: OSError) -> str:
    """Return what makes a file's place writable again, as the begin of a hint; empty for other errors."""
    return "free space on" if error.errno in _FULL else "make writable" if error.errno in _READ_ONLY else ""


@contextlib.contextmanager
def replace_file(path: Path, *, mode: int = PRIVATE, durable: bool = False) -> Iterator[Path]:
    """Yield a draft next to `path`, which takes its place, whole, when the block ends without an error.

    Args:
        path: The file; its folder must exist.
        mode: Permissions of the new file; the draft itself is its owner's only.
        durable: Force the content to disk first, so that a power failure leaves the old file or the new one.

    Raises:
        OSError: The draft cannot be written; `path` is as it was.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".new", dir=path.parent)
    os.close(descriptor)
    draft = Path(name)
    try:
        yield draft
        if durable:
            _sync(draft)
        draft.chmod(mode)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_file(path: Path, text: str, *, mode: int = PRIVATE, durable: bool = False) -> None:
    """Write a UTF-8 file whole or not at all; see `replace_file`."""
    with replace_file(path, mode=mode, durable=durable) as draft:
        draft.write_text(text, "utf-8")


class FileLock:
    """An exclusive lock between processes, which the kernel releases when its holder dies, however it dies.

    Use it as a context manager, which waits, or acquire and release it by hand. The lock file stays: removing
    it would let two processes lock two files of one name. It contains the process id of the last holder.

    Args:
        path: The file; its folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self, *, wait: bool = True) -> bool:
        """Lock the file; without `wait`, return False where another process holds the lock.

        Ctrl-C ends the waiting.

        Raises:
            StoreError: The file cannot be opened.
        """
        try:
            descriptor = self._open()
        except OSError as error:
            message, hint = f"cannot lock {self._path}: {error.strerror}", unwritable_hint(error)
            if hint:
                raise UnwritableError(message, f"{hint} {self._path.parent}") from error
            raise StoreError(message) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        with contextlib.suppress(OSError):  # a full disk must not keep a process from a lock
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor
        return True

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT, PRIVATE)
        except OSError:
            # A read-only home can be locked, too: what runs in the cloud must be ended from there.
            with contextlib.suppress(OSError):
                return os.open(self._path, os.O_RDONLY)
            raise

    def release(self) -> None:
        """Release the lock; releasing it twice is no error."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def is_held(self) -> bool:
        """True if a living process holds the lock, this one included."""
        try:
            with self._path.open("rb") as probe:
                fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def holder_id(self) -> int | None:
        """Return the id of the process that holds the lock; None if that is not certain.

        The file's last id may be of another machine that shares the folder: a process counts if /proc shows
        that it has the file open. So None where there is no /proc, or the process is another user's.
        """
        with contextlib.suppress(OSError, ValueError):
            holder = int(self._path.read_text("ascii"))
            lock = self._path.stat()
            for opened in Path(f"/proc/{holder}/fd").iterdir():
                with contextlib.suppress(OSError):  # closed meanwhile
                    if os.path.samestat(opened.stat(), lock):
                        return holder
        return None

    def holder(self) -> str:
        """Name the last process that held the lock: "process 4711", or "another process" if unknown."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if (pid := self._path.read_text("ascii").strip()).isdigit():
                return f"process {pid}"
        return "another process"

    def __enter__(self) -> Self:
        """Wait for the lock."""
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock."""
        self.release()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


MOST_OPEN = 10_240
"""The most open files that macOS allows, whatever its limit says; other systems allow more."""


def allow_many_files() -> None:
    """Raise the soft limit of open files as far as the hard one allows; it is never lowered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised(soft, hard), hard))


def raised(soft: int, hard: int) -> int:
    """Return the soft limit to set in place of the present one."""
    if soft == resource.RLIM_INFINITY:
        return soft
    return max(soft, MOST_OPEN if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN))
