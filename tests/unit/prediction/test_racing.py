"""Races: what is stopped, what is tied, and that they end."""

import random

import pytest

from dlcloud.prediction.racing import MOST_SAMPLES, Entrant, Verdict, half_width, judge


def entrant(name, throughputs, usd=1.0):
    return Entrant(name=name, hourly_usd=usd, sample_s=36.0, throughputs=throughputs)


def noisy(rate, count, spread=0.01, seed=1):
    rng = random.Random(seed)
    return [rate * (1 + rng.gauss(0, spread)) for _ in range(count)]


def test_a_much_dearer_type_is_stopped_after_five_samples():
    standing = judge([entrant("a", noisy(100, 5)), entrant("b", noisy(50, 5, seed=2))])
    assert standing.verdict is Verdict.DECIDED
    assert standing.kept == ("a",)
    assert "dearer than the cheapest" in standing.stopped["b"]


def test_the_price_counts_not_the_speed():
    standing = judge([entrant("fast", noisy(100, 8), usd=4.0), entrant("slow", noisy(50, 8, seed=2))])
    assert standing.kept == ("slow",)


def test_two_samples_stop_nothing():
    standing = judge([entrant("a", [100, 101]), entrant("b", [10, 11])])
    assert standing.verdict is Verdict.GOES_ON


def test_equal_types_are_tied_by_name():
    standing = judge([entrant("a", noisy(100, 200)), entrant("b", noisy(100, 200, seed=2))])
    assert standing.verdict is Verdict.TIED
    assert set(standing.kept) == {"a", "b"}
    assert "2%" in standing.reason


def test_a_stopped_type_stays_out():
    standing = judge([entrant("a", noisy(90, 9)), entrant("b", noisy(100, 9, seed=2))], out=["b"])
    assert standing.kept == ("a",)
    assert "b" in standing.stopped


def test_samples_that_cost_more_than_they_save_are_not_taken():
    entrants = [entrant("a", noisy(100, 5, 0.05)), entrant("b", noisy(98, 5, 0.05, seed=2))]
    assert judge(entrants, job_usd=0.001).verdict is Verdict.UNDECIDED
    assert judge(entrants, job_usd=1000.0).verdict is Verdict.GOES_ON


def test_the_limit_of_samples_ends_a_race():
    entrants = [entrant(n, noisy(100, MOST_SAMPLES, 0.9, seed=i)) for i, n in enumerate("ab")]
    entrants = [entrant(one.name, [max(v, 1.0) for v in one.throughputs]) for one in entrants]
    assert judge(entrants).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("error", [0.05, 0.2])
def test_the_interval_holds_at_all_looks_together(error):
    rng, missed = random.Random(3), 0
    for _ in range(300):
        values, total, squares = 0, 0.0, 0.0
        for count in range(1, 200):
            value = rng.gauss(0, 1)
            values, total, squares = count, total + value, squares + value * value
            mean = total / values
            deviation = (max(squares - values * mean * mean, 0) / max(count - 1, 1)) ** 0.5
            if abs(mean) > half_width(count, deviation, error):
                missed += 1
                break
    assert missed / 300 <= error + 0.03
