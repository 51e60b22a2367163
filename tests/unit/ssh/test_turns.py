"""Threads take turns, and one that stays too long keeps no other from its turn."""

import threading

import pytest

from dlcloud.ssh.process import Gate

LONG_S = 60.0


def count_inside(gate, threads):
    """Return how many threads were within the gate at once, of those that came at once."""
    inside, most, lock, ready = [0], [0], threading.Lock(), threading.Barrier(threads)

    def visit():
        ready.wait(LONG_S)
        with gate.turn():
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            with lock:
                inside[0] -= 1

    visitors = [threading.Thread(target=visit) for _ in range(threads)]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join(LONG_S)
    return most[0]


def test_no_more_threads_than_the_limit_have_a_turn_and_all_get_one():
    assert 1 <= count_inside(Gate(2, LONG_S), 20) <= 2


def test_a_thread_that_stays_too_long_lets_another_in():
    gate, entered, leave = Gate(1, 0.01), threading.Event(), threading.Event()

    def stay():
        with gate.turn():
            entered.set()
            leave.wait(LONG_S)

    hung = threading.Thread(target=stay)
    hung.start()
    assert entered.wait(LONG_S)
    with gate.turn():
        assert hung.is_alive()
    leave.set()
    hung.join(LONG_S)


def test_an_error_ends_the_turn():
    gate = Gate(1, LONG_S)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), gate.turn():
            _ = 1 / 0
