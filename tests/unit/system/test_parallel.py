"""Many at once: order, errors, width, and Ctrl-C."""

import _thread
import threading
import time

import pytest

from dlcloud.model.errors import HostKeyError, InstanceError, PartialError, UnreachableError
from dlcloud.model.remote import Endpoint
from dlcloud.system.parallel import CallOutcome, all_or_raise, fan_out


def failing(number):
    if number % 2:
        raise UnreachableError(f"i-{number}: gone", hint="dlcloud status")
    return number * 10


def test_outcomes_keep_the_order_and_every_error():
    outcomes = fan_out(failing, range(64), width=8)
    assert [outcome.item for outcome in outcomes] == list(range(64))
    assert [outcome.value for outcome in outcomes[::2]] == list(range(0, 640, 20))
    assert [outcome.error.message for outcome in outcomes[1::2]] == [f"i-{n}: gone" for n in range(1, 64, 2)]


def test_no_more_than_width_run_at_once_and_width_do():
    meet = threading.Barrier(4)
    lock, running, most = threading.Lock(), 0, 0

    def work(_):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        meet.wait(60)
        with lock:
            running -= 1

    all_or_raise(fan_out(work, range(16), width=4))
    assert most <= 4


def test_nothing_to_do():
    assert all_or_raise(fan_out(failing, [])) == []


def test_some_failed_is_partial_and_names_five_and_the_rest():
    with pytest.raises(PartialError) as caught:
        all_or_raise(fan_out(failing, range(14)), name=lambda number: f"i-{number}")
    lines = caught.value.message.splitlines()
    assert lines[0] == "7 of 14 instances failed:"
    assert lines[1:6] == [f"  i-{number}: gone" for number in (1, 3, 5, 7, 9)]
    assert lines[6:] == ["  and 2 more: i-11, i-13"]
    assert caught.value.hint == "dlcloud status"


def test_all_failed_for_one_kind_of_reason_keeps_the_kind():
    with pytest.raises(UnreachableError, match="3 of 3"):
        all_or_raise(fan_out(failing, [1, 3, 5]))


def test_all_failed_for_several_kinds_is_an_instance_error():
    endpoint = Endpoint(instance_id="i-0abc", host="127.0.0.1")
    outcomes = [
        CallOutcome(item=endpoint, error=UnreachableError("silent")),
        CallOutcome(item=endpoint, error=HostKeyError("i-0abc: wrong\nsecond line")),
    ]
    with pytest.raises(InstanceError) as caught:
        all_or_raise(outcomes)
    assert type(caught.value) is InstanceError
    assert caught.value.message.splitlines()[1:] == ["  i-0abc: silent", "  i-0abc: wrong"]


def test_one_of_one_is_raised_as_it_is():
    error = HostKeyError("i-0abc: wrong")
    with pytest.raises(HostKeyError) as caught:
        all_or_raise([CallOutcome(item="i-0abc", error=error)])
    assert caught.value is error


def test_a_bug_is_no_failed_instance():
    with pytest.raises(ZeroDivisionError):
        fan_out(lambda number: 1 // number, [1, 0, 2])


def test_a_bug_is_raised_after_all_calls_have_ended():
    done = []

    def work(number):
        if number == 1:
            raise ZeroDivisionError
        time.sleep(0.1)
        done.append(number)

    with pytest.raises(ZeroDivisionError):
        fan_out(work, range(4), width=2)
    assert sorted(done) == [0, 2, 3]


def test_other_errors_than_the_failures_a_caller_names_are_bugs():
    with pytest.raises(UnreachableError):
        fan_out(failing, range(2), failures=HostKeyError)


def test_without_a_width_all_run_at_once():
    meet = threading.Barrier(70, timeout=60)
    fan_out(lambda _: meet.wait(), range(70), width=None)


def test_an_interrupt_stops_handing_out_work_and_goes_on_up():
    begun, release, both = [], threading.Event(), threading.Barrier(2, timeout=60)

    def work(number):
        begun.append(number)
        both.wait()
        if number == 1:  # once: a second interrupt could reach another test
            _thread.interrupt_main()
        release.wait(60)

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fan_out(work, range(50), width=2, grace_s=0.1)
    assert time.monotonic() - started < 30
    release.set()
    assert sorted(begun) == [0, 1]
