"""What the rest of a run costs: dynamic programming over a Markov model of spot.

A state is what runs, the class of age of the spell with or without spot capacity, the work left and the spare
time. All workers together count as one of size 1. While spot is to be had, it gives a `share` of them; it
takes back all of that together at the end of a spell, or a few at `drops` an hour, which stops all.

Work is done in chunks of exponentially distributed size (implicit differences), spare time is spent in steps.
Source: Kushner and Dupuis, "Numerical Methods for Stochastic Control Problems in Continuous Time", chapter 5.
"""

# ruff: noqa: FURB136, PLR1730  a call of `min` takes longer than a comparison, and a table makes 20,000

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from math import exp, expm1, inf

from dlcloud.scheduling.spells import OFF, ON

WORK_STEPS = 8
SPARE_STEPS = 80
CURVE = 1.5
"""The grid. A step is e^CURVE times as long at its end as at the end of the work, or the safe moment. The
equations of one grid point depend on each other; one pass from an extrapolated start is as good in replays as
several. With coarse steps of spare time on-demand looks as cheap as waiting where changeovers cost nothing:
with 40 steps, 70 h and 1.8 s cost 1.041 times the bound, with 80 1.013. 8 steps of work are as good as 12."""
LEAST_STEPS, MOST_STEPS = 40, 60
"""With several pools, or losses of a part of spot, a decision may need two tables, which take longer: they
have 5 steps for an hour of spare time, but at least this many."""
TABLES_KEPT = 1024
FULL = 0.999
"""A larger share is all."""

Row = Sequence["array[float]"]
"""By mode: USD by column, and for each by class of age. An array is one object for the garbage collector,
which stopped decisions for 200 ms when a table had a list for each column."""
Place = tuple[int, int, float]
"""A column, the next one, and the part of the way to it; without a part, the same one twice."""


class Mode(IntEnum):
    """What runs, and whether spot is to be had.

    WAIT and IDLE: nothing, without and with spot to be had; OFF and ON: all on-demand, without and with;
    SPOT: spot alone; BOTH: spot, and on-demand for the rest of the workers.
    """

    WAIT = 0
    OFF = 1
    IDLE = 2
    ON = 3
    SPOT = 4
    BOTH = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkovModel:
    """What is believed of spot, and what the run pays; 1 USD is an hour of all workers on-demand.

    Attributes:
        on_factor: How many times as often as usual spells with capacity end.
        off_factor: The same of those without, until any pool has some.
        other: Probability that another pool has capacity when the one in use ends.
        share: Of the workers, what spot gives while it lasts.
        drops: Losses of a part of it, and joins after them, an hour.
        spot_usd: An hour of all workers.
        changeover_h: For so long all stop.
        boot_h: Before a new instance joins; billed.
        work_h: All the work, on all workers.
        spare_h: Spare time at the start, beyond the safe moment.
    """

    on_factor: float
    off_factor: float
    other: float
    share: float
    drops: float
    spot_usd: float
    changeover_h: float
    boot_h: float
    work_h: float
    spare_h: float


@lru_cache(maxsize=TABLES_KEPT)
def value_table(model: MarkovModel) -> "ValueTable":
    """Return the table of a model; the newest ones are kept."""
    return ValueTable(model)


