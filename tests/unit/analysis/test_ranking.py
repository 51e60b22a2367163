"""Order, groups and winners: a winner only where the interval of its ratio excludes 1."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcloud.analysis.compare import ratio_of_rows
from dlcloud.analysis.cost import MeasuredRun, ResultRow
from dlcloud.analysis.ranking import (
    By,
    Group,
    advantage,
    best_of_case,
    group_rows,
    newest_of_cases,
)
from dlcloud.benchmarks.harness.schema import Comparison, Measurement, Result
from dlcloud.model.instance import Market
from dlcloud.model.money import MarketPrices
from tests.fakes.samples import price, run


def line(low, value, high, setting="fp32", *, usd="1", kind="c5.large", spot=None, latency=None, **other):
    case = other.pop("case", "vgg16")
    stable = other.pop("stable", True)
    metrics = {"throughput": Measurement(value=value, low=low, high=high, unit="images/s", samples=9)}
    if latency:
        metrics["latency_p50"] = Measurement(
            value=latency, low=latency, high=latency + 1, unit="ms", samples=9
        )
    quote = MarketPrices(
        on_demand=price(kind, usd) if usd else None,
        spot=price(kind, spot, Market.SPOT) if spot else None,
    )
    of = run(other.pop("run_id", f"{kind}-{setting}"), instance_type=kind, **other)
    result = Result(case=case, setting=setting, baseline=False, metrics=metrics, stable=stable)
    return ResultRow(measured=MeasuredRun(run=of, prices=quote), result=result)


def best_of(rows, by, market):
    return [best_of_case(case, by, market) for case in newest_of_cases(rows) if len(case) > 1]


def settings(lines):
    return [row.result.setting for row in lines]


SLOW_CHEAP = line(9, 10, 11, "a", usd="1", spot="0.9", latency=5)
FAST_DEAR = line(19, 20, 21, "b", usd="4", spot="0.8", kind="g4dn.xlarge", latency=9)
UNPRICED = line(29, 30, 31, "c", usd=None, kind="p3.2xlarge")


NO_DIFFERENCE = "no difference seen between b and a: the interval of their ratio includes 1"


def test_a_winner_is_named_where_the_interval_excludes_1():
    (best,) = best_of([FAST_DEAR, SLOW_CHEAP], By.COST, Market.ON_DEMAND)
    assert best.row is SLOW_CHEAP
    (best,) = best_of([FAST_DEAR, SLOW_CHEAP], By.THROUGHPUT, Market.ON_DEMAND)
    assert best.row is FAST_DEAR


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (
            line(9.9, 11, 12, "b"),
            NO_DIFFERENCE,
        ),
        (
            line(10, 10.5, 11, "b"),
            NO_DIFFERENCE,
        ),
        (line(None, 12, None, "b"), "b has no interval"),
        (line(5, 5, 5, "b"), "b has no interval"),
    ],
)
def test_no_winner_is_named_where_that_cannot_be_decided(other, reason):
    (best,) = best_of([line(9, 10, 11, "a"), other], By.COST, Market.ON_DEMAND)
    assert (best.row, best.reason) == (None, reason)


@pytest.mark.parametrize("kind", ["c5.large", "c7i.large"])
@pytest.mark.parametrize("low", [10.0, 10.4, 10.9, 11.5])
def test_the_answer_and_compare_name_the_same_winner(low, kind):
    """One rule: intervals may overlap where that of the ratio excludes 1."""
    slow, fast = line(9, 10, 11, "a"), line(low, 12, 13.2, "b", kind=kind)
    for by in (By.THROUGHPUT, By.COST):
        (best,) = best_of([slow, fast], by, Market.ON_DEMAND)
        assert (best.row is fast) == (ratio_of_rows(slow, fast).verdict == "faster")


def test_the_cheapest_has_the_interval_of_the_throughputs_times_the_prices():
    slow, fast = line(9, 10, 11, "a", usd="1"), line(19, 20, 21, "b", usd="1.7", kind="g4dn.xlarge")
    ratio = advantage(fast, slow, By.COST, Market.ON_DEMAND)
    whole = ratio_of_rows(slow, fast)
    assert (ratio.value, ratio.low) == pytest.approx((2 / 1.7, whole.low / 1.7))
    assert best_of([slow, fast], By.COST, Market.ON_DEMAND)[0].row is (fast if ratio.low > 1 else None)


def test_fewer_than_six_samples_name_no_winner():
    few = line(19, 20, 21, "b")
    few = replace(
        few,
        result=replace(few.result, metrics={"throughput": replace(few.throughput, samples=5)}),
    )
    (best,) = best_of([line(9, 10, 11, "a"), few], By.THROUGHPUT, Market.ON_DEMAND)
    assert (best.row, best.reason) == (None, "undecided between b and a: one has fewer than 6 samples")


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        ("no difference seen", NO_DIFFERENCE),
        ("undecided", "undecided between b and a: one has fewer than 6 samples"),
        ("", "undecided between b and a: one has fewer than 6 samples"),
    ],
)
def test_no_winner_is_named_where_the_paired_comparison_sees_none(verdict, reason):
    baseline, candidate = line(9, 10, 11, "a", run_id="one"), line(12, 13, 14, "b", run_id="one")
    values = {"case": "vgg16", "baseline": "a", "candidate": "b", "metric": "throughput", "samples": 9}
    compared = Comparison(**values, ratio=1.15, low=0.81, high=1.22, confidence=0.95, verdict=verdict)
    for column in ("comparison", "overall"):
        lines = [baseline, replace(candidate, **{column: compared})]
        (best,) = best_of(lines, By.COST, Market.ON_DEMAND)
        assert (best.row, best.reason) == (None, reason)
    faster = replace(candidate, comparison=replace(compared, verdict="faster"))
    (best,) = best_of([baseline, faster], By.COST, Market.ON_DEMAND)
    assert best.row is faster
    (best,) = best_of(
        [replace(baseline, measured=replace(baseline.measured, run=run("other"))), lines[1]],
        By.COST,
        Market.ON_DEMAND,
    )
    assert best.row is lines[1]


def test_what_is_rehearsed_never_competes_with_what_is_real():
    assert best_of([line(9, 10, 11), line(1, 2, 3, cloud="local")], By.COST, Market.ON_DEMAND) == []


def test_a_single_line_needs_no_winner():
    assert best_of([SLOW_CHEAP], By.COST, Market.ON_DEMAND) == []


def test_lines_are_grouped_by_what_they_share_and_rehearsals_apart():
    lines = [line(1, 2, 3, "a"), line(1, 2, 3, "b", case="resnet"), line(1, 2, 3, "c", cloud="local")]
    assert [settings(row) for row in group_rows(lines, Group.CASE)] == [["a"], ["b"], ["c"]]
    assert [settings(row) for row in group_rows(lines, Group.BENCHMARK)] == [["a", "b"], ["c"]]
    assert [settings(row) for row in group_rows(lines, Group.RUN)] == [["a"], ["b"], ["c"]]


figures = st.tuples(st.floats(1, 100), st.floats(1, 100), st.floats(1, 100)).map(sorted)


@given(st.lists(figures, min_size=2, max_size=6), st.sampled_from([By.COST, By.THROUGHPUT]))
def test_a_named_winner_beats_every_other_by_the_interval_of_the_ratio(drawn, by):
    lines = [line(*bounds, str(number)) for number, bounds in enumerate(drawn)]
    (best,) = best_of(lines, by, Market.ON_DEMAND)
    ratios = [ratio_of_rows(row, best.row) for row in lines if best.row is not None and row is not best.row]
    assert all(ratio.low > 1 and ratio.verdict == "faster" for ratio in ratios)
