"""A daemon of the local EC2 that runs as another user, or with another level of isolation."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dlcloud.local.instance.isolation import Level
from dlcloud.local.site import LocalSite
from tests.fakes.local_ec2 import Rig, wait_for
from tests.programs import missing

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = Path(pytest.__file__).parents[1]
ORDINARY = 4242
FAR_AWAY_S = 600.0
# Root's home lets no other user in: of it, show the folders that Python is in.
AS_USER = """
hold=$1 uid=$2
shift 2
for path in "$@"; do mkdir -p "$hold$path" && mount --bind "$path" "$hold$path"; done
mount -t tmpfs -o mode=755 tmpfs /root
for path in "$@"; do mkdir -p "$path" && mount --bind "$hold$path" "$path"; done
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups env -i PATH="$PATH" $VARIABLES \
  "$1/bin/python3" -m dlcloud.local.daemon "$HOME/local"
"""


@contextlib.contextmanager
def other_daemon(uid, level=""):
    """Run a daemon as another user, or with another level, from folders that every user can reach."""
    if reason := missing("unshare"):
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="dlcloud-isolation-"))
    folder.chmod(0o755)
    (folder / "hold").mkdir()
    home = folder / "home"
    (home / "local").mkdir(parents=True, mode=0o700)
    for path in (home, home / "local"):
        os.chown(path, uid, uid)
    for path in PACKAGES.glob("**/__pycache__"):  # a daemon of root may have compiled them
        path.chmod(0o755)
    paths = [os.path.realpath(sys.base_prefix), str(PACKAGES), str(ROOT)]
    variables = f"HOME={home} PYTHONPATH={ROOT}:{PACKAGES} DLCLOUD_LOCAL_ISOLATION={level}"
    daemon = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", AS_USER, "sh", str(folder / "hold"), str(uid), *paths],
        env={"PATH": os.environ["PATH"], "HOME": str(home), "VARIABLES": variables},
        start_new_session=True,
    )
    site = LocalSite(folder / "home/local")
    try:
        state = folder / "home/local/endpoint.json"
        wait_for(lambda: daemon.poll() is not None or state.exists(), "the daemon answers", FAR_AWAY_S)
        rig = Rig(site, site.find())
        rig.folder = folder / "home/local"
        yield rig
    finally:
        daemon.terminate()
        daemon.wait(FAR_AWAY_S)
        shutil.rmtree(folder)


def has_namespaces(rig):
    return rig.control.status()["isolation"]["level"] == Level.NAMESPACES
