"""The environments that pinned requirements describe, built as instances build theirs, and shared."""

import json
import os
import subprocess
import sys
from pathlib import Path

from dlcloud.launch.setup import environment_key

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path("~/.cache/dlcloud-tests/instances").expanduser()
"""Also the cache of the local instances in end-to-end tests: each environment is installed once."""


def python_with(requirements):
    """Return the Python of an environment, built where it is missing."""
    text = requirements.read_text()
    done = subprocess.run(
        [sys.executable, ROOT / "templates" / "environment.py", environment_key(text)],
        input=text,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(SHARED)},
        umask=0,  # the instances, which are another user where this is root, lock and use it too
        check=True,
    )
    python = Path(json.loads(done.stdout.splitlines()[-1])["python"])
    _give_to_instances(python.parents[1])
    return python


def _give_to_instances(folder):
    """Give an environment that root has built to the user who owns the cache, as instances relocate it."""
    owner = SHARED.stat()
    if os.getuid() != 0 or owner.st_uid == 0 or folder.stat().st_uid == owner.st_uid:
        return
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
