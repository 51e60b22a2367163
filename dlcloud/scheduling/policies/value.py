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
from enum import IntEnum
from functools import lru_cache
from itertools import chain, pairwise
from math import exp, expm1, inf, nan
from typing import NamedTuple

from dlcloud.scheduling.spells import OFF, ON, Hazard

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
NEVER = 1e300
"""The cost of what cannot be: finite, so that it may be interpolated."""

Place = tuple[int, int, float]
"""A column, the next one, and the part of the way to it; without a part, the same one twice."""
Rates = tuple[tuple[float, float], ...]
"""By class of age: how often an hour a spell ends, and how often it gets into the next class."""
Step = tuple[int, float, float, float, float]
"""A class of age, how often an hour it ends in the next one, the probability that nothing happens in a step,
and half of those of a change and of ageing."""


class Mode(IntEnum):
    """What runs, and whether spot is to be had.

    WAIT: nothing, without spot; OFF and ON: all on-demand, without and with spot to be had; SPOT: spot alone;
    BOTH: spot, and on-demand for the rest of the workers. NONE: nothing yet, with spot to be had. No run
    stays in that: to wait until spot lasts looks hardly dearer in a plan, and cost up to 20 % in replays.
    """

    WAIT = 0
    OFF = 1
    NONE = 2
    ON = 3
    SPOT = 4
    BOTH = 5


