"""Waiting ends with the value, or with the time."""

import operator
import time

import pytest

from dlcloud.model.clock import wait_until
from tests.fakes.clock import FakeClock


def test_the_value_that_is_waited_for_is_returned_at_once():
    clock, values = FakeClock(), iter(["", "", "ready", "later"])
    assert wait_until(lambda: next(values), clock=clock, timeout_s=60, poll_s=5) == "ready"
    assert clock.monotonic() == 10


def test_the_last_value_is_returned_when_the_time_is_over():
    clock = FakeClock()
    left = wait_until(lambda: ["i-1"], operator.not_, clock=clock, timeout_s=60, poll_s=7)
    assert left == ["i-1"]
    assert 60 < clock.monotonic() <= 67


def test_the_pauses_may_begin_short_and_grow():
    clock, calls = FakeClock(), []
    wait_until(
        lambda: calls.append(clock.monotonic()), clock=clock, timeout_s=2, poll_s=1.0, first_poll_s=0.25
    )
    assert calls == [0, 0.25, 0.75, 1.75, 2.75]


def test_an_error_of_the_condition_is_raised():
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 / 0, clock=FakeClock(), timeout_s=60, poll_s=1)


def test_the_module_time_is_a_clock():
    assert not wait_until(lambda: False, clock=time, timeout_s=0, poll_s=0.001)
