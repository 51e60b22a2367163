"""The user's files sent to an instance beside rsync over OpenSSH: at first, unchanged, with a few changed.

Both log in anew, to the same instance of the local EC2, and send the same folders: 3,000 small files, and one
of 64 MiB. Both keep what was sent, and give the run a copy of its own: rsync's is made by `cp -a` in the same
session. Needs rsync on this machine.
"""

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pairs import compare, heading

from dlcloud.app.context import Context
from dlcloud.launch.user_files import COPY, send_files
from dlcloud.local.site import LocalSite
from dlcloud.model.cluster import Cluster
from dlcloud.store.home import Paths

DLCLOUD = str(Path(sys.executable).with_name("dlcloud"))
RECIPE = """
name: files
cloud: local
instances: {types: [c5.large]}
workload: {command: "true", repeats: 1}
"""
TARGET = "by-rsync"
RSYNC = f'f() {{ rsync "$@" && cp -a {TARGET}/. {TARGET}-run; }}; f'
"""What rsync runs on the instance."""

SETTLED_S = 3600
CHANGED = 20


def main() -> None:
    """Measure and print."""
    if shutil.which("rsync") is None:
        sys.exit("rsync is missing: apt-get install rsync")
    with tempfile.TemporaryDirectory() as home:
        os.environ["DLCLOUD_HOME"] = home
        site = LocalSite(Paths(Path(home)).local_site)
        try:
            measure(Path(home))
        finally:
            subprocess.run([DLCLOUD, "down", "--all"], check=False, capture_output=True)
            site.stop()


def measure(home: Path) -> None:
    """Print the ratio of each case."""
    recipe = home / "files.yaml"
    recipe.write_text(RECIPE)
    subprocess.run([DLCLOUD, "up", str(recipe), "--keep", "--name", "files"], check=True, capture_output=True)
    answer = subprocess.run(
        [DLCLOUD, "ssh", "files", "-o", "json"], check=True, capture_output=True, text=True
    )
    ssh = json.loads(answer.stdout)["result"]["command"]
    heading()
    for name, folder in (("3,000 files", small_files(home)), ("64 MiB", large_file(home))):
        ours, rsync = sender(folder), rsync_to(ssh, folder)
        clean = [*ssh, f"rm -rf {COPY} {TARGET} {TARGET}-run dlcloud/runs/files"]

        def fresh(send: Callable[[], float], clean: list[str] = clean) -> Callable[[], float]:
            return lambda: (subprocess.run(clean, check=True), send())[1]

        def changed(send: Callable[[], float], folder: Path = folder) -> Callable[[], float]:
            return lambda: (touch(folder), send())[1]

        compare(f"{name}, at first", fresh(ours), fresh(rsync), goal=1.2, pairs=5)
        compare(f"{name}, unchanged", ours, rsync, goal=1.2, pairs=7)
        if folder.name == "small":
            compare(f"{name}, {CHANGED} changed", changed(ours), changed(rsync), goal=1.2, pairs=7)


def sender(folder: Path) -> Callable[[], float]:
    """Return a function that logs in and sends a folder, and returns the seconds that it took."""

    def send() -> float:
        with Context("files") as context:
            cluster: Cluster = context.find_cluster("files")
            launcher = context.machines.launcher(cluster)
            (member,) = launcher.members()
            started = time.perf_counter()
            connection = context.machines.dialer(cluster).dial(member.instance.endpoint(cluster.user))
            work = "dlcloud/runs/files/work"
            send_files(connection, folder, work, clock=context.clock, emit=lambda _: None)
            return time.perf_counter() - started

    return send


def rsync_to(ssh: list[str], folder: Path) -> Callable[[], float]:
    """Return a function that runs rsync, and returns the seconds that it took."""
    *program, address = ssh
    options = ["-a", "--delete", "--rsync-path", RSYNC, "-e", shlex.join(program)]
    command = ["rsync", *options, f"{folder}/", f"{address}:{TARGET}/"]

    def send() -> float:
        started = time.perf_counter()
        subprocess.run(command, check=True)
        return time.perf_counter() - started

    return send


def small_files(home: Path) -> Path:
    """Write files of 100 B to 20 KiB, as of Python sources, in 60 folders."""
    chance = random.Random(1)
    root = home / "small"
    for number in range(3000):
        path = root / f"{number % 60}" / f"{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(chance.randrange(50, 10_000)).hex().encode())
    return settle(root)


def large_file(home: Path) -> Path:
    root = home / "large"
    root.mkdir()
    (root / "model.bin").write_bytes(os.urandom(64 << 20))
    return settle(root)


def settle(root: Path) -> Path:
    """Give files a time so long ago that it proves them unchanged."""
    then = time.time() - SETTLED_S
    for path in root.rglob("*"):
        os.utime(path, (then, then))
    return root


def touch(root: Path) -> None:
    """Change some files, at a time that neither has seen."""
    for path in random.sample(sorted(root.rglob("*.py")), CHANGED):
        path.write_text(str(time.time_ns()))
        then = time.time() - SETTLED_S + random.random()
        os.utime(path, (then, then))


if __name__ == "__main__":
    main()
