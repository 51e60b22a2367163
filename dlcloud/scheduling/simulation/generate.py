"""Traces that are made up: random ones, and the worst cases for a deadline."""

import random
from dataclasses import dataclass
from enum import StrEnum

from dlcloud.scheduling.policies.situation import HOUR_S
from dlcloud.scheduling.simulation.trace import PoolTrace, Window, from_changes

MEAN_UP_H = 1.2
MEAN_DOWN_H = 1.5
"""Mean lengths of spells with and without spot capacity, in hours.

Source: about the means of the V100 traces of Wu et al., "Can't Be Late", NSDI 2024 (us-west-2, 2022).
"""
TICK_S = 600.0
ALL_OR_NONE = 0.1
"""Of the changes of partial capacity, those to none or to all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A pool that is on and off in turn, for exponentially distributed times."""

    up_h: float = MEAN_UP_H
    down_h: float = MEAN_DOWN_H
    count: int = 1


def generate_window(seed: int, *, hours: float, pools: int = 1, rates: Rates | None = None) -> Window:
    """Return a window of independent pools; the same for the same arguments."""
    chosen = rates or Rates()
    traces = tuple(_on_and_off(f"pool-{which}", f"{seed}/{which}", hours, chosen) for which in range(pools))
    return Window(name=f"seed-{seed}", pools=traces)


def generate_partial_window(
    seed: int, *, hours: float, pools: int = 3, count: int = 16, changes_per_h: float = 2.0
) -> Window:
    """Return a window of pools that give 0 to `count` instances, and a few more or fewer at each change.

    One change in ten is to none or to all; the times between changes are exponentially distributed.
    """
    traces = tuple(
        _partial(f"pool-{which}", f"{seed}/{which}/partial", hours, count, changes_per_h)
        for which in range(pools)
    )
    return Window(name=f"partial-{seed}", pools=traces)


def _partial(name: str, seed: str, hours: float, count: int, changes_per_h: float) -> PoolTrace:
    source = random.Random(seed)  # noqa: S311  a simulation, no secret
    number, at_s = source.randint(0, count), 0.0
    changes = [(0.0, number)]
    while at_s < hours * HOUR_S:
        at_s += source.expovariate(changes_per_h / HOUR_S)
        moved = number + source.choice((-4, -2, -1, 1, 2, 4))
        following = source.choice((0, count)) if source.random() < ALL_OR_NONE else min(count, max(0, moved))
        changes.append((at_s, following - number))
        number = following
    return from_changes(name, [change for change in changes if change[0] < hours * HOUR_S], hours * HOUR_S)


def _on_and_off(name: str, seed: str, hours: float, rates: Rates) -> PoolTrace:
    source = random.Random(seed)  # noqa: S311  a simulation, no secret
    end_s = hours * HOUR_S
    is_up = source.random() < rates.up_h / (rates.up_h + rates.down_h)
    at_s = 0.0
    starts, counts = [], []
    while at_s < end_s:
        starts.append(at_s)
        counts.append(rates.count if is_up else 0)
        mean_h = rates.up_h if is_up else rates.down_h
        at_s += source.expovariate(1.0 / (mean_h * HOUR_S))
        is_up = not is_up
    return PoolTrace(name=name, starts_s=tuple(starts), counts=tuple(counts), end_s=end_s)


class Adversary(StrEnum):
    """A trace that is against the policy."""

    NEVER = "never"
    VANISHES = "vanishes"
    FLAPS = "flaps"


def adversarial_windows(*, hours: float, count: int = 1, tick_s: float = TICK_S) -> list[Window]:
    """Return windows without spot, with spot that ends for good after each hour, and with spot that flaps."""
    windows = [_window(Adversary.NEVER, "0", [0.0], [0], hours)]
    windows += [
        _window(Adversary.VANISHES, str(after), [0.0, after * HOUR_S], [count, 0], hours)
        for after in range(1, int(hours))
    ]
    for ticks in (1, 2, 3, 6):
        starts = [place * tick_s * ticks for place in range(int(hours * HOUR_S / (tick_s * ticks)))]
        for first in (0, 1):
            counts = [count * ((place + first) % 2) for place in range(len(starts))]
            windows.append(_window(Adversary.FLAPS, f"{ticks}-{first}", starts, counts, hours))
    return windows


def _window(kind: Adversary, name: str, starts: list[float], counts: list[int], hours: float) -> Window:
    trace = PoolTrace(name="pool-0", starts_s=tuple(starts), counts=tuple(counts), end_s=hours * HOUR_S)
    return Window(name=f"{kind}-{name}", pools=(trace,))
