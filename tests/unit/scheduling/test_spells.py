import random

import pytest

from dlcloud.scheduling.spells import HOUR_S, OFF, ON, Hazard, SpellFit


def test_nothing_is_known_but_what_is_usual():
    assert SpellFit(ON).factor() == 1.0


@pytest.mark.parametrize("hazard", [ON, OFF])
def test_older_spells_end_less_often(hazard):
    assert list(hazard.hourly) == sorted(hazard.hourly, reverse=True)
    assert [hazard.age_class(age_h) for age_h in (0.0, *hazard.edges_h)] == list(range(len(hazard.hourly)))


def test_the_expected_ends_are_the_hazard_summed_over_the_age():
    hazard = Hazard(edges_h=(1.0, 3.0), hourly=(2.0, 1.0, 0.5))
    assert [hazard.expected_ends(age_h) for age_h in (0.0, 0.5, 1.0, 2.0, 5.0)] == [0.0, 1.0, 2.0, 3.0, 5.0]


@pytest.mark.parametrize("true", [0.25, 1.0, 4.0])
def test_the_factor_of_many_spells_is_found(true):
    source, fit = random.Random(1), SpellFit(Hazard(edges_h=(), hourly=(1.0,)))
    for _ in range(2000):
        fit.end(source.expovariate(true) * HOUR_S)
    assert fit.factor() == pytest.approx(true, rel=0.6)


def test_a_spell_that_goes_on_counts_as_at_least_so_long():
    fit = SpellFit(ON)
    fit.end(0.2 * HOUR_S)
    assert fit.factor(10 * HOUR_S) < fit.factor(HOUR_S) < fit.factor()
