"""The world of the launcher's tests, and a store alone."""

import pytest

from dlcloud.store.database import Database
from tests.unit.launch.conftest import world

__all__ = ["world"]


@pytest.fixture
def database(tmp_path):
    opened = Database(tmp_path / "store.sqlite")
    yield opened
    opened.close()
