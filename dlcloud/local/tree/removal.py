"""Remove what programs have made: deep, closed and odd folders, without following a link."""

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

from dlcloud.local.tree.beneath import HANDLE, open_root
from dlcloud.local.tree.walk import walk

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
