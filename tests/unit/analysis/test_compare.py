"""Ratios with their intervals, and what differs."""

import math
import random
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dlcloud.analysis.compare import differences, pairs_of, ratio_of
from dlcloud.analysis.cost import MeasuredRun, ResultRow
from dlcloud.benchmarks.harness.schema import Comparison, Measurement, Result, Verdict
from dlcloud.benchmarks.harness.statistics import bootstrap
from dlcloud.model.instance import Market
from dlcloud.model.money import MarketPrices
from tests.fakes.samples import price, run


def metric(low, value, high, samples=9):
    return Measurement(value=value, low=low, high=high, unit="images/s", samples=samples)


def line(bounds=(9, 10, 11), setting="fp32", *, of="a", kind="c5.large", compared=None, **other):
    one = run(of, instance_type=kind, **other)
    result = Result(case="vgg16", setting=setting, baseline=False, metrics={"throughput": metric(*bounds)})
    return ResultRow(measured=MeasuredRun(run=one), result=result, comparison=compared)


PAIRED = Comparison(
    case="vgg16", baseline="fp32", candidate="int8", metric="throughput", ratio=2.0, low=1.9, high=2.1,
    verdict="faster", confidence=0.95, samples=9,
)  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ((9, 10, 11), (19, 20, 21), Verdict.FASTER),
        ((19, 20, 21), (9, 10, 11), Verdict.SLOWER),
        ((9, 10, 11), (9.5, 10.5, 11.5), Verdict.NO_DIFFERENCE),
        ((9, 10, 11, 5), (19, 20, 21), Verdict.UNDECIDED),
        ((None, 10, None), (19, 20, 21), Verdict.UNDECIDED),
        ((0, 0, 0), (1, 2, 3), Verdict.UNDECIDED),
    ],
)
def test_a_winner_is_named_only_where_the_interval_excludes_1(first, second, verdict):
    assert ratio_of(metric(*first), metric(*second)).verdict == verdict


def test_the_interval_is_that_of_the_log_ratio():
    # ln(10/9.5) and ln(21/20) add as squares: 2 * exp(sqrt(0.0512933**2 + 0.0487902**2)) = 2.14672.
    ratio = ratio_of(metric(9.5, 10, 10.5), metric(19, 20, 21))
    assert ratio.value == 2
    assert math.isclose(ratio.high, 2.14672, rel_tol=1e-5)


bounds = st.tuples(st.floats(0.1, 100), st.floats(0.1, 100), st.floats(0.1, 100)).map(sorted)


@given(bounds)
def test_against_a_certain_figure_the_interval_is_that_of_the_other(first):
    assume(first[0] < first[2])
    ratio = ratio_of(metric(1, 1, 1), metric(*first))
    assert math.isclose(ratio.low, first[0])
    assert math.isclose(ratio.high, first[2])


def test_the_interval_holds_the_true_ratio_as_often_as_it_says():
    generator = random.Random(7)
    held = 0
    for _ in range(200):
        sides = []
        for centre in (10, 15):
            values = [generator.lognormvariate(math.log(centre), 0.1) for _ in range(12)]
            drawn = bootstrap(values, generator, resamples=200)
            sides.append(metric(drawn.low, median(values), drawn.high, 12))
        ratio = ratio_of(*sides)
        held += ratio.low <= 1.5 <= ratio.high
    assert held >= 190


def test_what_one_run_measured_in_turns_is_taken_as_it_is_either_way():
    lines = [line()], [line((1, 2, 3), "int8", compared=PAIRED)]
    (pair,) = pairs_of(*lines, free=frozenset({"setting"}))
    assert (pair.ratio.value, pair.ratio.low, pair.ratio.paired) == (2.0, 1.9, True)
    (pair,) = pairs_of(*reversed(lines), free=frozenset({"setting"}))
    assert (pair.ratio.value, pair.ratio.verdict) == (0.5, Verdict.SLOWER)
    assert math.isclose(pair.ratio.low, 1 / 2.1)


def test_the_cost_rests_on_the_same_samples_as_the_ratio():
    quote = MarketPrices(on_demand=price(usd="2"), spot=price(usd="1", market=Market.SPOT))
    faster = line(
        (57, 58, 59), "bf16", compared=replace(PAIRED, candidate="bf16", ratio=0.8, low=0.7, high=0.9)
    )
    rows = [
        replace(row, measured=replace(row.measured, prices=quote)) for row in (line((40, 41, 42)), faster)
    ]
    (pair,) = pairs_of(rows[:1], rows[1:], free=frozenset({"setting"}))
    assert float(pair.usd_ratio) == pytest.approx(1 / 0.8), "slower is not cheaper on one instance"


def test_two_types_that_were_rehearsed_on_one_machine_are_not_judged():
    ours, theirs = line(cloud="local"), line((90, 91, 92), of="b", kind="c7i.large", cloud="local")
    (pair,) = pairs_of([ours], [theirs], free=frozenset({"type"}))
    assert pair.ratio.verdict == Verdict.UNDECIDED


def test_differences_are_named_and_of_lists_what_only_one_side_has():
    first = {"hardware": {"cpu_model": "Xeon", "cpu_flags": ["avx2"], "cores": 2}, "image": "ami-1", "old": 1}
    second = {"hardware": {"cpu_model": "EPYC", "cpu_flags": ["avx2", "amx"], "cores": 2}, "image": "ami-2"}
    differing = differences(first, second, ignored=frozenset({"image"}))
    assert [(part.name, part.first, part.second) for part in differing] == [
        ("hardware.cpu_model", "Xeon", "EPYC"),
        ("hardware.cpu_flags", "", "only here: amx"),
        ("old", "1", ""),
    ]
