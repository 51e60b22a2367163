"""The world of the launcher's tests."""

from tests.unit.launch.conftest import world

__all__ = ["world"]
