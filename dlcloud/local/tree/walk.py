"""Walk the tree of an instance, while its programs may change it: no link is followed, no folder left."""

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dlcloud.local.tree.beneath import HANDLE, open_beneath, open_root

MOST_LEVELS = 200
"""Levels of folders that are walked; deeper ones are left out."""


_OF_GROUP = stat.S_ISGID | stat.S_IRWXG


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkedFolder:
    """A folder of a tree.

    Args:
        path: Below the folder that the walk began in; `.` is this one.
        descriptor: The open folder; valid until the walk goes on.
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
        folder: Whose own name, and so far its content, is not in the hands of others.
        owner: Its new owner, and its group.
        users: Whose files are given even if they have further names.
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
    """Give away all that does not belong to some users, where folders of so many levels show it.

    Args:
        root: The folder that nothing leads out of.
        users: Whose files stay as they are.
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
    """Let a group write folders of so many levels, and what comes into them belong to it."""
    for folder in walk(root, most_levels=levels):
        state = os.fstat(folder.descriptor)
        if state.st_gid == group:
            os.fchmod(folder.descriptor, stat.S_IMODE(state.st_mode) | _OF_GROUP)
