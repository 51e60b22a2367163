"""Open what lies beneath a folder that others write to: no name in it leads out of it, and no open waits.

openat2(2) where the system has it; elsewhere a walk that opens one name after the other and follows none.
A link is refused, or resolved as if the folder were the root of the file system.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Source: include/uapi/linux/openat2.h; the call has this number on every architecture but Alpha.
_OPENAT2 = 437
_NO_MAGIC_LINKS, _NO_LINKS, _BENEATH, _IN_ROOT = 0x02, 0x04, 0x08, 0x10
_MOST_LINKS, _MOST_RACES = 40, 100
HANDLE = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK)
"""Flags that open a name without touching what it names, where the system can do that."""
_FOLDER = HANDLE | os.O_DIRECTORY | os.O_NOFOLLOW
_ALWAYS = os.O_CLOEXEC
_OPENED = os.O_NONBLOCK | os.O_NOCTTY  # what openat2 refuses of a handle


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_root(folder: Path) -> int:
    """Open a folder whose own name is not in the hands of others.

    Raises:
        OSError: It is missing, a link, or no folder.
    """
    return os.open(folder, _FOLDER | os.O_CLOEXEC)


def open_beneath(root: int, path: str, flags: int, *, mode: int = 0o600, follow: bool = False) -> int:
    """Open a path beneath a folder; with `follow`, links lead where they do with the folder as the root.

    Raises:
        OSError: It is missing, leads through a link, or out of the folder.
    """
    path = path.strip("/") or "."
    flags |= _ALWAYS if flags & HANDLE == HANDLE else _ALWAYS | _OPENED
    flags &= ~os.O_NOFOLLOW  # with it, a handle of the link itself could be opened
    if has_openat2():
        return _open_by_kernel(root, path, flags, mode, follow=follow)
    return open_by_walk(root, path, flags, mode, follow=follow)


def open_file(
    root: int,
    path: str,
    flags: int = os.O_RDONLY,
    *,
    mode: int = 0o600,
    follow: bool = False,
    owners: Collection[int] = (),
) -> int:
    """Open a regular file beneath a folder, without waiting for anything.

    Args:
        root: The folder.
        path: Of the file.
        flags: As those of open(2).
        mode: Of a new file.
        follow: Resolve links within the folder.
        owners: Who may own the file; empty: anyone.

    Raises:
        OSError: It cannot be opened, is no regular file, or is someone else's.
    """
    if not flags & os.O_CREAT:
        handle = open_beneath(root, path, HANDLE, follow=follow)
        try:
            check_file(os.fstat(handle), path, owners)
        finally:
            os.close(handle)
    descriptor = open_beneath(root, path, flags, mode=mode, follow=follow)
    try:
        check_file(os.fstat(descriptor), path, owners)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_device(root: int, path: str, device: int, flags: int) -> int:
    """Open a character device beneath a folder, by no link; `device` is its number.

    Raises:
        OSError: It cannot be opened, or is another one.
    """
    handle = open_beneath(root, path, HANDLE)
    try:
        state = os.fstat(handle)
    finally:
        os.close(handle)
    if not stat.S_ISCHR(state.st_mode) or state.st_rdev != device:
        raise OSError(errno.EINVAL, "another kind of file", path)
    return open_beneath(root, path, flags)


def check_file(state: os.stat_result, path: str, owners: Collection[int] = ()) -> None:
    """Refuse what is no regular file, and a file of someone else.

    Raises:
        OSError: It is one of these.
    """
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    if is_foreign(state, owners):
        raise OSError(errno.EPERM, "may be a file of another user", path)


def is_foreign(state: os.stat_result, owners: Collection[int]) -> bool:
    """True if this may be another user's file, which a hard link has brought here.

    The number of its names does not tell: this one may have been removed since it was opened.
    """
    return bool(owners) and not stat.S_ISDIR(state.st_mode) and state.st_uid not in owners


@cache
def has_openat2() -> bool:
    """True if the system has openat2(2), and lets this process use it."""
    if not hasattr(os, "O_PATH"):
        return False
    try:
        root = os.open("/", _FOLDER)
        try:
            os.close(_open_by_kernel(root, ".", _FOLDER, 0, follow=False))
        finally:
            os.close(root)
    except OSError:
        return False
    return True


def _open_by_kernel(root: int, path: str, flags: int, mode: int, *, follow: bool) -> int:
    how = _How(flags, mode if flags & os.O_CREAT else 0, _NO_MAGIC_LINKS)
    how.resolve |= _IN_ROOT if follow else _BENEATH | _NO_LINKS
    name = ctypes.c_char_p(os.fsencode(path))
    for _ in range(_MOST_RACES):
        size = ctypes.c_size_t(ctypes.sizeof(how))
        result = _libc().syscall(ctypes.c_long(_OPENAT2), ctypes.c_int(root), name, ctypes.byref(how), size)
        if result >= 0:
            return int(result)
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):  # EAGAIN: names changed while they were resolved
            break
    raise OSError(number, os.strerror(number), path)


@cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return library


def open_by_walk(root: int, path: str, flags: int, mode: int, *, follow: bool) -> int:
    """Open a path name by name, as `open_beneath` does where there is no openat2.

    Raises:
        OSError: As `open_beneath`.
    """
    folders, names, links = [os.dup(root)], _names(path), 0
    try:
        while names:
            name = names.pop()
            if name == "..":
                _leave(folders, path, follow=follow)
                continue
            target = _read_link(name, folders[-1])
            if target is None:
                opened = os.open(
                    name, _FOLDER | os.O_CLOEXEC if names else flags | os.O_NOFOLLOW, mode, dir_fd=folders[-1]
                )
                if not names:
                    return opened
                folders.append(opened)
                continue
            links += 1
            if not follow or links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            names += _names(target)
            while target.startswith("/") and len(folders) > 1:
                os.close(folders.pop())
        return os.open(".", flags & ~(os.O_CREAT | os.O_EXCL), dir_fd=folders[-1])
    finally:
        for folder in folders:
            os.close(folder)


def _names(path: str) -> list[str]:
    """Return the names of a path, the first one last."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _leave(folders: list[int], path: str, *, follow: bool) -> None:
    """Go back to the folder that the walk has come from, wherever it lies by now."""
    if len(folders) > 1:
        os.close(folders.pop())
    elif not follow:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)


