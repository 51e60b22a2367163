"""Copy an instance's folder to an image and back, while programs change it.

No link is followed, no name is opened twice, and nothing is waited for.
"""

import asyncio
import errno
import os
import stat
import subprocess
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlcloud.local.site_files import SitePaths
from dlcloud.local.tree.beneath import HANDLE, WalkedFolder, is_foreign, open_root, walk
from dlcloud.local.tree.instance_tree import InstanceTree

_PIECE = 1 << 20
_ALWAYS = os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NOT_COPIED = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM)
_NO_DEVICE = os.makedev(0, 0)
"""The number of the device by which overlayfs marks a removed file."""


@dataclass(slots=True, kw_only=True, eq=False)
class TreeCopy:
    """Copies what is in a folder to an empty one.

    Args:
        source: The folder; its own name is not in the hands of others.
        target: The other folder, which no instance controls.
        leaves_out: Paths below the source that are not copied.
        owners: Who may own a file that is copied; empty: anyone.
    """

    source: Path
    target: Path
    leaves_out: Collection[str] = ()
    owners: Collection[int] = ()
    _first_names: dict[tuple[int, int], str] = field(default_factory=dict)

    def run(self) -> None:
        """Copy everything.

        Raises:
            OSError: The target cannot be written.
        """
        source, target = open_root(self.source), open_root(self.target)
        folders: list[tuple[str, os.stat_result]] = []
        try:
            for folder in walk(source, leaves_out=self.leaves_out):
                self._copy_folder(folder, target)
                folders.append((folder.path, os.fstat(folder.descriptor)))
            for path, state in reversed(folders):
                if path != ".":
                    os.chmod(path, stat.S_IMODE(state.st_mode), dir_fd=target)
                os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns), dir_fd=target)
        finally:
            os.close(source)
            os.close(target)

    def _copy_folder(self, folder: WalkedFolder, target: int) -> None:
        if folder.path != ".":
            os.mkdir(folder.path, 0o700, dir_fd=target)
        made = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | _ALWAYS, dir_fd=target)
        try:
            for name, state in folder.entries.items():
                if f"{folder.path}/{name}".removeprefix("./") not in self.leaves_out:
                    self._copy_entry(folder, name, state, (target, made))
            if folder.path != ".":
                _copy_properties(folder.descriptor, made, os.fstat(folder.descriptor), mode=0o700)
        finally:
            os.close(made)

    def _copy_entry(
        self, folder: WalkedFolder, name: str, state: os.stat_result, targets: tuple[int, int]
    ) -> None:
        made = targets[1]
        if stat.S_ISREG(state.st_mode):
            self._copy_file(folder, name, targets)
        elif stat.S_ISLNK(state.st_mode):
            with suppress(FileNotFoundError, OSError):
                target = os.readlink(name, dir_fd=folder.descriptor)
                os.symlink(target, name, dir_fd=made)
                _copy_owner(made, name, state)
        elif stat.S_ISFIFO(state.st_mode):
            os.mkfifo(name, stat.S_IMODE(state.st_mode), dir_fd=made)
            _copy_owner(made, name, state)
        elif stat.S_ISCHR(state.st_mode) and state.st_rdev == _NO_DEVICE:
            with suppress(PermissionError):
                os.mknod(name, stat.S_IFCHR, _NO_DEVICE, dir_fd=made)

    def _copy_file(self, folder: WalkedFolder, name: str, targets: tuple[int, int]) -> None:
        try:
            source = _open_regular(folder.descriptor, name)
        except OSError:  # it has gone or changed meanwhile
            return
        try:
            state = os.fstat(source)
            if is_foreign(state, self.owners):
                return
            first = self._first_names.get((state.st_dev, state.st_ino))
            if first is not None:
                os.link(first, name, src_dir_fd=targets[0], dst_dir_fd=targets[1])
                return
            if state.st_nlink > 1:
                self._first_names[state.st_dev, state.st_ino] = f"{folder.path}/{name}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _ALWAYS
            target = os.open(name, flags, 0o600, dir_fd=targets[1])
            try:
                _copy_content(source, target, state.st_size)
                _copy_properties(source, target, state)
                os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))
            finally:
                os.close(target)
        finally:
            os.close(source)


