import math
import random

import pytest

from dlcloud.scheduling.spells import HOUR_S, PRIOR_MEDIAN_S, SCALE, SHAPE, SpellFit, ending_rate


def lomax(median_s, number):
    """Spells of the distribution that is fitted."""
    source = random.Random(1)
    return [median_s * SCALE * ((1 - source.random()) ** (-1 / SHAPE) - 1) for _ in range(number)]


@pytest.mark.parametrize("median_s", [600.0, 1800.0, 2 * HOUR_S])
def test_the_median_is_learned_from_spells_that_have_ended(median_s):
    fit = SpellFit()
    for length_s in lomax(median_s, 60):
        fit.end(length_s)
    assert fit.median_s() == pytest.approx(median_s, rel=0.5)


def test_nothing_observed_leaves_the_prior():
    assert SpellFit().median_s() == pytest.approx(PRIOR_MEDIAN_S, rel=0.15)


def test_a_spell_that_goes_on_counts_as_at_least_so_long():
    assert SpellFit().median_s(8 * HOUR_S) > 2 * SpellFit().median_s()


def test_half_of_the_spells_end_within_the_median():
    steps = 10_000
    lasting = sum(ending_rate(1.0, (step + 0.5) / steps) / steps for step in range(steps))
    assert math.exp(-lasting) == pytest.approx(0.5, abs=1e-4)


def test_a_restless_time_outweighs_the_calm_one_before_it():
    fit = SpellFit()
    for length_s in [4 * HOUR_S] * 10 + [300.0] * 6:
        fit.end(length_s)
    assert fit.median_s() < HOUR_S / 2
