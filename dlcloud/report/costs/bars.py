"""Sorted bars: what a million items cost on each type, and what clusters and days cost."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from dlcloud.model.instance import Market
from dlcloud.model.money import money
from dlcloud.report.cells import marked, setting
from dlcloud.report.chart import (
    BLUE,
    DESCRIPTION,
    GREY,
    ROW_PX,
    TEXT,
    Chart,
    Spec,
    field,
    nominal,
    title_of,
)
from dlcloud.results.cost import ResultRow
from dlcloud.results.ranking import By, rank
from dlcloud.results.spending import ClusterCost, costs_by_day

MOST_BARS = 20
ROOM = 1.45
"""The share by which the axis is longer than the longest bar: room for the text behind it."""


def cost_bars(rows: Sequence[ResultRow], market: Market, place: int) -> list[Chart]:
    """Return the costs of a case as bars, the cheapest first: of each type its cheapest setting.

    Of several rehearsed types there is none: they were measured on one machine.
    """
    priced = [row for row in rank(rows, By.COST, market) if row.usd_per_million(market) is not None]
    types = list(dict.fromkeys(row.run.instance_type for row in priced))
    if not priced or (priced[0].rehearsal and len(types) > 1):
        return []
    first_of_type = {row.run.instance_type: row for row in reversed(priced)}
    bars = [first_of_type[name] for name in types] if len(types) > 1 else priced
    values = [_cost_value(row, market, is_first=row is bars[0]) for row in bars[:MOST_BARS]]
    unit = f"USD per million {bars[0].items}, {market}"
    shown = "the cheapest setting of each type" if len(types) > 1 else "each setting"
    return [
        Chart(
            name=f"costs-{place}",
            caption=f"{title_of(rows)}: cost, {shown}",
            spec=_bars(values, unit),
            titles=("what", unit),
            rows=[[value["name"], value["text"]] for value in values],
        )
    ]


def spending_charts(costs: Sequence[ClusterCost]) -> list[Chart]:
    """Return what clusters and days cost, billed and rehearsed apart; none without a price."""
    charts = []
    for is_rehearsal in (False, True):
        chosen = [cost for cost in costs if cost.rehearsal is is_rehearsal and cost.usd]
        word = "rehearsed, not billed" if is_rehearsal else "billed"
        kind = "rehearsed" if is_rehearsal else "spent"
        clusters = [(cost.cluster.name, cost.usd) for cost in chosen]
        clusters.sort(key=lambda pair: pair[1] or Decimal(0), reverse=True)
        days = {f"{day:%Y-%m-%d}": usd for day, usd in costs_by_day(chosen, rehearsal=is_rehearsal).items()}
        charts += _amounts(f"{kind}-clusters", f"spending by cluster ({word})", clusters[:MOST_BARS])
        charts += _amounts(f"{kind}-days", f"spending by day ({word})", [*days.items()][-MOST_BARS:])
    return charts


def _amounts(name: str, caption: str, amounts: Iterable[tuple[str, Decimal | None]]) -> list[Chart]:
    values = [
        {
            "name": label,
            "value": float(usd),
            "low": float(usd),
            "high": float(usd),
            "text": money(usd),
            "short": money(usd),
            "first": 0,
            "description": f"{label}: {money(usd)} USD",
        }
        for label, usd in amounts
        if usd
    ]
    if not values:
        return []
    rows = [[str(value["name"]), str(value["text"])] for value in values]
    return [Chart(name=name, caption=caption, spec=_bars(values, "USD"), titles=("what", "USD"), rows=rows)]


def _cost_value(row: ResultRow, market: Market, *, is_first: bool) -> dict[str, Any]:
    usd = row.usd_per_million(market)
    if usd is None:
        raise ValueError("a row of this chart has a price")
    low, high = row.usd_interval(market) or (usd, usd)
    cost = marked(money(usd), row.rehearsal)
    interval = f" ({money(low)}–{money(high)})" if row.has_interval else ""
    name = setting(row) if row.rehearsal else f"{row.run.instance_type} {setting(row)}"
    return {
        "run": row.run.run_id,
        "name": name,
        "value": float(usd),
        "low": float(low),
        "high": float(high),
        "text": cost + interval,
        "short": cost,
        "first": int(is_first),
        "description": f"{name}: {cost}{interval} USD a million",
    }


def _bars(values: Sequence[Mapping[str, Any]], unit: str) -> Spec:
    """Return horizontal bars in the order of the values, with whiskers, and their figures behind them."""
    y = nominal("name", sort=None, axis={"labelLimit": 300})
    longest = ROOM * max(value["high"] for value in values)
    x = field("value", unit, scale={"domain": [0, longest], "nice": False}, axis={"tickCount": 6})
    colour = {"condition": {"test": "datum.first", "value": BLUE}, "value": GREY}
    bars = {
        "mark": {"type": "bar", "height": {"band": 0.7}},
        "encoding": {
            "y": y,
            "x": x,
            "color": colour,
            "tooltip": [nominal("name", "what"), nominal("text", unit)],
            "description": DESCRIPTION,
        },
    }
    whiskers = {
        "mark": {"type": "errorbar", "ticks": True, "color": TEXT, "thickness": 1.5, "aria": False},
        "encoding": {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}},
    }
    texts = {
        "mark": {"type": "text", "align": "left", "dx": 6, "aria": False},
        "encoding": {"y": y, "x": {**x, "field": "high"}, "text": {"field": "text"}},
    }
    has_whiskers = any(value["low"] != value["high"] for value in values)
    return {
        "data": {"name": "lines", "values": list(values)},
        "height": ROW_PX * len(values),
        "layer": [bars, *([whiskers] if has_whiskers else []), texts],
    }
