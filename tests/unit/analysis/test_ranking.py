"""Ratios with their intervals, order, groups and winners, and the user's job."""

import math
import random
from dataclasses import replace
from decimal import Decimal
from statistics import median

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dlcloud.analysis.compare import differences, pairs_of, ratio_of, ratio_of_rows
from dlcloud.analysis.cost import MeasuredRun, ResultRow, RunCost
from dlcloud.analysis.ranking import (
    FEWEST,
    By,
    Group,
    advantage,
    best_of_case,
    group_rows,
    newest_of_cases,
    pareto_front,
    settle,
)
from dlcloud.analysis.user_job import estimate_job, read_job, sort_estimates
from dlcloud.benchmarks.harness.schema import Comparison, Measurement, Result, Verdict
from dlcloud.benchmarks.harness.statistics import bootstrap
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import Market
from dlcloud.model.money import MarketPrices
from tests.fakes.samples import price, run


def metric(low, value, high, samples=9):
    return Measurement(value=value, low=low, high=high, unit="images/s", samples=samples)


def plain(bounds=(9, 10, 11), setting="fp32", *, of="a", **other):
    return line(*bounds, setting, run_id=of, usd=None, **other)


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
    lines = [plain()], [plain((1, 2, 3), "int8", compared=PAIRED)]
    (pair,) = pairs_of(*lines, free=frozenset({"setting"}))
    assert (pair.ratio.value, pair.ratio.low, pair.ratio.paired) == (2.0, 1.9, True)
    (pair,) = pairs_of(*reversed(lines), free=frozenset({"setting"}))
    assert (pair.ratio.value, pair.ratio.verdict) == (0.5, Verdict.SLOWER)
    assert math.isclose(pair.ratio.low, 1 / 2.1)


def test_the_cost_rests_on_the_same_samples_as_the_ratio():
    quote = MarketPrices(on_demand=price(usd="2"), spot=price(usd="1", market=Market.SPOT))
    faster = plain(
        (57, 58, 59), "bf16", compared=replace(PAIRED, candidate="bf16", ratio=0.8, low=0.7, high=0.9)
    )
    rows = [
        replace(row, measured=replace(row.measured, prices=quote)) for row in (plain((40, 41, 42)), faster)
    ]
    (pair,) = pairs_of(rows[:1], rows[1:], free=frozenset({"setting"}))
    assert float(pair.usd_ratio) == pytest.approx(1 / 0.8), "slower is not cheaper on one instance"


def test_two_types_that_were_rehearsed_on_one_machine_are_not_judged():
    ours, theirs = plain(cloud="local"), plain((90, 91, 92), of="b", kind="c7i.large", cloud="local")
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


def line(low, value, high, setting="fp32", *, usd="1", kind="c5.large", spot=None, latency=None, **other):
    parts = {name: other.pop(name, default) for name, default in (("case", "vgg16"), ("stable", True))}
    compared = other.pop("compared", None)
    metrics = {"throughput": metric(low, value, high)}
    if latency:
        metrics["latency_p50"] = replace(metric(latency, latency, latency + 1), unit="ms")
    quote = MarketPrices(
        on_demand=price(kind, usd) if usd else None,
        spot=price(kind, spot, Market.SPOT) if spot else None,
    )
    of = run(other.pop("run_id", f"{kind}-{setting}"), instance_type=kind, **other)
    result = Result(setting=setting, baseline=False, metrics=metrics, **parts)
    return ResultRow(measured=MeasuredRun(run=of, prices=quote), result=result, comparison=compared)


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


BILL = RunCost(
    boot_s=30, setup_s=60, run_s=90, rest_s=0, instance_usd=Decimal(0), volume_usd=Decimal(0), final=True
)


@pytest.mark.parametrize(
    ("text", "epoch", "items", "unit"),
    [
        ("1.2M images", "", 1.2e6, "images"),
        ("1.2 million image", "", 1.2e6, "images"),
        ("50,000 tokens", "", 50_000, "tokens"),
        ("3e9", "", 3e9, ""),
        ("2 items", "", 2, ""),
        ("90 epochs", "1.28M", 90 * 1.28e6, ""),
        ("1 epoch", "50k samples", 50_000, "samples"),
        ("8 h at 500 images/s", "", 8 * 3600 * 500, "images"),
        ("2 days at 1.5k tokens/s", "", 2 * 86400 * 1500, "tokens"),
        ("10 min at 3 /s", "", 1800, ""),
    ],
)
def test_a_job_is_read_from_words(text, epoch, items, unit):
    job = read_job(text, epoch)
    assert (job.items, job.unit) == (pytest.approx(items), unit)


@pytest.mark.parametrize(
    ("text", "epoch", "hint"),
    [
        ("90 epochs", "", '--epoch "1.28M images"'),
        ("90 epochs", "many", "for example"),
        ("8 h", "", "for example"),
        ("lots", "", "for example"),
        ("0 images", "", "for example"),
        ("1e30 images", "", "for example"),
        ("-5 images", "", "for example"),
    ],
)
def test_what_is_no_job_is_refused_with_an_example(text, epoch, hint):
    with pytest.raises(RecipeError) as error:
        read_job(text, epoch)
    assert hint in error.value.hint


def test_hours_and_dollars_follow_speed_and_price():
    cheap, dear, unpriced = sort_estimates(
        estimate_job([UNPRICED, FAST_DEAR, SLOW_CHEAP], read_job("72k images")), Market.ON_DEMAND
    )
    assert (cheap.row, cheap.seconds, cheap.usd(Market.ON_DEMAND)) == (SLOW_CHEAP, 7200, Decimal(2))
    assert (cheap.low_s, cheap.high_s) == (pytest.approx(72e3 / 11), 8000)
    assert (dear.seconds, dear.usd(Market.SPOT)) == (3600, Decimal("0.8"))
    assert unpriced.usd(Market.ON_DEMAND) is None


def tie(*rows, by=By.COST):
    return settle(
        best_of_case(
            [replace(row, measured=replace(row.measured, cost=BILL)) for row in rows], by, Market.ON_DEMAND
        ),
        by,
        Market.ON_DEMAND,
    )


def test_more_samples_settle_an_overlap_at_a_price():
    settling = tie(line(9.5, 10, 10.5, "a"), line(9.9, 10.5, 11, "b"))
    # Half intervals of 5 % each at 9 samples, whose squares add, and a gap of 5 %: about twice as many do.
    assert 18 < settling.samples < 36
    assert settling.gap == pytest.approx(0.05)
    seconds = 2 * (180 + 90 * (settling.samples / 9 - 1))
    assert settling.seconds == pytest.approx(seconds)
    assert float(settling.usd) == pytest.approx(seconds / 3600)


def test_single_samples_need_the_fewest_that_make_an_interval():
    assert tie(line(None, 10, None, "a"), line(9, 12, 13, "b")).samples >= FEWEST


def test_a_winner_or_a_rehearsal_needs_no_more_samples():
    assert tie(SLOW_CHEAP, FAST_DEAR) is None
    assert tie(line(9, 10, 11, "a", cloud="local"), line(9, 10.5, 11, "b", cloud="local")) is None


def test_several_rehearsed_types_have_no_front():
    rehearsed = [line(1, 2, 3, cloud="local"), line(4, 5, 6, kind="c7i.large", cloud="local")]
    assert pareto_front(rehearsed, Market.ON_DEMAND) == []
    assert len(pareto_front(rehearsed[:1], Market.ON_DEMAND)) == 1