def _open_regular(folder: int, name: str) -> int:
    """Open what a name stands for at this moment, if that is a regular file.

    Raises:
        OSError: It is none, or cannot be opened.
    """
    handle = os.open(name, HANDLE | _ALWAYS, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", name)
        try:
            return os.open(f"/proc/self/fd/{handle}", _READ)
        except FileNotFoundError:  # no /proc: without O_PATH the handle can be read
            return os.dup(handle)
    finally:
        os.close(handle)


def _copy_content(source: int, target: int, size: int) -> None:
    """Copy the data of a file between its holes, as far as it reached when it was opened."""
    offset = 0
    while offset < size:
        try:
            offset = os.lseek(source, offset, os.SEEK_DATA)
            end = min(size, os.lseek(source, offset, os.SEEK_HOLE))
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end
                break
            end = size
        while offset < end:
            count = _copy_piece(source, target, offset, min(_PIECE, end - offset))
            if count == 0:  # it has become shorter
                size = 0
                break
            offset += count
    os.ftruncate(target, max(size, offset))


def _copy_piece(source: int, target: int, offset: int, count: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, target, count, offset, offset)
        except OSError as error:
            if error.errno not in _NOT_COPIED:
                raise
    content = os.pread(source, count, offset)
    return os.pwrite(target, content, offset) if content else 0


def _copy_properties(source: int, target: int, state: os.stat_result, *, mode: int | None = None) -> None:
    """Copy owner, mode (or set another) and extended attributes, as far as this user may set them."""
    if os.getuid() == 0:
        os.fchown(target, state.st_uid, state.st_gid)
    os.fchmod(target, stat.S_IMODE(state.st_mode) if mode is None else mode)
    if hasattr(os, "listxattr"):
        with suppress(OSError):
            for name in os.listxattr(source):
                with suppress(OSError):
                    os.setxattr(target, name, os.getxattr(source, name))


def _copy_owner(folder: int, name: str, state: os.stat_result) -> None:
    if os.getuid() == 0:
        os.chown(name, state.st_uid, state.st_gid, dir_fd=folder, follow_symlinks=False)


# Of an instance's folder: the programs of the local EC2, and what a machine has in memory.
_NOT_ON_DISK = ("bin", "lib", "run", "tmp", "work")
# Of their own: instances with much to copy must not keep others from booting.
_COPYING = ThreadPoolExecutor(2, thread_name_prefix="image")


def images_folder(paths: SitePaths) -> Path:
    """Return the folder with one folder per image that was made here."""
    return paths.folder / "images"


async def make_image(image: Any, tree: InstanceTree, folder: Path, *, delay_s: float) -> None:  # noqa: ANN401 - moto's object
    """Copy an instance's folder, for at least the delay; the image is then `available`, or `failed`."""
    copying = asyncio.get_running_loop().run_in_executor(_COPYING, copy_disk, tree, folder)
    try:
        await asyncio.gather(asyncio.sleep(delay_s), copying)
    except Exception:
        image.state = "failed"
        raise
    image.state = "available"


def copy_disk(tree: InstanceTree, folder: Path) -> None:
    """Copy what an instance has on its disk to a new folder.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir(mode=0o700)
    cache = "home/.cache"  # a link to the one that instances share is none of the image's
    leaves_out = (*_NOT_ON_DISK, *((cache,) if tree.is_link(cache) else ()))
    TreeCopy(source=tree.root, target=folder, leaves_out=leaves_out, owners=tree.owners).run()


def restore(folder: Path, root: Path) -> None:
    """Copy an image to the folder of a new instance, in which no program runs yet.

    Raises:
        subprocess.CalledProcessError: It cannot be copied.
    """
    # Unlike shutil, it keeps links, holes and times as they are; it follows no link.
    subprocess.run(["cp", "-a", "--", *folder.iterdir(), root], check=True)
