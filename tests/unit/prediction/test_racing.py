"""Races: which types enter, what is stopped, what is tied, and that they end."""

import random
import re
from decimal import Decimal

import pytest

from dlcloud.model.instance import Market
from dlcloud.prediction.offers import PredictedJob, PredictedOffer, candidates_of
from dlcloud.prediction.predictor import Estimate
from dlcloud.prediction.racing import MOST_SAMPLES, Entrant, Verdict, half_width, judge


def entrant(name, throughputs, usd=1.0):
    return Entrant(name=name, hourly_usd=usd, sample_s=36.0, throughputs=throughputs)


def noisy(rate, count, spread=0.01, seed=1):
    rng = random.Random(seed)
    return [rate * (1 + rng.gauss(0, spread)) for _ in range(count)]


@pytest.mark.parametrize(
    ("entrants", "verdict", "kept"),
    [
        ([entrant("a", noisy(100, 3)), entrant("b", noisy(50, 3, seed=2))], Verdict.DECIDED, ("a",)),
        # The price counts, not the speed.
        ([entrant("a", noisy(100, 8), usd=4.0), entrant("b", noisy(50, 8, seed=2))], Verdict.DECIDED, ("b",)),
        ([entrant("a", [100]), entrant("b", [10, 11])], Verdict.GOES_ON, ("a", "b")),
        ([entrant("a", noisy(100, 9)), entrant("b", [])], Verdict.GOES_ON, ("a", "b")),
    ],
)
def test_a_dearer_type_is_stopped_after_three_samples_of_each(entrants, verdict, kept):
    standing = judge(entrants)
    assert (standing.verdict, standing.kept) == (verdict, kept)
    for name, reason in standing.stopped.items():
        samples = len(entrants[0].throughputs)
        assert re.fullmatch(
            rf"at least \d+\.\d% dearer than {kept[0]} after {samples} samples", str(reason)
        ), name


def test_equal_types_are_tied_by_name():
    standing = judge([entrant("a", noisy(100, 200)), entrant("b", noisy(100, 200, seed=2))])
    assert standing.verdict is Verdict.TIED
    assert set(standing.kept) == {"a", "b"}
    assert "2%" in standing.reason


def test_a_stopped_type_stays_out():
    standing = judge([entrant("a", noisy(90, 9)), entrant("b", noisy(100, 9, seed=2))], out=["b"])
    assert standing.kept == ("a",)
    assert standing.stopped == {}


def test_samples_that_cost_more_than_they_save_are_not_taken():
    entrants = [entrant("a", noisy(100, 5, 0.05)), entrant("b", noisy(98, 5, 0.05, seed=2))]
    assert judge(entrants, job_usd=0.001).verdict is Verdict.UNDECIDED
    assert judge(entrants, job_usd=1000.0).verdict is Verdict.GOES_ON


def test_the_limit_of_samples_ends_a_race():
    entrants = [entrant(n, noisy(100, MOST_SAMPLES, 0.9, seed=i)) for i, n in enumerate("ab")]
    entrants = [entrant(one.name, [max(v, 1.0) for v in one.throughputs]) for one in entrants]
    assert judge(entrants).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(("spread", "misses"), [(0.001, 0.05), (0.01, 0.05), (0.1, 0.10)])
def test_the_interval_holds_at_all_looks_together(spread, misses):
    rng, missed = random.Random(3), 0
    for _ in range(100):
        mean = squares = 0.0
        for count in range(1, 50):
            value = rng.gauss(0, spread)
            step = value - mean
            mean += step / count
            squares += step * (value - mean)
            if abs(mean) > half_width(count, squares, 0.05):
                missed += 1
                break
    assert missed / 100 <= misses + 0.03


def test_the_cheapest_of_six_equally_noisy_types_is_rarely_stopped():
    rng, wrong = random.Random(4), 0
    for _ in range(20):
        samples = {str(i): [] for i in range(6)}
        out = set()
        for _ in range(15):
            for name in sorted(samples.keys() - out):
                samples[name].append(100 * (1 + rng.gauss(0, 0.05)) / (1 + 0.01 * int(name)))
            standing = judge([entrant(name, values) for name, values in sorted(samples.items())], out=out)
            out |= standing.stopped.keys()
        wrong += "0" in out
    assert wrong <= 2


def offer(name, low, middle, high, usd="0.1"):
    estimate = Estimate(instance_type=name, throughput=middle, low=low, high=high)
    return PredictedOffer(estimate=estimate, listed=True, hourly_usd={Market.ON_DEMAND: Decimal(usd)})


def test_a_race_is_left_those_whose_intervals_reach_the_cheapest():
    offers = (offer("best", 90, 100, 110), offer("near", 80, 88, 95), offer("dear", 10, 11, 12))
    job = PredictedJob(workload="w", case="c", setting="s", unit="images/s", offers=offers)
    assert candidates_of([job], Market.ON_DEMAND) == ("best", "near")
    assert candidates_of([job], Market.ON_DEMAND, most=1) == ("best",)
    assert candidates_of([], Market.ON_DEMAND) == ()


def test_a_race_begins_with_the_types_chosen_for_it_and_the_rest_follows_by_cost():
    offers = (offer("best", 90, 100, 110), offer("near", 80, 88, 95), offer("other", 40, 50, 60))
    job = PredictedJob(
        workload="w", case="c", setting="s", unit="i/s", offers=offers, race=("best", "other", "unsold")
    )
    assert candidates_of([job], Market.ON_DEMAND) == ("best", "other", "near")


def test_settings_of_one_case_compete_for_the_race():
    slow = PredictedJob(workload="w", case="c", setting="fp32", unit="i/s", offers=(offer("a", 9, 10, 11),))
    fast = PredictedJob(
        workload="w", case="c", setting="int8", unit="i/s", offers=(offer("b", 90, 100, 110),)
    )
    assert candidates_of([slow, fast], Market.ON_DEMAND) == ("b",)
