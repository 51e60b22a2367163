"""What the rest of a run costs: dynamic programming over a Markov model of spot.

A state is what runs, the class of age of the spell with or without spot capacity, the work left and the spare
time. All workers together count as one of size 1. While spot is to be had, it gives a `share` of them; it
takes back all of that together at the end of a spell, or a few at `drops` an hour, which stops all.

Work is done in chunks of exponentially distributed size (implicit differences), spare time is spent in steps.
Source: Kushner and Dupuis, "Numerical Methods for Stochastic Control Problems in Continuous Time", chapter 5.
"""

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
LEAST_STEPS = 40
"""With several pools, or losses of a part of spot, a decision may need two tables, which take longer: they
have 5 steps for an hour of spare time, but at least this many."""
TABLES_KEPT = 1024
FULL = 0.999
"""A larger share is all."""

Values = Sequence[Sequence[float]]
"""By column of spare time, then by class of age: USD."""
Place = tuple[int, float]
"""A column, and the part of the way to the next one."""


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
    something happens. Rows are by work left, and are computed when they are asked for. All values are finite:
    without spare time, to change nothing costs what has to follow immediately.
    """

    def __init__(self, model: MarkovModel) -> None:
        self.model = model
        is_plain = model.share >= FULL and not model.drops and not model.other
        self.steps = SPARE_STEPS if is_plain else min(SPARE_STEPS, max(LEAST_STEPS, round(5 * model.spare_h)))
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
        self._waits_off = [[_one_step(rates, step) for rates in self._off] for step in steps]
        self._waits_on = [[_one_step(rates, step) for rates in self._on] for step in steps]
        width = [len(OFF.hourly)] * 2 + [len(ON.hourly)] * 4
        self.best: list[list[Values]] = [[[(0.0,) * n] * len(self.spares) for n in width]]
        self.stay: list[list[Values]] = [[[(0.0,) * n] * len(self.spares) for n in width]]

    def value(self, mode: Mode, age: int, work_h: float, spare_h: float, *, stays: bool = False) -> float:
        """Return the expected cost from one state on; below the safe moment all is on-demand."""
        place = self._place(spare_h)
        if place is None:
            return inf if stays else work_h
        row = min(bisect_right(self.works, work_h) - 1, WORK_STEPS - 1)
        while len(self.best) <= row + 1:
            self._add_row(len(self.best))
        rows = self.stay if stays else self.best
        part = (work_h - self.works[row]) / (self.works[row + 1] - self.works[row])
        column, step = place
        lower, upper = rows[row][mode], rows[row + 1][mode]
        low = lower[column][age] + (lower[column + 1][age] - lower[column][age]) * step
        high = upper[column][age] + (upper[column + 1][age] - upper[column][age]) * step
        return low + (high - low) * part

    def _place(self, spare_h: float) -> Place | None:
        """Return the place of some spare time; None below the safe moment."""
        if spare_h < 0:
            return None
        column = min(bisect_right(self.spares, spare_h) - 1, self.steps - 1)
        step = self.spares[column + 1] - self.spares[column]
        return column, min(1.0, (spare_h - self.spares[column]) / step)

    def _add_row(self, row: int) -> None:
        """Compute the values of a chunk more of work, from little spare time to much.

        Once through the equations of each grid point, from a start that is extrapolated. One long function,
        since it runs for hundreds of grid points of a table, and a decision waits for it.
        """
        model, dear = self.model, self.works[row]
        chunk = 1 / (dear - self.works[row - 1])
        before = self.best[row - 1]
        best: list[list[list[float]]] = [[] for _ in before]
        stay: list[list[list[float]]] = [[] for _ in before]
        share, drops, other = model.share, model.drops, model.other
        is_full = share >= FULL
        changeover_h, restart_h = model.changeover_h, model.changeover_h + model.boot_h
        spot_usd = model.spot_usd * share
        both_usd = spot_usd + 1 - share
        filled_usd = restart_h * (1 - share) + changeover_h * spot_usd
        offs, ons = self._off, self._on
        off_ages, on_ages = range(len(offs) - 1, -1, -1), range(len(ons) - 1, -1, -1)
        waits, idles, spots, demands = best[Mode.WAIT], best[Mode.IDLE], best[Mode.SPOT], best[Mode.ON]
        for column in range(self.steps + 1):
            for values, stays, old in zip(best, stay, before, strict=True):
                now = old[column]
                if column:
                    values.append(
                        [a + b - c for a, b, c in zip(now, values[-1], old[column - 1], strict=True)]
                    )
                else:
                    values.append([value + 1 / chunk for value in now])
                stays.append(list(now))
            restart, pause = self._restarts[column], self._pauses[column]
            off, wait, on = best[Mode.OFF][column], waits[column], demands[column]
            idle, spot, both = idles[column], spots[column], best[Mode.BOTH][column]

            # All on-demand without spot.
            before_now, held = before[Mode.OFF][column], stay[Mode.OFF][column]
            for age in off_ages:
                rate, older = offs[age]
                value = 1.0 + chunk * before_now[age] + rate * on[0]
                if older:
                    value += older * off[age + 1]
                held[age] = value = value / (chunk + rate + older)
                off[age] = min(value, wait[age])

            # Nothing, while a step of spare time passes; events are midway.
            waiting = stay[Mode.WAIT][column]
            started = [dear + restart_h] * len(off)
            if restart is not None:
                started = _at(best[Mode.OFF], restart, restart_h)
            for age in off_ages:
                if not column:
                    waiting[age] = wait[age] = started[age]
                    continue
                same, changed, aged = self._waits_off[column][age]
                value = same * waits[column - 1][age] + changed * (idles[column - 1][0] + idle[0])
                if aged:
                    value += aged * (waits[column - 1][age + 1] + wait[age + 1])
                waiting[age] = value
                wait[age] = min(value, started[age])

            # All on-demand, while spot is to be had; spot joins while they train.
            before_now, held = before[Mode.ON][column], stay[Mode.ON][column]
            joined = None
            if pause is not None:
                beside_usd = (restart_h) * spot_usd + changeover_h * (1 - share)
                joined = _at(spots, pause, restart_h * spot_usd)
                if not is_full:
                    joined = list(map(min, joined, _at(best[Mode.BOTH], pause, beside_usd)))
            for age in on_ages:
                rate, older = ons[age]
                value = 1.0 + chunk * before_now[age] + rate * off[0]
                if older:
                    value += older * on[age + 1]
                held[age] = value = value / (chunk + rate + older)
                if joined is not None and joined[age] < value:
                    value = joined[age]
                on[age] = min(idle[age], value)

            # Spot, and on-demand for the rest of the workers; a loss of all spot leaves on-demand to start.
            lost_off = restart_h + (dear if restart is None else _at(best[Mode.OFF], restart)[0])
            if not is_full:
                lost = lost_off
                if restart is not None and other:
                    again = restart_h * both_usd + _at(best[Mode.BOTH], restart)[0]
                    lost = other * min(again, lost) + (1 - other) * lost
                before_now, held = before[Mode.BOTH][column], stay[Mode.BOTH][column]
                dropped = None if pause is None else _at(best[Mode.BOTH], pause)
                alone = None if pause is None else _at(spots, pause, changeover_h * spot_usd)
                for age in on_ages:
                    rate, older = ons[age]
                    value = both_usd + chunk * before_now[age] + rate * lost
                    if drops:
                        value += drops * (
                            changeover_h * both_usd + (dear if dropped is None else dropped[age])
                        )
                    if older:
                        value += older * both[age + 1]
                    held[age] = value = value / (chunk + rate + older + drops)
                    both[age] = value if alone is None or value < alone[age] else alone[age]

            # Spot alone; what it lacks of all workers spends spare time.
            lost = min(wait[0], lost_off)
            if other:
                again = restart_h + (dear if restart is None else _at(demands, restart)[0])
                if restart is not None:
                    again = min(again, restart_h * spot_usd + _at(spots, restart)[0])
                lost = other * again + (1 - other) * lost
            before_now, held = before[Mode.SPOT][column], stay[Mode.SPOT][column]
            spend = 0.0
            if column and not is_full:
                spend = (1 - share) / (self.spares[column] - self.spares[column - 1])
                spent = spots[column - 1]
            dropped = None if pause is None else _at(spots, pause)
            filled = None
            if not is_full:
                filled = [dear + filled_usd] * len(spot)
                if restart is not None:
                    filled = _at(best[Mode.BOTH], restart, filled_usd)
            for age in on_ages:
                if filled is not None and not column:
                    held[age] = spot[age] = filled[age]
                    continue
                rate, older = ons[age]
                value = spot_usd + chunk * share * before_now[age] + rate * lost
                if drops:
                    value += drops * (changeover_h * spot_usd + (dear if dropped is None else dropped[age]))
                if spend:
                    value += spend * spent[age]
                if older:
                    value += older * spot[age + 1]
                held[age] = value = value / (chunk * share + rate + older + drops + spend)
                spot[age] = value if filled is None or value < filled[age] else filled[age]
            if is_full:
                best[Mode.BOTH][column], stay[Mode.BOTH][column] = spot, held

            # Nothing, while spot is to be had.
            waiting = stay[Mode.IDLE][column]
            started = [dear + restart_h] * len(on)
            if restart is not None:
                started = list(
                    map(min, _at(demands, restart, restart_h), _at(spots, restart, restart_h * spot_usd))
                )
                if not is_full:
                    started = list(map(min, started, _at(best[Mode.BOTH], restart, restart_h * both_usd)))
            for age in on_ages:
                if not column:
                    waiting[age] = idle[age] = started[age]
                    continue
                same, changed, aged = self._waits_on[column][age]
                value = same * idles[column - 1][age] + changed * (waits[column - 1][0] + wait[0])
                if aged:
                    value += aged * (idles[column - 1][age + 1] + idle[age + 1])
                waiting[age] = value
                idle[age] = min(started[age], value)
        # Tuples of numbers, unlike lists, are none of the garbage collector's business.
        self.best.append([[tuple(ages) for ages in values] for values in best])
        self.stay.append([[tuple(ages) for ages in values] for values in stay])


def _at(values: Values, place: Place, more: float = 0.0) -> list[float]:
    """Return, by class of age, the values at a place, and `more`."""
    column, part = place
    lower = values[column]
    if not part:
        return [more + low for low in lower] if more else list(lower)
    return [more + low + (high - low) * part for low, high in zip(lower, values[column + 1], strict=True)]


def _one_step(rates: tuple[float, float], step_h: float) -> tuple[float, float, float]:
    """Return the probability that nothing happens in a step, and half of those of a change and of ageing."""
    rate, older = rates
    same = exp(-(rate + older) * step_h)
    changed = rate / (rate + older) * (1 - same)
    return same, changed / 2, (1 - same - changed) / 2 if older else 0.0
