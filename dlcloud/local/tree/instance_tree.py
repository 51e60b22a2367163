"""The files of an instance, as the daemon uses them: by no name that leads out of its folder.

The instance's programs may change anything in it at any time: no link is followed, nothing is waited for.
"""

import errno
import fcntl
import os
import secrets
import shutil
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dlcloud.local.tree.beneath import HANDLE, give, open_beneath, open_device, open_file, open_root, walk

_ATTEMPTS, _PAUSE_S, _REMOVAL_S = 20, 0.1, 60.0


def remove_tree(folder: Path) -> bool:
    """Remove a folder whose own name is not in the hands of others; False if something is left.

    Namespaces that were killed while they were being made may still write into it for a moment.
    """
    for _ in range(_ATTEMPTS):
        _remove(str(folder), cwd="/")
        if not os.path.lexists(folder):
            return True
        open_folders_for_owner(folder)
        time.sleep(_PAUSE_S)
    return False


def remove_entry(folder: int, name: str) -> None:
    """Remove a name from an open folder, with all below it.

    Raises:
        OSError: It cannot be removed.
    """
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except OSError:
        if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
            raise
        if sys.platform == "linux":
            _remove(f"./{name}", cwd=f"/proc/self/fd/{folder}")
        else:
            shutil.rmtree(name, dir_fd=folder)


def open_folders_for_owner(folder: Path) -> None:
    """Let the owner list and change the folders of a tree, which its programs or the kernel have closed."""
    root = open_root(folder)
    try:
        for walked in walk(root):
            for name, state in walked.entries.items():
                if stat.S_ISDIR(state.st_mode) and state.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                    _open_for_owner(walked.descriptor, name)
    finally:
        os.close(root)


