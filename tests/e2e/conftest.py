"""Users for the end-to-end tests: one a module, and newcomers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import User


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    user = User(tmp_path_factory.mktemp("home"))
    user.run("local", "start")
    yield user
    user.run("local", "stop")


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[User]:
    """Someone whose home is still empty."""
    user = User(tmp_path)
    yield user
    user.run("local", "stop")
