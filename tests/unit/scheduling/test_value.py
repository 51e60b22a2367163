"""What the elastic policy expects of spells of spot, and what a state is worth to it."""

import random
from itertools import product
from math import isfinite

import pytest

from dlcloud.scheduling.policies.value import WORK_STEPS, MarkovModel, Mode, ValueTable
from dlcloud.scheduling.spells import HOUR_S, OFF, ON, Hazard, SpellFit

MODEL = MarkovModel(
    on_factor=1.0,
    off_factor=1.0,
    other=0.0,
    share=1.0,
    drops=0.0,
    spot_usd=0.3,
    changeover_h=0.02,
    boot_h=0.0,
    work_h=24.0,
    spare_h=4.0,
)


def cost(model, mode=Mode.SPOT, age=0, work_h=20.0, spare_h=3.0):
    return ValueTable(model).value(mode, age, work_h, spare_h)


def test_without_spare_time_all_the_work_is_on_demand():
    assert cost(MODEL, spare_h=-0.1) == 20.0


def test_more_spare_time_and_older_spells_cost_less():
    table = ValueTable(MODEL)
    by_spare = [table.value(Mode.WAIT, 0, 20.0, spare_h) for spare_h in (0.1, 1.0, 2.0, 4.0)]
    by_age = [table.value(Mode.SPOT, age, 20.0, 2.0) for age in range(5)]
    assert by_spare == sorted(by_spare, reverse=True)
    assert by_age == sorted(by_age, reverse=True)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_cost_lies_between_all_spot_and_all_on_demand(share):
    model = MODEL._replace(share=share, drops=0.5)
    for mode in (Mode.SPOT, Mode.BOTH, Mode.ON):
        assert 0.3 * 20.0 < cost(model, mode) <= 20.0 + MODEL.changeover_h


def test_longer_changeovers_and_more_losses_cost_more():
    assert cost(MODEL._replace(changeover_h=0.2)) > cost(MODEL)
    partial = MODEL._replace(share=0.5, changeover_h=0.2)
    assert cost(partial._replace(drops=4.0), Mode.BOTH) > cost(partial, Mode.BOTH)
    for mode in (Mode.SPOT, Mode.BOTH):
        free = partial._replace(changeover_h=0.0)
        assert cost(free._replace(drops=4.0), mode) == pytest.approx(cost(free, mode))


@pytest.mark.parametrize("spare_h", [0.01, 4.0, 40.0])
@pytest.mark.parametrize("share", [0.25, 1.0])
@pytest.mark.parametrize("changeover_h", [0.0, 0.0005, 0.2])
def test_every_cell_of_the_table_is_a_number(spare_h, share, changeover_h):
    """Infinite costs were interpolated to NaN, which is sorted first: the policy waited for spot."""
    model = MODEL._replace(spare_h=spare_h, share=share, changeover_h=changeover_h, drops=1.0, other=0.5)
    table = ValueTable(model)
    table.value(Mode.WAIT, 0, model.work_h, spare_h)
    cells = [cell for by_mode in (table.best, table.stay) for values in by_mode for cell in values]
    assert len(cells) == 2 * (WORK_STEPS + 1) * (table.steps + 1) * 26
    assert all(map(isfinite, cells))


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_between_the_cells_every_cost_is_a_number_too(share):
    table = ValueTable(MODEL._replace(share=share))
    for mode, stays in product(Mode, (False, True)):
        for age in range(3 if mode in {Mode.WAIT, Mode.OFF} else 5):
            for work_h, spare_h in product((0.001, 11.0, 24.0), (0.0, 1e-6, 0.01, 1.0, 3.99, 4.0, 9.0)):
                assert isfinite(table.value(mode, age, work_h, spare_h, stays=stays))


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
