import math
import random

import pytest

from dlcloud.benchmarks.harness import statistics
from dlcloud.benchmarks.harness.statistics import Interval, Verdict


def quiet(generator):
    return generator.gauss(0, 0.008)


def noisy(generator):
    return generator.gauss(0, 0.03)


def with_outliers(generator):
    return generator.gauss(0, 0.01) - (generator.random() < 0.15) * generator.expovariate(5)


class Drifting:
    """Noise of which nine tenths stay from one slice to the next, as on a machine others use."""

    def __init__(self):
        self.state = 0.0

    def __call__(self, generator):
        self.state = 0.9 * self.state + generator.gauss(0, 0.03)
        return self.state + generator.gauss(0, 0.01)


def experiment(generator, noise, *, true_ratio=1.0, most=42):
    """Measure two settings as the harness does, rounds and looks included."""
    baseline, candidate = [], []
    while True:
        pair = [math.exp(noise(generator)) for _ in range(2)]
        if len(baseline) % 2:
            pair.reverse()
        baseline.append(pair[0])
        candidate.append(pair[1] * true_ratio)
        pairs = statistics.speed_ups(baseline, candidate, higher_is_better=True)
        if len(pairs) >= most or statistics.is_look_due(len(pairs), statistics.MINIMUM_PAIRS):
            interval = statistics.bootstrap(pairs, generator, resamples=400)
            if len(pairs) >= most or interval.relative_width <= 0.05:
                return interval


@pytest.mark.parametrize("noise", [quiet, noisy, with_outliers, Drifting()])
def test_two_identical_settings_are_rarely_called_different(noise):
    generator = random.Random(5)
    verdicts = [statistics.judge(experiment(generator, noise)) for _ in range(200)]
    assert sum(verdict is not Verdict.NO_DIFFERENCE for verdict in verdicts) <= 0.07 * 200


@pytest.mark.parametrize("noise", [quiet, noisy, with_outliers, Drifting()])
def test_the_interval_holds_the_true_ratio(noise):
    generator = random.Random(6)
    intervals = [experiment(generator, noise, true_ratio=3.0) for _ in range(200)]
    assert sum(interval.low <= 3.0 <= interval.high for interval in intervals) >= 0.93 * 200
    assert all(statistics.judge(interval) is Verdict.FASTER for interval in intervals)


def test_the_same_seed_gives_the_same_interval():
    values = [random.Random(1).gauss(10, 1) for _ in range(20)]
    first = statistics.bootstrap(values, random.Random(3))
    assert first == statistics.bootstrap(values, random.Random(3))
    assert first.low <= statistics.median(values) <= first.high


def test_few_values_give_their_span_and_say_how_little_it_is_worth():
    interval = statistics.bootstrap([3.0, 1.0, 2.0], random.Random(0))
    assert (interval.value, interval.low, interval.high) == (2.0, 1.0, 3.0)
    assert interval.confidence == 0.75
    assert statistics.bootstrap([5.0], random.Random(0)).confidence == 0.0


@pytest.mark.parametrize(
    ("low", "high", "confidence", "verdict"),
    [
        (1.01, 1.2, 0.95, Verdict.FASTER),
        (0.8, 0.99, 0.95, Verdict.SLOWER),
        (0.99, 1.2, 0.95, Verdict.NO_DIFFERENCE),
        (1.0, 1.2, 0.95, Verdict.NO_DIFFERENCE),
        (2.0, 2.1, 0.9375, Verdict.UNDECIDED),
    ],
)
def test_a_winner_is_named_only_where_the_interval_excludes_one(low, high, confidence, verdict):
    interval = Interval(value=(low + high) / 2, low=low, high=high, confidence=confidence)
    assert statistics.judge(interval) is verdict


def test_five_pairs_name_no_winner_and_six_do():
    five = statistics.bootstrap([2.0, 2.1, 2.2, 2.1, 2.0], random.Random(0))
    six = statistics.bootstrap([2.0, 2.1, 2.2, 2.1, 2.0, 2.1], random.Random(0))
    assert statistics.judge(five) is Verdict.UNDECIDED
    assert statistics.judge(six) is Verdict.FASTER


def test_speed_ups_turn_round_where_less_is_better():
    assert statistics.speed_ups([2.0], [1.0], higher_is_better=False) == [2.0]
    assert statistics.speed_ups([2.0], [1.0], higher_is_better=True) == [0.5]


def test_warm_up_ends_where_two_medians_agree():
    falling = [10.0, 8.0, 6.0, 4.0, 3.0, 2.0]
    level = [1.01, 1.0, 0.99, 1.0, 1.01, 1.0]
    assert not statistics.is_settled(falling)
    assert not statistics.is_settled(level[:5])
    assert statistics.is_settled([*falling, *level])
    assert statistics.warm_up_length([*falling, *level]) in range(6, 10)
    assert statistics.warm_up_length(level) == 3
    assert statistics.warm_up_length([2.0**n for n in range(30)]) is None


def test_one_outlier_does_not_hide_that_the_warm_up_has_ended():
    assert statistics.is_settled([1.0, 1.0, 9.0, 1.0, 1.0, 1.0])


def test_looks_grow_further_apart():
    looks = [count for count in range(1, 70) if statistics.is_look_due(count, 8)]
    assert looks == [8, 12, 18, 28, 42, 64]
    assert [count for count in range(1, 10) if statistics.is_look_due(count, 1)] == [1, 2, 4, 6]


def test_a_percentile_interval_encloses_the_percentile():
    generator = random.Random(8)
    inside = 0
    for _ in range(300):
        values = [generator.expovariate(1.0) for _ in range(400)]
        interval = statistics.percentile_interval(values, 0.9)
        assert interval.low <= interval.value <= interval.high
        inside += interval.low <= math.log(10) <= interval.high
    assert inside >= 0.93 * 300
    few = statistics.percentile_interval([1.0, 2.0, 3.0], 0.99)
    assert few.high == 3.0


def test_no_values_have_no_percentile():
    with pytest.raises(ValueError, match="no values"):
        statistics.percentile([], 0.5)
