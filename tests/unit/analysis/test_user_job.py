"""The user's job: read from words, estimated by measured speeds, and what would settle a tie."""

from dataclasses import replace
from decimal import Decimal

import pytest

from dlcloud.analysis.cost import RunCost
from dlcloud.analysis.ranking import FEWEST, By, best_of_case, settle
from dlcloud.analysis.user_job import estimate_job, read_job, sort_estimates
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import Market
from tests.unit.analysis.test_ranking import FAST_DEAR, SLOW_CHEAP, UNPRICED, line

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
