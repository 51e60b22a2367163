"""Several at work at once: all values, one at a time where asked, and everybody cleans up on Ctrl-C."""

import os
import signal
import threading
import time

import pytest

from dlcloud.model.clock import wait_until
from dlcloud.model.events import Info
from dlcloud.runs.stoppable import (
    ExclusiveSlot,
    SharedQuota,
    StoppableClock,
    StoppedError,
    run_parallel,
    stop_emitting,
)
from tests.fakes.clock import FakeClock


def test_the_values_come_in_the_order_of_the_items():
    together = threading.Barrier(3, timeout=600)

    def work(item):
        together.wait()
        return item * 2

    assert run_parallel(work, [1, 2, 3], stop=threading.Event(), on_stop=lambda: None) == [2, 4, 6]


def test_a_bug_in_one_is_raised_after_the_others_have_ended():
    ended = []

    def work(item):
        if item == 1:
            raise ZeroDivisionError
        ended.append(item)
        return item

    with pytest.raises(ZeroDivisionError):
        run_parallel(work, [1, 2, 3], stop=threading.Event(), on_stop=lambda: None)
    assert sorted(ended) == [2, 3]


def test_on_ctrl_c_everybody_stops_at_its_next_step_and_cleans_up():
    stop, cleaned, silent = threading.Event(), [], threading.Event()
    at_work = threading.Barrier(3, timeout=600)

    def work(item):
        try:
            at_work.wait()
            if item == 0:
                os.kill(os.getpid(), signal.SIGINT)
                StoppableClock(FakeClock(), stop).sleep(60)
            elif item == 1:
                stop.wait(60)
                stop_emitting([].append, stop)(Info(message="next"))
            else:
                silent.wait(60)
                raise ConnectionError
        finally:
            cleaned.append(item)

    with pytest.raises(KeyboardInterrupt):
        run_parallel(work, [0, 1, 2], stop=stop, on_stop=silent.set)
    assert sorted(cleaned) == [0, 1, 2]


def test_on_ctrl_c_those_that_take_long_to_clean_up_are_waited_for():
    cleaned, stop = [], threading.Event()

    def work(item):
        os.kill(os.getpid(), signal.SIGINT)
        stop.wait(60)
        threading.Event().wait(0.3)
        cleaned.append(item)

    with pytest.raises(KeyboardInterrupt):
        run_parallel(work, [0], stop=stop, on_stop=lambda: None)
    assert cleaned == [0]


def test_a_wait_without_pauses_ends_at_ctrl_c():
    stop = threading.Event()
    clock, asked = StoppableClock(FakeClock(), stop), []

    def connect():
        asked.append(stop.set())

    with pytest.raises(StoppedError):
        wait_until(connect, clock=clock, timeout_s=60, poll_s=0)
    assert len(asked) == 1


def test_turns_are_taken_one_at_a_time_only_where_asked():
    stop = threading.Event()
    alone, together = ExclusiveSlot(stop, exclusive=True), ExclusiveSlot(stop, exclusive=False)
    with together, together:
        assert not together.is_taken
    with alone:
        assert alone.is_taken
        stop.set()
        with pytest.raises(StoppedError), alone:
            pass
    assert not alone.is_taken


def test_what_does_not_fit_a_shared_quota_waits_until_others_are_done():
    quota, taken, most = SharedQuota(threading.Event(), {"vcpus": 96}), [], []

    def work(vcpus):
        with quota.taking({"vcpus": vcpus}):
            taken.append(vcpus)
            most.append(sum(taken))
            time.sleep(0.02)
            taken.remove(vcpus)
        return vcpus

    needs = [72, 64, 64, 64]
    assert run_parallel(work, needs, stop=threading.Event(), on_stop=lambda: None) == needs
    assert max(most) <= 96


def test_ctrl_c_ends_the_wait_for_a_quota():
    stop = threading.Event()
    quota = SharedQuota(stop, {"vcpus": 4})
    with quota.taking({"vcpus": 4}):
        assert not quota.has_room({"vcpus": 1})
        stop.set()
        with pytest.raises(StoppedError), quota.taking({"vcpus": 1}):
            pass
