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
from itertools import chain, pairwise
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
        if model.share >= FULL:  # spot leaves no workers to on-demand
            for rows in (self.best, self.stay):
                rows[:] = [[*row[: Mode.BOTH], row[Mode.SPOT]] for row in rows]

    def value(self, mode: Mode, age: int, work_h: float, spare_h: float, *, stays: bool = False) -> float:
        """Return the expected cost from one state on; below the safe moment all is on-demand."""
        place = self._place(spare_h)
        if place is None:
            return inf if stays else work_h
        row = min(bisect_right(self.works, work_h) - 1, WORK_STEPS - 1)
        column, _, step = place
        ages = len(self._off if mode <= Mode.OFF else self._on)
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

        Once through the equations of each cell, from a start that is extrapolated. A class of age depends on
        the next one, so that the oldest comes first. One long function, since a decision waits for it.
        """
        model, dear = self.model, self.works[row]
        more = dear - self.works[row - 1]
        chunk = 1 / more
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
        before, best, stay = self.best[row - 1], self.best[row], self.stay[row]
        wait_before, off_before = (_by_column(before[mode], f) for mode in (Mode.WAIT, Mode.OFF))
        idle_before, on_before, spot_before, both_before = (
            _by_column(before[mode], n) for mode in (Mode.IDLE, Mode.ON, Mode.SPOT, Mode.BOTH)
        )
        waits, offs = (_by_column(best[mode], f) for mode in (Mode.WAIT, Mode.OFF))
        idles, ons, spots, boths = (
            _by_column(best[mode], n) for mode in (Mode.IDLE, Mode.ON, Mode.SPOT, Mode.BOTH)
        )
        first = len(spots)
        held_by_mode: list[list[float]] = [[] for _ in Mode]
        stay_wait, stay_off, stay_idle, stay_on, stay_spot, stay_both = held_by_mode
        dears, never = [dear] * n, [inf] * n
        for column in range(first, columns):
            restart, pause = self._restarts[column], self._pauses[column]
            # Of this column, what is read before it is computed.
            wait = _extrapolated(wait_before, waits, more)
            idle = _extrapolated(idle_before, idles, more)
            on = _extrapolated(on_before, ons, more)
            spot = _extrapolated(spot_before, spots, more)
            spots.append(spot)
            spot_stops = never if pause is None else _between(spots, pause)
            if not is_full:
                both = _extrapolated(both_before, boths, more)
                boths.append(both)
                both_stops = never if pause is None else _between(boths, pause)

            # After a loss of a part, so much of the value is the cell's own: its equation is solved for it.
            # Such losses are so frequent that they would otherwise keep the values near those of the start.
            nearest, own = 0, 0.0
            if drops and pause is not None and pause[1] == column:
                nearest, own = pause[0], pause[2] or 1.0

            # All on-demand without spot.
            value, next_on, off, held = 0.0, on[0], [0.0] * f, [0.0] * f
            done = off_before[column]
            for age, rate, older, rates in off_rates:
                value = 1.0 + chunk * done[age] + rate * next_on + older * value
                held[age] = value = value / rates
                if wait[age] < value:
                    value = wait[age]
                off[age] = value
            offs.append(off)
            stay_off += held

            # Nothing, while a step of spare time passes; events are midway.
            started = [restart_h + a for a in (dears[:f] if restart is None else _between(offs, restart))]
            lost_off, held = started[0], started
            if column:
                past, held = waits[-1], [0.0] * f
                changing = idles[-1][0] + idle[0]
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
            waits.append(wait)
            stay_wait += held

            # All on-demand, while spot is to be had; spot joins while they train.
            joined = _cheaper(idle, start_spot_usd, spot_stops)
            if not is_full:
                joined = _cheaper(joined, beside_usd, both_stops)
            value, next_off, held = 0.0, off[0], [0.0] * n
            done = on_before[column]
            for age, rate, older, rates in on_rates:
                value = 1.0 + chunk * done[age] + rate * next_off + older * value
                held[age] = value = value / rates
                if joined[age] < value:
                    value = joined[age]
                on[age] = value
            ons.append(on)
            stay_on += held
            on_restarts = dears if restart is None else _between(ons, restart)

            # Spot, and on-demand for the rest of the workers; a loss of all spot leaves on-demand to start.
            if not is_full:
                lost = lost_off
                if restart is not None and other:
                    low, high, part = restart
                    again = start_both_usd + (boths[low][0] + (boths[high][0] - boths[low][0]) * part)
                    lost = other * min(again, lost) + (1 - other) * lost
                dropped = dears if pause is None else both_stops
                if own:
                    dropped = [(1 - own) * a for a in boths[nearest]]
                value, held, both = 0.0, [0.0] * n, [0.0] * n
                done = both_before[column]
                for age, rate, older, rates in on_rates:
                    following = older * value
                    value = both_usd + chunk * done[age] + rate * lost
                    if drops:
                        value += drops * (stop_both_usd + dropped[age])
                    held[age] = value = (value + following) / (rates + drops * (1 - own))
                    alone = stop_spot_usd + spot_stops[age]
                    if alone < value:
                        value = alone
                    both[age] = value
                boths[column] = both
                stay_both += held
                both_restarts = never if restart is None else _between(boths, restart)

            # Spot alone; what it lacks of all workers spends spare time.
            lost = wait[0] if wait[0] < lost_off else lost_off
            if other:
                again = restart_h + on_restarts[0]
                if restart is not None:
                    low, high, part = restart
                    onto = start_spot_usd + (spots[low][0] + (spots[high][0] - spots[low][0]) * part)
                    again = min(again, onto)
                lost = other * again + (1 - other) * lost
            filled, spend = never, 0.0
            if not is_full:
                filled = [filled_usd + a for a in (dears if restart is None else both_restarts)]
                if column:
                    spend = (1 - share) / (self.spares[column] - self.spares[column - 1])
            if column or is_full:
                dropped = dears if pause is None else spot_stops
                if own:
                    dropped = [(1 - own) * a for a in spots[nearest]]
                value, spent, held, spot = 0.0, spots[column - 1], [0.0] * n, [0.0] * n
                done = spot_before[column]
                for age, rate, older, _ in on_rates:
                    following = older * value
                    value = spot_usd + gain * done[age] + rate * lost
                    if drops:
                        value += drops * (stop_spot_usd + dropped[age])
                    if spend:
                        value += spend * spent[age]
                    held[age] = value = (value + following) / (
                        gain + rate + older + drops * (1 - own) + spend
                    )
                    if filled[age] < value:
                        value = filled[age]
                    spot[age] = value
            else:
                spot = held = filled
            spots[column] = spot
            stay_spot += held

            # Nothing, while spot is to be had.
            started = [restart_h + a for a in on_restarts]
            if restart is not None:
                started = _cheaper(started, start_spot_usd, _between(spots, restart))
                if not is_full:
                    started = _cheaper(started, start_both_usd, both_restarts)
            held = started
            if column:
                past, held = idles[-1], [0.0] * n
                changing = waits[-2][0] + wait[0]
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
            idles.append(idle)
            stay_idle += held
        for mode, by_column in zip(Mode, (waits, offs, idles, ons, spots, boths), strict=True):
            if mode is not Mode.BOTH or not is_full:
                best[mode].extend(chain.from_iterable(by_column[first:]))
                stay[mode].extend(held_by_mode[mode])


def _by_column(values: "array[float]", ages: int) -> list[list[float]]:
    """Return the values of a row, which are faster to read so, by column."""
    flat = values.tolist()
    return [flat[place : place + ages] for place in range(0, len(flat), ages)]


def _extrapolated(before: list[list[float]], values: list[list[float]], more: float) -> list[float]:
    """Return the start of the next column: as much above the row before as the last column is."""
    column = len(values)
    if not column:
        return [value + more for value in before[0]]
    return [a + b - c for a, b, c in zip(before[column], values[-1], before[column - 1], strict=True)]


def _between(values: list[list[float]], place: Place) -> list[float]:
    """Return the values at a place between two columns."""
    low, high, part = place
    if not part:
        return values[low]
    return [a + (b - a) * part for a, b in zip(values[low], values[high], strict=True)]


def _cheaper(values: list[float], usd: float, others: list[float]) -> list[float]:
    """Return, by age, the values, or the others with what a change to them costs."""
    return [usd + b if usd + b < a else a for a, b in zip(values, others, strict=True)]


def _one_step(rates: tuple[float, float], step_h: float) -> tuple[float, float, float]:
    """Return the probability that nothing happens in a step, and half of those of a change and of ageing."""
    rate, older = rates
    same = exp(-(rate + older) * step_h)
    changed = rate / (rate + older) * (1 - same)
    return same, changed / 2, (1 - same - changed) / 2 if older else 0.0
