"""What the rest of a run costs: dynamic programming over a Markov model of spot.

A state is what runs, the class of age of the spell with or without spot capacity, the work left and the spare
time. All workers together count as one of size 1. While spot is to be had, it gives a `share` of them; it
takes back all of that at once at the end of a spell, or a few at `drops` an hour, which stops all.

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

from dlcloud.scheduling.spells import ending_rate

WORK_STEPS = 12
SPARE_STEPS = 40
CURVE = 1.5
"""The grid. A step is e^CURVE times as long at its end as at the end of the work, or the safe moment. The
equations of one grid point depend on each other; one pass from an extrapolated start is as good in replays as
several."""
ON_EDGES_H = (1 / 6, 1 / 2, 3 / 2, 6.0)
ON_AGES_H = (1 / 12, 1 / 3, 1.0, 3.0, 10.0)
OFF_EDGES_H = (1 / 2, 2.0)
OFF_AGES_H = (0.15, 1.0, 4.0)
"""Classes of age, and the age that stands for each, in hours: older spells end less often."""
TABLES_KEPT = 1024
FULL = 0.999
"""A larger share is all."""

Values = list[list[float]]
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
        median_on_h: Of a spell with capacity; how often one ends, by its age: `ending_rate`.
        median_off_h: Of a spell without, until any pool has some.
        other: Probability that another pool has capacity when the one in use ends.
        share: Of the workers, what spot gives while it lasts.
        drops: Losses of a part of it, and joins after them, an hour.
        spot_usd: An hour of all workers.
        changeover_h: For so long all stop.
        boot_h: Before a new instance joins; billed.
        work_h: All the work, on all workers.
        spare_h: Spare time at the start, beyond the safe moment.
    """

    median_on_h: float
    median_off_h: float
    other: float
    share: float
    drops: float
    spot_usd: float
    changeover_h: float
    boot_h: float
    work_h: float
    spare_h: float


def age_class(age_h: float, edges: Sequence[float]) -> int:
    """Return the class of an age."""
    return sum([age_h >= edge for edge in edges])


@lru_cache(maxsize=TABLES_KEPT)
def value_table(model: MarkovModel) -> "ValueTable":
    """Return the table of a model; the newest ones are kept."""
    return ValueTable(model)


