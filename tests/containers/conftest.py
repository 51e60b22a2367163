"""A user whose local EC2 boots containers, each from a fresh image; DLCLOUD_TEST_RECIPES=all asks for it."""

import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dlcloud.local.site import LocalSite
from tests.containers.image import build_root, why_not
from tests.e2e.terminal import User
from tests.fakes.control import control_of

OF_MACHINE = ("/etc/xdg/pip", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
"""What pip is configured by here, and the certificates of a package index of one's own."""


@pytest.fixture
def boot_containers(tmp_path: Path) -> Iterator[Callable[..., User]]:
    """Return a function that starts a user's local EC2, whose instances boot from a release's image."""
    if os.environ.get("DLCLOUD_TEST_RECIPES") != "all":
        pytest.skip("packages are installed in containers: DLCLOUD_TEST_RECIPES=all")
    if reason := why_not():
        pytest.skip(reason)
    user, changes = User(tmp_path), tmp_path / "changes"

    def boot(suite: str, *folders: str) -> User:
        root = build_root(suite)
        user.run("local", "start")
        own = os.environ.get("DLCLOUD_TEST_FOLDERS", "").split()
        shown = [path for path in (*OF_MACHINE, *own, *folders) if Path(path.partition("=")[0]).exists()]
        program = Path(__file__).with_name("boot.sh")
        command = shlex.join(["sh", str(program), str(root), str(changes), *shown])
        control_of(LocalSite(tmp_path / ".dlcloud/local").find()).set_machine(f"exec {command}")
        return user

    yield boot
    user.run("local", "stop")
    shutil.rmtree(changes, ignore_errors=True)
    _remove_control_groups()


def _remove_control_groups() -> None:
    """Remove those that containers have left, without the ones of containers that still run."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    top = next(Path(mount[1]) for mount in mounts if mount[2] == "cgroup2") / "dlcloud"
    for folder, _, _ in os.walk(top, topdown=False):
        with suppress(OSError):
            Path(folder).rmdir()
