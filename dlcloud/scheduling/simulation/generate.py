"""Traces that are made up: random ones, the worst cases for a deadline, and capacity for a price history."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import pairwise

from dlcloud.model.instance import Price
from dlcloud.scheduling.policies.situation import HOUR_S
from dlcloud.scheduling.simulation.traces import PoolTrace, Window, from_changes

MEAN_UP_H = 2.4
MEAN_DOWN_H = 1.9
"""Mean lengths of spells with and without spot capacity, in hours.

Source: all spells of the 17 recordings of Wu et al. (skypilot-org/spot-traces, October 2022 and February
2023), of each the half on which constants are chosen (docs/deadlines.md). In the other half they are 2.8 and
1.6 h. The four V100 pools of October 2022 alone have 1.1 and 1.2 h, and 1.9 and 1.0 h.
"""
AVAILABILITY = MEAN_UP_H / (MEAN_UP_H + MEAN_DOWN_H)
"""The assumed share of the time in which a pool has capacity, where nothing is known."""
CYCLE_H = MEAN_UP_H + MEAN_DOWN_H
"""The assumed mean time from the beginning of a spell with capacity to that of the next."""
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


def history_windows(
    history: Sequence[Price],
    *,
    hours: float,
    end: datetime,
    shares: Mapping[str, float],
    count: int,
    number: int,
) -> list[Window]:
    """Return windows with the prices of a spot price history, and capacity that is made up.

    A price history says nothing of capacity: each pool is on and off in turn, for exponentially distributed
    times, so that it is on for its share of the time; the same for the same arguments.

    Args:
        history: Prices with their zones and times.
        hours: The length of a window.
        end: That of the history.
        shares: By zone: the share of the time, 0 to 1; AVAILABILITY of a zone that is not named.
        count: Instances that a pool gives while it is on.
        number: Windows; their starts are spread evenly over the history.
    """
    begin = min(price.as_of for price in history)
    room_s = max(0.0, (end - begin).total_seconds() - hours * HOUR_S)
    starts = [room_s * i / max(1, number - 1) for i in range(number)]
    pools = {(price.zone, price.instance_type) for price in history}
    windows = []
    for which, start_s in enumerate(starts):
        traces = []
        for zone, instance_type in sorted(pools):
            prices = sorted(
                ((p.as_of - begin).total_seconds() - start_s, float(p.hourly_usd))
                for p in history
                if (p.zone, p.instance_type) == (zone, instance_type)
            )
            name = f"{zone} {instance_type}"
            spells = _spells(f"{which}/{name}", hours, shares.get(zone, AVAILABILITY))
            traces.append(_merge(name, prices, spells, count=count, end_s=hours * HOUR_S))
        windows.append(Window(name=f"from hour {start_s / HOUR_S:.0f}", pools=tuple(traces)))
    return windows


def _spells(seed: str, hours: float, share: float) -> list[tuple[float, bool]]:
    """Return when a pool becomes on or off, in seconds."""
    if share >= 1 or share <= 0:
        return [(0.0, share >= 1)]
    source = random.Random(seed)  # noqa: S311  a simulation, no secret
    is_on, at_s, spells = source.random() < share, 0.0, []
    while at_s < hours * HOUR_S:
        spells.append((at_s, is_on))
        mean_h = CYCLE_H * (share if is_on else 1 - share)
        at_s += source.expovariate(1 / (mean_h * HOUR_S))
        is_on = not is_on
    return spells


def _merge(
    name: str,
    prices: Sequence[tuple[float, float]],
    spells: Sequence[tuple[float, bool]],
    *,
    count: int,
    end_s: float,
) -> PoolTrace:
    """Return the trace of changing prices and changing capacity."""
    changes = sorted({0.0, *(at_s for at_s, _ in (*prices, *spells) if 0 < at_s < end_s)})
    values = []
    for at_s in changes:
        price = next((usd for begin_s, usd in reversed(prices) if begin_s <= at_s), prices[0][1])
        is_on = next(on for begin_s, on in reversed(spells) if begin_s <= at_s)
        values.append((count if is_on else 0, price))
    kept = [0, *(i for i, (before, after) in enumerate(pairwise(values), start=1) if before != after)]
    return PoolTrace(
        name=name,
        starts_s=tuple(changes[i] for i in kept),
        counts=tuple(values[i][0] for i in kept),
        prices=tuple(values[i][1] for i in kept),
        end_s=end_s,
    )


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
