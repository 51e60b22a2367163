"""Users for the end-to-end tests: one a module, and newcomers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import User

from tests.environments import SHARED
from tests.programs import missing

FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="session", autouse=True)
def _can_copy_files() -> None:
    """Skip where the instances lack the programs by which files reach them, and come home."""
    if reason := missing("find", "tar"):
        pytest.skip(reason)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    user = User(tmp_path_factory.mktemp("home"))
    _share_environments(user)
    user.run("local", "start")
    yield user
    user.run("local", "stop")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note that a test failed, for the fixture that takes down what it left."""
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Terminate the instances of a module's user after a test that failed, so the next finds none."""
    yield
    if "user" not in request.fixturenames or not request.node.stash.get(FAILED, False):
        return
    user = request.getfixturevalue("user")
    if isinstance(user, User) and (left := user.alive()):
        user.ec2.terminate_instances(InstanceIds=left)


def _share_environments(user: User) -> None:
    """Let the instances of every module use the environments that those of another have built."""
    SHARED.mkdir(parents=True, exist_ok=True)
    local = user.home / ".dlcloud" / "local"
    local.mkdir(mode=0o700, parents=True)
    local.parent.chmod(0o700)
    (local / "cache").symlink_to(SHARED)


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[User]:
    """Someone whose home is still empty."""
    user = User(tmp_path)
    yield user
    user.run("local", "stop")