class ValueTable:
    """Expected cost to the end of the run.

    `best[mode]` is that of the best decisions from now on; `stay[mode]` that of changing nothing until
    something happens. Rows are by work left.
    """

    def __init__(self, model: MarkovModel) -> None:
        self.model = model
        self.works = [
            model.work_h * expm1(CURVE * row / WORK_STEPS) / expm1(CURVE) for row in range(WORK_STEPS + 1)
        ]
        self.chunk_h = 0.0
        scale = model.spare_h / expm1(CURVE)
        self.spares = [scale * expm1(CURVE * step / SPARE_STEPS) for step in range(SPARE_STEPS + 1)]
        self._on = _rates(model.median_on_h, ON_AGES_H, ON_EDGES_H)
        self._off = _rates(model.median_off_h, OFF_AGES_H, OFF_EDGES_H)
        self._restarts = [self._place(s - model.changeover_h - model.boot_h) for s in self.spares]
        self._pauses = [self._place(s - model.changeover_h) for s in self.spares]
        width = [len(OFF_AGES_H)] * 2 + [len(ON_AGES_H)] * 4
        self.best: list[list[Values]] = [[[[0.0] * n for _ in self.spares] for n in width]]
        self.stay: list[list[Values]] = [[[[0.0] * n for _ in self.spares] for n in width]]
        for row in range(1, WORK_STEPS + 1):
            self._add_row(row)

    def value(self, mode: Mode, age: int, work_h: float, spare_h: float, *, stays: bool = False) -> float:
        """Return the expected cost from one state on; below the safe moment all is on-demand."""
        place = self._place(spare_h)
        if place is None:
            return inf if stays else work_h
        rows = self.stay if stays else self.best
        row = min(bisect_right(self.works, work_h) - 1, WORK_STEPS - 1)
        part = (work_h - self.works[row]) / (self.works[row + 1] - self.works[row])
        low = _at(rows[row][mode], place, age)
        high = _at(rows[row + 1][mode], place, age)
        return low if low == high else low + (high - low) * part

    def _place(self, spare_h: float) -> Place | None:
        """Return the place of some spare time; None below the safe moment."""
        if spare_h < 0:
            return None
        spares, low, high = self.spares, 0, SPARE_STEPS
        if spare_h >= spares[high]:
            return high - 1, 1.0
        while high - low > 1:
            middle = (low + high) // 2
            if spares[middle] <= spare_h:
                low = middle
            else:
                high = middle
        return low, (spare_h - spares[low]) / (spares[high] - spares[low])

    def _add_row(self, row: int) -> None:
        """Compute the values of a chunk more of work, from little spare time to much."""
        self.chunk_h = self.works[row] - self.works[row - 1]
        before = self.best[-1]
        best: list[Values] = [[list(ages) for ages in values] for values in before]
        stay: list[Values] = [[list(ages) for ages in values] for values in before]
        self.best.append(best)
        self.stay.append(stay)
        for column in range(SPARE_STEPS + 1):
            for values, old in zip(best, before, strict=True):
                values[column] = (
                    [
                        a + b - c
                        for a, b, c in zip(old[column], values[column - 1], old[column - 1], strict=True)
                    ]
                    if column
                    else [value + self.chunk_h for value in old[0]]
                )
            self._relax(row, column)

    def _relax(self, row: int, column: int) -> None:
        """Go once through the equations of one grid point."""
        best, stay, before = self.best[row], self.stay[row], self.best[row - 1]
        dear = self.works[row]
        self._without_spot(best, stay, before, column, dear)
        self._on_demand(best, stay, before, column)
        if self.model.share < FULL:
            self._spot_and_on_demand(best, stay, before, column, dear)
        self._spot_alone(best, stay, before, column, dear)
        if self.model.share >= FULL:
            best[Mode.BOTH][column], stay[Mode.BOTH][column] = (
                best[Mode.SPOT][column],
                stay[Mode.SPOT][column],
            )
        self._idle(best, stay, column, dear)

    def _started(self, best: list[Values], mode: Mode, age: int, column: int, dear: float) -> float:
        """Return the cost of starting on-demand from nothing; below the safe moment it stays to the end."""
        place = self._restarts[column]
        rest = dear if place is None else _at(best[mode], place, age)
        return self.model.changeover_h + self.model.boot_h + rest

    def _without_spot(
        self, best: list[Values], stay: list[Values], before: list[Values], column: int, dear: float
    ) -> None:
        off, wait = best[Mode.OFF][column], best[Mode.WAIT][column]
        chunk = 1 / self.chunk_h
        for age in range(len(off) - 1, -1, -1):
            rate, ageing = self._off[age]
            value = 1.0 + chunk * before[Mode.OFF][column][age] + rate * best[Mode.ON][column][0]
            value += ageing * off[age + 1] if ageing else 0.0
            value /= chunk + rate + ageing
            stay[Mode.OFF][column][age] = value
            off[age] = min(value, wait[age])
            waiting = self._waited(best, (Mode.WAIT, Mode.IDLE), column, age, (rate, ageing))
            stay[Mode.WAIT][column][age] = waiting
            wait[age] = min(waiting, self._started(best, Mode.OFF, age, column, dear))

    def _waited(
        self,
        best: list[Values],
        modes: tuple[Mode, Mode],
        column: int,
        age: int,
        rates: tuple[float, float],
    ) -> float:
        """Return the cost after one step of spare time without a worker; events are midway."""
        if not column:
            return inf
        rate, ageing = rates
        step = self.spares[column] - self.spares[column - 1]
        same = exp(-(rate + ageing) * step)
        changed = rate / (rate + ageing) * (1 - same)
        own, other = best[modes[0]], best[modes[1]]
        value = same * own[column - 1][age] + changed * (other[column - 1][0] + other[column][0]) / 2
        if ageing:
            value += (1 - same - changed) * (own[column - 1][age + 1] + own[column][age + 1]) / 2
        return value

    def _after_loss(self, best: list[Values], column: int, dear: float) -> float:
        """Return the cost from the end of a spell on, if spot ran alone."""
        model, place = self.model, self._restarts[column]
        lost = min(best[Mode.WAIT][column][0], self._started(best, Mode.OFF, 0, column, dear))
        if not model.other:
            return lost
        again = self._started(best, Mode.ON, 0, column, dear)
        if place is not None:
            usd = (model.changeover_h + model.boot_h) * model.spot_usd * model.share
            again = min(again, usd + _at(best[Mode.SPOT], place, 0))
        return model.other * again + (1 - model.other) * lost

    def _on_demand(self, best: list[Values], stay: list[Values], before: list[Values], column: int) -> None:
        """All on-demand, while spot is to be had; it joins while they train."""
        model, place, chunk = self.model, self._pauses[column], 1 / self.chunk_h
        on, usd = best[Mode.ON][column], model.spot_usd * model.share
        joined = (model.boot_h + model.changeover_h) * usd
        for age in range(len(on) - 1, -1, -1):
            rate, ageing = self._on[age]
            value = 1.0 + chunk * before[Mode.ON][column][age] + rate * best[Mode.OFF][column][0]
            value += ageing * on[age + 1] if ageing else 0.0
            value /= chunk + rate + ageing
            stay[Mode.ON][column][age] = value
            on[age] = min(value, best[Mode.IDLE][column][age])
            if place is not None:
                beside = model.changeover_h * (1 - model.share) + _at(best[Mode.BOTH], place, age)
                on[age] = min(on[age], joined + min(beside, _at(best[Mode.SPOT], place, age)))

    def _spot_and_on_demand(
        self, best: list[Values], stay: list[Values], before: list[Values], column: int, dear: float
    ) -> None:
        model, chunk = self.model, 1 / self.chunk_h
        both, pause = best[Mode.BOTH][column], self._pauses[column]
        hourly = model.spot_usd * model.share + 1 - model.share
        lost = self._started(best, Mode.OFF, 0, column, dear)
        place = self._restarts[column]
        if place is not None and model.other:
            again = (model.changeover_h + model.boot_h) * hourly + _at(best[Mode.BOTH], place, 0)
            lost = model.other * min(again, lost) + (1 - model.other) * lost
        for age in range(len(both) - 1, -1, -1):
            rate, ageing = self._on[age]
            dropped = model.changeover_h * hourly + (
                dear if pause is None else _at(best[Mode.BOTH], pause, age)
            )
            value = hourly + chunk * before[Mode.BOTH][column][age] + rate * lost + model.drops * dropped
            value += ageing * both[age + 1] if ageing else 0.0
            value /= chunk + rate + ageing + model.drops
            stay[Mode.BOTH][column][age] = both[age] = value
            if pause is not None:
                alone = model.changeover_h * model.spot_usd * model.share + _at(best[Mode.SPOT], pause, age)
                both[age] = min(value, alone)

    def _spot_alone(
        self,
        best: list[Values],
        stay: list[Values],
        before: list[Values],
        column: int,
        dear: float,
    ) -> None:
        """Spot alone; what it lacks of all workers spends spare time."""
        model, spot = self.model, best[Mode.SPOT][column]
        pause, hourly = self._pauses[column], model.spot_usd * model.share
        lost = self._after_loss(best, column, dear)
        chunk, spend, column_before = model.share / self.chunk_h, 0.0, max(0, column - 1)
        is_full = model.share >= FULL
        if column and not is_full:
            spend = (1 - model.share) / (self.spares[column] - self.spares[column_before])
        for age in range(len(spot) - 1, -1, -1):
            rate, ageing = self._on[age]
            value = inf
            if is_full or column:
                dropped = model.changeover_h * hourly
                dropped += dear if pause is None else _at(best[Mode.SPOT], pause, age)
                value = hourly + chunk * before[Mode.SPOT][column][age] + rate * lost
                value += model.drops * dropped + spend * best[Mode.SPOT][column_before][age]
                value += ageing * spot[age + 1] if ageing else 0.0
                value /= chunk + rate + ageing + model.drops + spend
            stay[Mode.SPOT][column][age] = spot[age] = value
            if not is_full:
                spot[age] = min(value, self._filled(best, column, age, dear))

    def _filled(self, best: list[Values], column: int, age: int, dear: float) -> float:
        """Return the cost of adding on-demand for what spot lacks."""
        model, place = self.model, self._restarts[column]
        usd = (model.boot_h + model.changeover_h) * (1 - model.share)
        usd += model.changeover_h * model.spot_usd * model.share
        return usd + (dear if place is None else _at(best[Mode.BOTH], place, age))

    def _idle(self, best: list[Values], stay: list[Values], column: int, dear: float) -> None:
        """Nothing, while spot is to be had."""
        model, place = self.model, self._restarts[column]
        idle, usd = best[Mode.IDLE][column], model.spot_usd * model.share
        restart_h = model.changeover_h + model.boot_h
        for age in range(len(idle) - 1, -1, -1):
            waiting = self._waited(best, (Mode.IDLE, Mode.WAIT), column, age, self._on[age])
            stay[Mode.IDLE][column][age] = waiting
            idle[age] = min(waiting, self._started(best, Mode.ON, age, column, dear))
            if place is not None:
                beside = restart_h * (1 - model.share) + _at(best[Mode.BOTH], place, age)
                alone = _at(best[Mode.SPOT], place, age)
                idle[age] = min(idle[age], restart_h * usd + min(beside, alone))


def _at(values: Values, place: Place, age: int) -> float:
    column, part = place
    low = values[column][age]
    return low + (values[column + 1][age] - low) * part if part else low


def _rates(median_h: float, ages_h: Sequence[float], edges_h: Sequence[float]) -> list[tuple[float, float]]:
    """Return, by class of age, how often an hour a spell ends, and how often it gets into the next class."""
    ageing = [1 / (end - begin) for begin, end in pairwise((0.0, *edges_h))]
    return [(ending_rate(median_h, age), older) for age, older in zip(ages_h, [*ageing, 0.0], strict=True)]