class MarkovModel(NamedTuple):
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
    something happens. Each is an array by work left (rows), spare time (columns), and class of age. Rows and
    columns are computed when they are asked for, since no cell depends on one with more work or more spare
    time, and a run has ever less of both. All are finite then: without spare time, to change nothing costs
    what has to follow immediately.

    The garbage collector looks through few objects for a table. With lists by column it stopped decisions
    for 200 ms, with small tuples and arrays by row for 50 ms.
    """

    def __init__(self, model: MarkovModel) -> None:
        self.model = model
        is_plain = model.share >= FULL and not model.drops and not model.other
        self.steps = SPARE_STEPS if is_plain else min(MOST_STEPS, max(LEAST_STEPS, round(5 * model.spare_h)))
        end = expm1(CURVE)
        self.works = [model.work_h * expm1(CURVE * row / WORK_STEPS) / end for row in range(WORK_STEPS + 1)]
        self.spares = tuple(
            [model.spare_h * expm1(CURVE * step / self.steps) / end for step in range(self.steps + 1)]
        )
        self._on = _rates(ON, model.on_factor)
        self._off = _rates(OFF, model.off_factor)
        self._pauses = _places(self.spares, model.changeover_h)
        self._restarts = _places(self.spares, model.changeover_h + model.boot_h)
        self._waits_off = _waits(self._off, self.spares)
        self._columns = [len(self.spares), *[0] * WORK_STEPS]
        self.best, self.stay = self._empty(), self._empty()

    def _empty(self) -> "list[array[float]]":
        """Return the values by mode: 0 without work, else unknown."""
        columns, f, n = len(self.spares), len(self._off), len(self._on)
        modes = [
            array("d", [0.0]) * (columns * ages) + array("d", [nan]) * (WORK_STEPS * columns * ages)
            for ages in (f, f, n, n, n, n)
        ]
        if self.model.share >= FULL:  # spot leaves no workers to on-demand
            modes[Mode.BOTH] = modes[Mode.SPOT]
        return modes

    def value(self, mode: Mode, age: int, work_h: float, spare_h: float, *, stays: bool = False) -> float:
        """Return the expected cost from one state on; below the safe moment all is on-demand."""
        place = _place(self.spares, spare_h)
        if place is None:
            return inf if stays else work_h
        row = min(bisect_right(self.works, work_h), WORK_STEPS) - 1
        column, _, step = place
        if self._columns[row + 1] < column + 2:
            for above in range(1, row + 2):
                self._extend(above, column + 2)
        values = (self.stay if stays else self.best)[mode]
        ages = len(self._off if mode <= Mode.OFF else self._on)
        width = len(self.spares) * ages
        low, high = row * width + column * ages + age, (row + 1) * width + column * ages + age
        lower = values[low] + (values[low + ages] - values[low]) * step
        upper = values[high] + (values[high + ages] - values[high]) * step
        return lower + (upper - lower) * (work_h - self.works[row]) / (self.works[row + 1] - self.works[row])

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
        first = self._columns[row]
        wait_before, off_before = (self._by_column(mode, row - 1, columns) for mode in (Mode.WAIT, Mode.OFF))
        none_before, on_before, spot_before, both_before = (
            self._by_column(mode, row - 1, columns) for mode in (Mode.NONE, Mode.ON, Mode.SPOT, Mode.BOTH)
        )
        waits, offs = (self._by_column(mode, row, first) for mode in (Mode.WAIT, Mode.OFF))
        nones, ons, spots, boths = (
            self._by_column(mode, row, first) for mode in (Mode.NONE, Mode.ON, Mode.SPOT, Mode.BOTH)
        )
        held_by_mode: list[list[float]] = [[] for _ in Mode]
        stay_wait, stay_off, stay_none, stay_on, stay_spot, stay_both = held_by_mode
        dears, never = [dear] * n, [NEVER] * n
        for column in range(first, columns):
            restart, pause = self._restarts[column], self._pauses[column]
            is_near = pause is not None and pause[1] == column
            # Of this column, what is read before it is computed.
            wait = _extrapolated(wait_before, waits, more)
            none = _extrapolated(none_before, nones, more)
            next_on = on_before[0][0] + more
            if column:
                next_on = on_before[column][0] + ons[-1][0] - on_before[column - 1][0]
            if is_near:
                spots.append(_extrapolated(spot_before, spots, more))
            spot_stops = both_stops = never
            if pause is not None:
                spot_stops = _between(spots, pause)
            if not is_full:
                if is_near:
                    boths.append(_extrapolated(both_before, boths, more))
                if pause is not None:
                    both_stops = _between(boths, pause)

            # After a loss of a part, so much of the value is the cell's own: its equation is solved for it.
            # Such losses are so frequent that they would otherwise keep the values near those of the start.
            nearest, rest = 0, 1.0
            if drops and is_near and pause is not None:
                nearest, rest = pause[0], 1 - (pause[2] or 1.0)

            # All on-demand without spot.
            value, off, held = 0.0, [0.0] * f, [0.0] * f
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
            lows, highs, part = dears, dears, 0.0
            if restart is not None:
                lows, highs, part = offs[restart[0]], offs[restart[1]], restart[2]
            lost_off = restart_h + (lows[0] + (highs[0] - lows[0]) * part)
            past, held = waits[-1] if column else wait, [0.0] * f
            changing = nones[-1][0] + none[0] if column else 0.0
            for age, older, same, changed, aged in self._waits_off[column]:
                value = start = restart_h + (lows[age] + (highs[age] - lows[age]) * part)
                if column:
                    value = same * past[age] + changed * changing
                    if older:
                        value += aged * (past[age + 1] + wait[age + 1])
                held[age] = value
                wait[age] = start if start < value else value
            waits.append(wait)
            stay_wait += held

            # All on-demand, while spot is to be had; spot joins while they train.
            value, next_off, on, held = 0.0, off[0], [0.0] * n, [0.0] * n
            done = on_before[column]
            for age, rate, older, rates in on_rates:
                value = 1.0 + chunk * done[age] + rate * next_off + older * value
                held[age] = value = value / rates
                start = start_spot_usd + spot_stops[age]
                if start < value:
                    value = start
                if not is_full:
                    start = beside_usd + both_stops[age]
                    if start < value:
                        value = start
                on[age] = value
            ons.append(on)
            stay_on += held

            # Spot, and on-demand for the rest of the workers; a loss of all spot leaves on-demand to start.
            if not is_full:
                lost = lost_off
                if restart is not None and other:
                    low, high, part = restart
                    again = start_both_usd + (boths[low][0] + (boths[high][0] - boths[low][0]) * part)
                    lost = other * min(again, lost) + (1 - other) * lost
                dropped = dears if pause is None else boths[nearest] if is_near else both_stops
                value, held, both = 0.0, [0.0] * n, [0.0] * n
                done = both_before[column]
                for age, rate, older, rates in on_rates:
                    following = older * value
                    value = both_usd + chunk * done[age] + rate * lost
                    if drops:
                        value += drops * (stop_both_usd + rest * dropped[age])
                    held[age] = value = (value + following) / (rates + drops * rest)
                    alone = stop_spot_usd + spot_stops[age]
                    if alone < value:
                        value = alone
                    both[age] = value
                boths[column:] = [both]
                stay_both += held
                both_restarts = never if restart is None else _between(boths, restart)

            # Spot alone; what it lacks of all workers spends spare time.
            lows, highs, part = dears, dears, 0.0
            if restart is not None:
                lows, highs, part = ons[restart[0]], ons[restart[1]], restart[2]
            lost = wait[0] if wait[0] < lost_off else lost_off
            if other:
                again = restart_h + (lows[0] + (highs[0] - lows[0]) * part)
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
                dropped = dears if pause is None else spots[nearest] if is_near else spot_stops
                value, spent, held, spot = 0.0, spots[column - 1] if column else never, [0.0] * n, [0.0] * n
                done = spot_before[column]
                for age, rate, older, _ in on_rates:
                    following = older * value
                    value = spot_usd + gain * done[age] + rate * lost
                    if drops:
                        value += drops * (stop_spot_usd + rest * dropped[age])
                    if spend:
                        value += spend * spent[age]
                    held[age] = value = (value + following) / (gain + rate + older + drops * rest + spend)
                    if filled[age] < value:
                        value = filled[age]
                    spot[age] = value
            else:
                spot = held = filled
            spots[column:] = [spot]
            stay_spot += held

            # Nothing yet, while spot is to be had.
            spot_restarts = never if restart is None else _between(spots, restart)
            none = [0.0] * n
            for age in range(n):
                start = restart_h + (lows[age] + (highs[age] - lows[age]) * part)
                onto = start_spot_usd + spot_restarts[age]
                if onto < start:
                    start = onto
                if not is_full:
                    onto = start_both_usd + both_restarts[age]
                    if onto < start:
                        start = onto
                none[age] = start
            nones.append(none)
            stay_none += none
        for mode, by_column in zip(Mode, (waits, offs, nones, ons, spots, boths), strict=True):
            if mode is not Mode.BOTH or not is_full:
                ages = len(by_column[0])
                begin, end = ((row * len(self.spares) + column) * ages for column in (first, columns))
                self.best[mode][begin:end] = array("d", chain.from_iterable(by_column[first:]))
                self.stay[mode][begin:end] = array("d", held_by_mode[mode])
        self._columns[row] = columns

    def _by_column(self, mode: Mode, row: int, columns: int) -> list[list[float]]:
        """Return the first columns of a row, which are faster to read so."""
        ages = len(self._off if mode <= Mode.OFF else self._on)
        begin = row * len(self.spares) * ages
        flat = self.best[mode][begin : begin + columns * ages].tolist()
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


# Tables of one job share what follows.


def _rates(hazard: Hazard, factor: float) -> Rates:
    ageing = hazard.ageing()
    return tuple([(factor * hourly, older) for hourly, older in zip(hazard.hourly, ageing, strict=True)])


def _place(spares: Sequence[float], spare_h: float) -> Place | None:
    """Return the place of some spare time; None below the safe moment."""
    if spare_h < 0:
        return None
    column = min(bisect_right(spares, spare_h), len(spares) - 1) - 1
    begin = spares[column]
    part = min(1.0, (spare_h - begin) / (spares[column + 1] - begin))
    return column, column + 1 if part else column, part


@lru_cache(maxsize=TABLES_KEPT)
def _places(spares: tuple[float, ...], lost_h: float) -> Sequence[Place | None]:
    """Return the place of each column after a loss of time."""
    return [_place(spares, spare_h - lost_h) for spare_h in spares]


@lru_cache(maxsize=TABLES_KEPT)
def _waits(rates: Rates, spares: tuple[float, ...]) -> Sequence[Sequence[Step]]:
    """Return what happens in the step of waiting that ends in each column, by class of age, oldest first."""
    columns = []
    for step_h in (0.0, *(end - begin for begin, end in pairwise(spares))):
        steps = []
        for age in range(len(rates) - 1, -1, -1):
            rate, older = rates[age]
            same = exp(-(rate + older) * step_h)
            changed = rate / (rate + older) * (1 - same)
            steps.append((age, older, same, changed / 2, (1 - same - changed) / 2 if older else 0.0))
        columns.append(steps)
    return columns
