"""Waiting ends with the value, or with the time."""

from dlcloud.model.clock import wait_until
from tests.fakes.clock import FakeClock


def test_the_value_that_is_waited_for_is_returned_at_once():
    clock, values = FakeClock(), iter(["", "", "ready", "later"])
    assert wait_until(lambda: next(values), clock=clock, timeout_s=60, poll_s=5) == "ready"
    assert clock.monotonic() == 10