class ValueTable:
    """Expected cost to the end of the run.

    `best[mode]` is that of the best decisions from now on; `stay[mode]` that of changing nothing until
    something happens. Rows are by work left, columns by spare time. Both are computed when they are asked
    for, since no cell depends on one with more work or more spare time, and a run has ever less of both. All
    values are finite: without spare time, to change nothing costs what has to follow immediately.
    """

    def __init__(self, model: MarkovModel) -> None:
        self.model = model
        is_plain = model.share >= FULL and not model.drops and not model.other
        self.steps = SPARE_STEPS if is_plain else min(MOST_STEPS, max(LEAST_STEPS, round(5 * model.spare_h)))
        end = expm1(CURVE)
        self.works = [model.work_h * expm1(CURVE * row / WORK_STEPS) / end for row in range(WORK_STEPS + 1)]
        self.spares = [
            model.spare_h * expm1(CURVE * step / self.steps) / end for step in range(self.steps + 1)
        ]
        self._on = [
            (model.on_factor * hourly, older) for hourly, older in zip(ON.hourly, ON.ageing(), strict=True)
        ]
        self._off = [
            (model.off_factor * hourly, older) for hourly, older in zip(OFF.hourly, OFF.ageing(), strict=True)
        ]
        self._restarts = [self._place(s - model.changeover_h - model.boot_h) for s in self.spares]
        self._pauses = [self._place(s - model.changeover_h) for s in self.spares]
        steps = [0.0, *(end - begin for begin, end in pairwise(self.spares))]
        self._waits_off = [tuple([_one_step(rates, step) for rates in reversed(self._off)]) for step in steps]
        self._waits_on = [tuple([_one_step(rates, step) for rates in reversed(self._on)]) for step in steps]
        columns = len(self.spares)
        nothing = [
            array("d", bytes(8 * ages * columns)) for ages in (*[len(OFF.hourly)] * 2, *[len(ON.hourly)] * 4)
        ]
        self.best: list[Row] = [nothing, *([array("d") for _ in Mode] for _ in range(WORK_STEPS))]
        self.stay: list[Row] = [nothing, *([array("d") for _ in Mode] for _ in range(WORK_STEPS))]

    def value(self, mode: Mode, age: int, work_h: float, spare_h: float, *, stays: bool = False) -> float:
        """Return the expected cost from one state on; below the safe moment all is on-demand."""
        place = self._place(spare_h)
        if place is None:
            return inf if stays else work_h
        row = min(bisect_right(self.works, work_h) - 1, WORK_STEPS - 1)
        column, _, step = place
        ages = len(OFF.hourly) if mode in {Mode.WAIT, Mode.OFF} else len(ON.hourly)
        if len(self.best[row + 1][mode]) < (column + 2) * ages:
            for above in range(1, row + 2):
                self._extend(above, column + 2)
        rows = self.stay if stays else self.best
        part = (work_h - self.works[row]) / (self.works[row + 1] - self.works[row])
        lower, upper, cell = rows[row][mode], rows[row + 1][mode], column * ages + age
        low = lower[cell] + (lower[cell + ages] - lower[cell]) * step
        high = upper[cell] + (upper[cell + ages] - upper[cell]) * step
        return low + (high - low) * part

    def _place(self, spare_h: float) -> Place | None:
        """Return the place of some spare time; None below the safe moment."""
        if spare_h < 0:
            return None
        column = min(bisect_right(self.spares, spare_h) - 1, self.steps - 1)
        step = self.spares[column + 1] - self.spares[column]
        part = min(1.0, (spare_h - self.spares[column]) / step)
        return column, column + 1 if part else column, part

    def _extend(self, row: int, columns: int) -> None:
        """Compute the values of a row up to a number of columns, from little spare time to much.

        Once through the equations of each cell, from a start that is extrapolated. One long function that
        looks nothing up twice, since a decision waits for it. A class of age depends on the next one, so
        that the oldest comes first.
        """
        model, dear = self.model, self.works[row]
        chunk = 1 / (dear - self.works[row - 1])
        share, drops, other = model.share, model.drops, model.other
        is_full = share >= FULL
        changeover_h, restart_h = model.changeover_h, model.changeover_h + model.boot_h
        spot_usd = model.spot_usd * share
        both_usd = spot_usd + 1 - share
        start_spot_usd, start_both_usd = restart_h * spot_usd, restart_h * both_usd
        stop_spot_usd, stop_both_usd = changeover_h * spot_usd, changeover_h * both_usd
        filled_usd = restart_h * (1 - share) + stop_spot_usd
        beside_usd = start_spot_usd + changeover_h * (1 - share)
        f, n, gain = len(self._off), len(self._on), chunk * share
        off_rates = [(age, rate, older, chunk + rate + older) for age, (rate, older) in enumerate(self._off)]
        on_rates = [(age, rate, older, chunk + rate + older) for age, (rate, older) in enumerate(self._on)]
        off_rates.reverse()
        on_rates.reverse()
        wait_before, off_before, idle_before, on_before, spot_before, both_before = self.best[row - 1]
        waits, offs, idles, ons, spots, boths = self.best[row]
        stay_wait, stay_off, stay_idle, stay_on, stay_spot, stay_both = self.stay[row]
        for column in range(len(spots) // n, columns):
            restart, pause = self._restarts[column], self._pauses[column]
            off_now, on_now = slice(column * f, column * f + f), slice(column * n, column * n + n)
            # Of this column, what is read before it is computed.
            if column:
                wait, idle, on, spot = (
                    [a + b - c for a, b, c in zip(old[now], new[-ages:], old[past], strict=True)]
                    for old, new, ages, now, past in (
                        (wait_before, waits, f, off_now, slice(column * f - f, column * f)),
                        (idle_before, idles, n, on_now, slice(column * n - n, column * n)),
                        (on_before, ons, n, on_now, slice(column * n - n, column * n)),
                        (spot_before, spots, n, on_now, slice(column * n - n, column * n)),
                    )
                )
            else:
                wait, idle, on, spot = (
                    [value + 1 / chunk for value in old[:ages]]
                    for old, ages in ((wait_before, f), (idle_before, n), (on_before, n), (spot_before, n))
                )
            both = spot
            if not is_full:
                last = slice(column * n - n, column * n)
                both = (
                    [
                        a + b - c
                        for a, b, c in zip(both_before[on_now], boths[-n:], both_before[last], strict=True)
                    ]
                    if column
                    else [value + 1 / chunk for value in both_before[:n]]
                )
            spots.extend(spot)
            boths.extend(both)
            if pause is not None:
                low, high, part = pause
                spot_stops = spots[low * n : low * n + n], spots[high * n : high * n + n]
                both_stops = boths[low * n : low * n + n], boths[high * n : high * n + n]

            # All on-demand without spot.
            value, next_on, off, held = 0.0, on[0], [0.0] * f, [0.0] * f
            before = off_before[off_now]
            for age, rate, older, rates in off_rates:
                value = 1.0 + chunk * before[age] + rate * next_on + older * value
                held[age] = value = value / rates
                if wait[age] < value:
                    value = wait[age]
                off[age] = value
            offs.extend(off)
            stay_off.extend(held)

            # Nothing, while a step of spare time passes; events are midway.
            started = [dear + restart_h] * f
            lost_off = restart_h + dear
            if restart is not None:
                low, high, part = restart
                pairs = zip(offs[low * f : low * f + f], offs[high * f : high * f + f], strict=True)
                started = [restart_h + a + (b - a) * part for a, b in pairs]
                lost_off = restart_h + (offs[low * f] + (offs[high * f] - offs[low * f]) * part)
            held = started
            if column:
                past, held = waits[-f:], [0.0] * f
                changing = idles[-n] + idle[0]
                for (age, _, older, _), (same, changed, aged) in zip(
                    off_rates, self._waits_off[column], strict=True
                ):
                    value = same * past[age] + changed * changing
                    if older:
                        value += aged * (past[age + 1] + wait[age + 1])
                    held[age] = value
                    wait[age] = started[age] if started[age] < value else value
            else:
                wait = started
            waits.extend(wait)
            stay_wait.extend(held)

            # All on-demand, while spot is to be had; spot joins while they train.
            joined = idle
            if pause is not None:
                part = pause[2]
                joined = [
                    min(value, start_spot_usd + a + (b - a) * part)
                    for value, a, b in zip(idle, *spot_stops, strict=True)
                ]
                if not is_full:
                    joined = [
                        min(value, beside_usd + a + (b - a) * part)
                        for value, a, b in zip(joined, *both_stops, strict=True)
                    ]
            value, next_off, held = 0.0, off[0], [0.0] * n
            before = on_before[on_now]
            for age, rate, older, rates in on_rates:
                value = 1.0 + chunk * before[age] + rate * next_off + older * value
                held[age] = value = value / rates
                if joined[age] < value:
                    value = joined[age]
                on[age] = value
            ons.extend(on)
            stay_on.extend(held)

            # Spot, and on-demand for the rest of the workers; a loss of all spot leaves on-demand to start.
            if not is_full:
                lost = lost_off
                if restart is not None and other:
                    low, high, part = restart
                    again = start_both_usd + (boths[low * n] + (boths[high * n] - boths[low * n]) * part)
                    lost = other * min(again, lost) + (1 - other) * lost
                dropped, alone = [dear] * n, [inf] * n
                if pause is not None:
                    part = pause[2]
                    dropped = [a + (b - a) * part for a, b in zip(*both_stops, strict=True)]
                    alone = [stop_spot_usd + a + (b - a) * part for a, b in zip(*spot_stops, strict=True)]
                value, held = 0.0, [0.0] * n
                before = both_before[on_now]
                for age, rate, older, rates in on_rates:
                    following = older * value
                    value = both_usd + chunk * before[age] + rate * lost
                    if drops:
                        value += drops * (stop_both_usd + dropped[age])
                    held[age] = value = (value + following) / (rates + drops)
                    if alone[age] < value:
                        value = alone[age]
                    both[age] = value
                boths[on_now] = array("d", both)
                stay_both.extend(held)

            # Spot alone; what it lacks of all workers spends spare time.
            lost = wait[0] if wait[0] < lost_off else lost_off
            if other:
                again = restart_h + dear
                if restart is not None:
                    low, high, part = restart
                    low, high = low * n, high * n
                    again = min(
                        restart_h + (ons[low] + (ons[high] - ons[low]) * part),
                        start_spot_usd + (spots[low] + (spots[high] - spots[low]) * part),
                    )
                lost = other * again + (1 - other) * lost
            filled, spend = [inf] * n, 0.0
            if not is_full:
                filled = [dear + filled_usd] * n
                if restart is not None:
                    low, high, part = restart
                    pairs = zip(boths[low * n : low * n + n], boths[high * n : high * n + n], strict=True)
                    filled = [filled_usd + a + (b - a) * part for a, b in pairs]
                if column:
                    spend = (1 - share) / (self.spares[column] - self.spares[column - 1])
            if column or is_full:
                dropped = [dear] * n
                if drops and pause is not None:
                    part = pause[2]
                    dropped = [a + (b - a) * part for a, b in zip(*spot_stops, strict=True)]
                value, spent, held = 0.0, spots[on_now.start - n : on_now.start], [0.0] * n
                before = spot_before[on_now]
                for age, rate, older, _ in on_rates:
                    following = older * value
                    value = spot_usd + gain * before[age] + rate * lost
                    if drops:
                        value += drops * (stop_spot_usd + dropped[age])
                    if spend:
                        value += spend * spent[age]
                    held[age] = value = (value + following) / (gain + rate + older + drops + spend)
                    if filled[age] < value:
                        value = filled[age]
                    spot[age] = value
            else:
                spot = held = filled
            spots[on_now] = array("d", spot)
            stay_spot.extend(held)
            if is_full:
                boths[on_now] = spots[on_now]
                stay_both.extend(held)

            # Nothing, while spot is to be had.
            started = [dear + restart_h] * n
            if restart is not None:
                low, high, part = restart
                now, later = slice(low * n, low * n + n), slice(high * n, high * n + n)
                started = [
                    min(restart_h + a + (b - a) * part, start_spot_usd + c + (d - c) * part)
                    for a, b, c, d in zip(ons[now], ons[later], spots[now], spots[later], strict=True)
                ]
                if not is_full:
                    started = [
                        min(value, start_both_usd + a + (b - a) * part)
                        for value, a, b in zip(started, boths[now], boths[later], strict=True)
                    ]
            held = started
            if column:
                past, held = idles[-n:], [0.0] * n
                changing = waits[-2 * f] + wait[0]
                for (age, _, older, _), (same, changed, aged) in zip(
                    on_rates, self._waits_on[column], strict=True
                ):
                    value = same * past[age] + changed * changing
                    if older:
                        value += aged * (past[age + 1] + idle[age + 1])
                    held[age] = value
                    idle[age] = started[age] if started[age] < value else value
            else:
                idle = started
            idles.extend(idle)
            stay_idle.extend(held)


def _one_step(rates: tuple[float, float], step_h: float) -> tuple[float, float, float]:
    """Return the probability that nothing happens in a step, and half of those of a change and of ageing."""
    rate, older = rates
    same = exp(-(rate + older) * step_h)
    changed = rate / (rate + older) * (1 - same)
    return same, changed / 2, (1 - same - changed) / 2 if older else 0.0