def _read_link(name: str, folder: int) -> str | None:
    """Return where a link leads; None if it is none, or missing."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return None


MOST_LEVELS = 200
"""Levels of folders that are walked; deeper ones are left out."""


_OF_GROUP = stat.S_ISGID | stat.S_IRWXG


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkedFolder:
    """A folder of a tree.

    Args:
        path: Below the folder that the walk began in; `.` is this one.
        descriptor: The open folder; valid until the walk continues.
        level: 0 for the first folder.
        entries: What it has, by name.
    """

    path: str
    descriptor: int
    level: int
    entries: dict[str, os.stat_result]


def walk(
    root: int, path: str = ".", *, most_levels: int = MOST_LEVELS, leaves_out: Collection[str] = ()
) -> Iterator[WalkedFolder]:
    """Yield a folder and those below it, from above; those that cannot be opened are left out.

    Args:
        root: The folder that nothing leads out of.
        path: Where the walk begins, below the root.
        most_levels: Levels that are walked below it.
        leaves_out: Paths of folders that are not walked.
    """
    paths = [(path, 0)]
    while paths:
        path, level = paths.pop()
        if path.removeprefix("./") in leaves_out:
            continue
        try:
            descriptor = open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            folder = WalkedFolder(path=path, descriptor=descriptor, level=level, entries=_list(descriptor))
            yield folder
        finally:
            os.close(descriptor)
        if level < most_levels:
            folders = [name for name, state in folder.entries.items() if stat.S_ISDIR(state.st_mode)]
            paths += [(f"{path}/{name}", level + 1) for name in folders]


def _list(folder: int) -> dict[str, os.stat_result]:
    entries = {}
    with suppress(OSError), os.scandir(folder) as listed:
        for entry in listed:
            with suppress(OSError):  # it has gone meanwhile
                entries[entry.name] = entry.stat(follow_symlinks=False)
    return entries


def give(folder: Path, owner: int, *, users: Collection[int] = (), keeps: Collection[str] = ()) -> None:
    """Make a user the owner of a folder and all that is in it, if this is root.

    Args:
        folder: A folder whose own name, and so far its content, is not in the hands of others.
        owner: Its new owner, and its group.
        users: Users whose files are given even if they have further names.
        keeps: Names in it that stay as they are; the empty one is that of the folder itself.
    """
    if os.getuid() != 0:
        return
    root = open_root(folder)
    try:
        for top in walk(root, most_levels=0):
            if "" not in keeps:
                os.fchown(top.descriptor, owner, owner)
            for name, state in top.entries.items():
                if name not in keeps:
                    _give_any(top, root, (name, state), owner, users)
    finally:
        os.close(root)


def give_what_is_not(root: int, users: range, owner: int, *, levels: int) -> None:
    """Give away all that does not belong to some users, where folders of this many levels show it.

    Args:
        root: The folder that nothing leads out of.
        users: Users whose files stay as they are.
        owner: The new owner.
        levels: Of folders that are looked into.
    """
    for folder in walk(root, most_levels=levels):
        if folder.level == 0 and os.fstat(folder.descriptor).st_uid not in users:
            _give_beneath(root, folder.path, owner, users)
            return
        for entry in folder.entries.items():
            if entry[1].st_uid not in users:
                _give_any(folder, root, entry, owner, users)


def _give_any(
    above: WalkedFolder,
    root: int,
    entry: tuple[str, os.stat_result],
    owner: int,
    users: Collection[int],
) -> None:
    """Give an entry of a folder; `root` is the one that the folder's path begins in."""
    name, state = entry
    if stat.S_ISDIR(state.st_mode):
        _give_beneath(root, f"{above.path}/{name}", owner, users)
    else:
        _give_entry(above.descriptor, name, owner, users)


def _give_beneath(root: int, path: str, owner: int, users: Collection[int]) -> None:
    """Make a user the owner of a folder beneath another, and of all that is in it."""
    for folder in walk(root, path):
        os.fchown(folder.descriptor, owner, owner)
        for name, state in folder.entries.items():
            if not stat.S_ISDIR(state.st_mode):
                _give_entry(folder.descriptor, name, owner, users)


def _give_entry(folder: int, name: str, owner: int, users: Collection[int]) -> None:
    """Make a user the owner of what a name stands for, unless it may have names of others outside."""
    with suppress(FileNotFoundError):
        handle = os.open(name, HANDLE | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            state = os.fstat(handle)
            is_own = state.st_nlink == 1 or state.st_uid in users
            if is_own and not stat.S_ISDIR(state.st_mode):
                # By the handle: the name may stand for something else by now.
                os.chown(f"/proc/self/fd/{handle}", owner, owner)
        except FileNotFoundError:  # no /proc
            os.chown(name, owner, owner, dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(handle)


def share_folders(root: int, group: int, *, levels: int) -> None:
    """Let a group write folders of this many levels, and what comes into them belong to it."""
    for folder in walk(root, most_levels=levels):
        state = os.fstat(folder.descriptor)
        if state.st_gid == group:
            os.fchmod(folder.descriptor, stat.S_IMODE(state.st_mode) | _OF_GROUP)
