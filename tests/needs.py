"""The mark of tests that call programs; see `tests.programs`."""

import pytest

from tests.programs import missing


def needs(*names: str) -> pytest.MarkDecorator:
    """Skip a test where one of these programs is missing, and name it."""
    reason = missing(*names)
    return pytest.mark.skipif(bool(reason), reason=reason or "every program is there")
