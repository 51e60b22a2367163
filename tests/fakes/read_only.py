"""A folder that no user can write below, root included."""

import contextlib
import os
import subprocess

import pytest

from tests.programs import missing


@contextlib.contextmanager
def read_only(folder):
    """Let nothing be written below a folder; for root by a mount, which it minds."""
    if os.geteuid() != 0:
        paths = [path for path in (folder, *folder.rglob("*")) if not path.is_symlink()]
        modes = {path: path.stat().st_mode for path in paths}
        for path, mode in modes.items():
            path.chmod(mode & ~0o222)
        yield
        for path, mode in modes.items():
            path.chmod(mode)
        return
    if reason := missing("mount", "umount"):
        pytest.skip(reason)
    if subprocess.run(["mount", "--bind", "-o", "ro", folder, folder], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)
