"""Thousands of hostile folders of instances: nothing outside is read or changed, no call waits.

DLCLOUD_TEST_TREES sets their number (10,000 for a release), DLCLOUD_TEST_TREES_SEED the first seed, and
DLCLOUD_TEST_TREES_SLOWEST_S, 2 on a quiet machine, the longest that a call may take.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from dlcloud.local.tree import beneath
from tests.fuzz.trees import Swapper, try_tree
from tests.needs import needs

ROOT = Path(__file__).resolve().parents[3]
TREES = int(os.environ.get("DLCLOUD_TEST_TREES", "20"))
FIRST_SEED = int(os.environ.get("DLCLOUD_TEST_TREES_SEED", "1"))
SLOWEST_S = float(os.environ.get("DLCLOUD_TEST_TREES_SLOWEST_S", "300"))
INSTANCES = 1000013824
ORDINARY = 4242


def try_trees(folder, first, count):
    """Try trees by the seeds from `first` on, and print how many there were and the slowest call."""
    owner = INSTANCES if os.getuid() == 0 else os.getuid()
    slowest, begin = ("", 0.0), time.monotonic()
    with contextlib.closing(Swapper()) as swapper:
        for seed in range(first, first + count):
            fault, taken = try_tree(seed, folder / f"tree-{seed}", owner, SLOWEST_S, swapper)
            assert not fault, f"seed {seed}: {fault}"
            slowest = max(slowest, taken, key=lambda entry: entry[1])
    took = f"{count} trees in {time.monotonic() - begin:.0f} s"
    print(f"{took}; slowest: {slowest[0]}, {slowest[1]:.3f} s")  # noqa: T201 - the figure


def test_nothing_outside_of_an_instance_is_touched(tmp_path):
    try_trees(tmp_path, FIRST_SEED, TREES)


def test_nothing_is_touched_without_openat2(tmp_path, monkeypatch):
    monkeypatch.setattr(beneath, "has_openat2", lambda: False)
    try_trees(tmp_path, FIRST_SEED + TREES, max(1, TREES // 4))


@needs("setpriv")
def test_nothing_is_touched_by_the_daemon_of_an_ordinary_user():
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user, by setpriv")
    folder = Path(tempfile.mkdtemp(prefix="dlcloud-trees-"))
    os.chown(folder, ORDINARY, ORDINARY)
    words = ["setpriv", "--reuid", str(ORDINARY), "--regid", str(ORDINARY), "--clear-groups", sys.executable]
    paths = os.pathsep.join([str(ROOT), *(path for path in sys.path if path)])
    program = [__file__, str(folder), str(FIRST_SEED), str(TREES)]
    try:
        trial = subprocess.run([*words, "-c", ""], capture_output=True, check=False, cwd="/")
        if trial.returncode:
            pytest.skip("another user cannot run this Python, whose folder is closed to others")
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        environ["DLCLOUD_TEST_TREES_SLOWEST_S"] = str(SLOWEST_S)
        tried = subprocess.run(
            [*words, *program], capture_output=True, text=True, env=environ, check=False, cwd="/"
        )
        print(tried.stdout)  # noqa: T201 - as above
        assert tried.returncode == 0, tried.stderr
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)


if __name__ == "__main__":
    try_trees(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
