"""A user whose local EC2 boots virtual machines; DLCLOUD_TEST_VM=1 asks for it, as it takes half an hour."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlcloud.local.site import LocalSite
from tests.e2e.terminal import User
from tests.fakes.control import control_of
from tests.vm.image import build_image, missing_programs

UP_S = 1200


@pytest.fixture(scope="session")
def image() -> Path:
    if os.environ.get("DLCLOUD_TEST_VM") != "1":
        pytest.skip("virtual machines take half an hour: DLCLOUD_TEST_VM=1 boots them")
    if missing := missing_programs():
        pytest.skip(
            f"not installed: {', '.join(missing)} (mmdebstrap, qemu-system-x86, qemu-utils, netcat-openbsd)"
        )
    return build_image()


@pytest.fixture
def user(image: Path, tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path, timeout_s=UP_S)
    user.run("local", "start")
    program = Path(__file__).with_name("boot.sh")
    site = LocalSite(tmp_path / ".dlcloud/local")
    control_of(site.find()).set_machine(f"exec sh {shlex.quote(str(program))} {shlex.quote(str(image))}")
    yield user
    user.run("local", "stop")
