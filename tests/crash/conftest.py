"""A home for the tests of a module."""

import pytest
from killable import Home

from tests.programs import missing


@pytest.fixture(scope="session", autouse=True)
def _can_copy_files():
    """Skip where the instances lack the programs by which files reach them, and come home."""
    if reason := missing("find", "tar"):
        pytest.skip(reason)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = Home(tmp_path_factory.mktemp("crash") / "home")
    yield home
    home.close()