def _open_for_owner(folder: int, name: str) -> None:
    try:
        handle = os.open(name, HANDLE | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return
    try:
        Path(f"/proc/self/fd/{handle}").chmod(stat.S_IRWXU)
    except OSError:
        return
    finally:
        os.close(handle)


def _remove(name: str, *, cwd: str) -> None:
    # Unlike shutil, it needs neither a descriptor nor a frame a level.
    try:
        subprocess.run(
            ["rm", "-rf", "--", name],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_REMOVAL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return


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


_MOST_BYTES = 1 << 20
_WRITE_ATTEMPTS = 3  # at a name that programs of the instance change meanwhile
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class InstanceTree:
    """A folder whose content belongs to the programs of an instance; paths are those below it.

    What is read: a link within it leads where it does if the folder is the root; what is no regular file is
    refused. What is written: no link is followed; what is in the place of a folder or file is removed.

    Args:
        root: The folder; its own name is the daemon's.
        owners: Who may own a file, unless it is in `bin` or `lib`, which are the daemon's; empty: anyone.
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
        """Return the last bytes of a file, at most this many.

        Raises:
            OSError: It cannot be read.
        """
        with self._open_root() as root:
            descriptor = open_file(root, path, follow=True, owners=self._owners_of(path))
        with os.fdopen(descriptor, "rb") as stream:
            stream.seek(max(0, os.fstat(descriptor).st_size - most))
            return stream.read(most)

    def exists(self, path: str = ".") -> bool:
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

    def is_link(self, path: str) -> bool:
        """True if the last name of a path is a symbolic link."""
        above, name = _split(path)
        with suppress(OSError), self._open_root() as root:
            folder = open_beneath(root, above, HANDLE | os.O_DIRECTORY)
            try:
                return stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode)
            finally:
                os.close(folder)
        return False

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

    def create(self) -> None:
        """Make the folder itself, which the daemon's user alone may enter.

        Raises:
            OSError: It is there, or cannot be made.
        """
        self.root.mkdir(mode=0o700)

    def make_folder(self, path: str, *, mode: int | None = None) -> None:
        """Make a folder and those above it, of mode 0755; one that is there stays.

        Args:
            path: Of the folder.
            mode: What it has afterwards, even if it was there; None: no change.

        Raises:
            OSError: It cannot be made.
        """
        with self._open_folder(path) as folder:
            if mode is not None:
                os.fchmod(folder, mode)

    def admit(self, group: int) -> None:
        """Let a group enter the folder, if this is root; else this user alone may."""
        with self._open_folder(".") as folder:
            if os.getuid() == 0:
                os.fchown(folder, -1, group)
            os.fchmod(folder, 0o710)

    def write(self, path: str, content: bytes | str, *, mode: int = 0o644, owner: int | None = None) -> None:
        """Put a file in the place of whatever is at a path, whole at any time; `owner` takes effect for root.

        Raises:
            OSError: It cannot be written.
        """
        above, name = _split(path)
        new = f".{secrets.token_hex(8)}"
        with self._open_folder(above) as folder:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(new, flags, 0o600, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as stream:
                    stream.write(content.encode() if isinstance(content, str) else content)
                    if owner is not None and os.getuid() == 0:
                        os.fchown(descriptor, owner, owner)
                    os.fchmod(descriptor, mode)
                _put(folder, new, name)
            except OSError:
                with suppress(OSError):
                    os.unlink(new, dir_fd=folder)
                raise

    def link(self, path: str, target: str) -> None:
        """Put a symbolic link in the place of whatever is at a path.

        Raises:
            OSError: It cannot be made.
        """
        above, name = _split(path)
        with self._open_folder(above) as folder:
            remove_entry(folder, name)
            os.symlink(target, name, dir_fd=folder)

    def remove(self, path: str) -> None:
        """Remove what is at a path, if anything, with all below it.

        Raises:
            OSError: It cannot be removed.
        """
        above, name = _split(path)
        with suppress(FileNotFoundError, NotADirectoryError), self._open_root() as root:
            folder = open_beneath(root, above, HANDLE | os.O_DIRECTORY)
            try:
                remove_entry(folder, name)
            finally:
                os.close(folder)

    def update(self, path: str, change: Callable[[bytes], bytes], *, most: int = _MOST_BYTES) -> None:
        """Change the content of a file in place; it may be a part of a mounted layer.

        Raises:
            OSError: It is missing, no plain file, or has more than `most` bytes.
        """
        with self._open_root() as root:
            descriptor = open_file(root, path, os.O_RDWR, owners=self.owners)
        with os.fdopen(descriptor, "r+b") as stream:
            if os.fstat(descriptor).st_size > most:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
            content = change(stream.read(most))
            stream.seek(0)
            stream.write(content)
            stream.truncate()

    def give(self, owner: int, *, keeps: Collection[str] = ()) -> None:
        """Make a user the owner of all that is in it, and of the folder, except the names in `keeps`."""
        give(self.root, owner, users=self.owners, keeps=keeps)

    def _owners_of(self, path: str) -> Collection[int]:
        is_own = path.partition("/")[0] in ("bin", "lib")
        return {*self.owners, os.getuid()} if is_own and self.owners else self.owners

    @contextmanager
    def _open_root(self) -> Iterator[int]:
        root = open_root(self.root)
        try:
            yield root
        finally:
            os.close(root)

    @contextmanager
    def _open_folder(self, path: str) -> Iterator[int]:
        """Open a folder, after making it and those above where they are missing."""
        folder = os.open(self.root, _LISTED)
        try:
            for name in path.split("/"):
                if name not in ("", "."):
                    below = _make_in(folder, name)
                    os.close(folder)
                    folder = below
            yield folder
        finally:
            os.close(folder)


def _split(path: str) -> tuple[str, str]:
    """Return the folder that a path lies in, and its name there."""
    above, _, name = path.strip("/").rpartition("/")
    if name in ("", ".", "..") or ".." in above.split("/"):
        raise OSError(errno.EINVAL, "not a path below the folder", path)
    return above or ".", name


def _make_in(folder: int, name: str) -> int:
    """Open a folder by its name in another; what is there and is none gives way to a new one."""
    for _ in range(_WRITE_ATTEMPTS):
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
        except FileExistsError:
            if not _is_folder(folder, name):
                remove_entry(folder, name)
                continue
            return os.open(name, _LISTED, dir_fd=folder)
        made = os.open(name, _LISTED, dir_fd=folder)
        os.fchmod(made, 0o755)  # the daemon's umask is narrower
        return made
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), name)


def _put(folder: int, new: str, name: str) -> None:
    """Rename a file, over whatever is there."""
    if _is_folder(folder, name):
        remove_entry(folder, name)
    os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)


def _is_folder(folder: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode)
    except FileNotFoundError:
        return False
