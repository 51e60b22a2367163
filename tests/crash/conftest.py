"""A home for the tests of a module."""

import pytest
from killable import Home


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = Home(tmp_path_factory.mktemp("crash") / "home")
    yield home
    home.close()
