"""The charts of the cost report as Vega-Lite specifications: plain values, which `page.py` draws.

Cost against throughput with the Pareto front, speed-ups over the baseline, and sorted bars: what a million
items cost on each type, and what clusters and days cost.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from dlcloud.analysis.cost import ResultRow
from dlcloud.analysis.node_scaling import rows_apart, scalings_of
from dlcloud.analysis.ranking import By, Group, group_rows, pareto_front, rank
from dlcloud.analysis.spending import ClusterCost, costs_by_day
from dlcloud.benchmarks.harness.schema import Comparison, Verdict
from dlcloud.model.instance import Market
from dlcloud.model.money import money
from dlcloud.report.cells import UNSTABLE, digits, marked, setting, speed_up
from dlcloud.report.page import (
    BLUE,
    DESCRIPTION,
    GREY,
    LIGHT_GREY,
    ORANGE,
    PALETTE,
    ROW_PX,
    SHAPES,
    TEXT,
    WIDE_SPREAD,
    Chart,
    Spec,
    field,
    nominal,
    scale,
    title_of,
)
from dlcloud.report.scaling import scaling_charts

MOST_NAMES = 8
"""A picture with more points than this names only those on the front."""


def cost_charts(rows: Sequence[ResultRow], market: Market) -> list[Chart]:
    """Return the charts of the rows: how jobs scale, cost against throughput by case, then all speed-ups."""
    scalings = scalings_of(rows)
    charts = scaling_charts(scalings, market)
    for of_case in group_rows(rows_apart(rows, scalings), Group.CASE):
        charts += cost_bars(of_case, market, len(charts))
        charts += _pareto_chart(of_case, market, len(charts))
    for of_benchmark in group_rows(rows, Group.BENCHMARK):
        charts += _speed_up_chart(of_benchmark, len(charts))
    return charts


def _pareto_chart(rows: Sequence[ResultRow], market: Market, place: int) -> list[Chart]:
    """Return cost against throughput, with intervals and the Pareto front; no chart without any price."""
    shown = [row for row in rows if row.throughput and row.usd_per_million(market) is not None]
    if not shown:
        return []
    front = {id(row) for row in pareto_front(shown, market)}
    values = [_pareto_value(row, market, is_on_front=id(row) in front) for row in shown]
    unit = shown[0].throughput.unit if shown[0].throughput else ""
    cost = f"USD per million {shown[0].items}, {market}"
    x = field("throughput", unit, scale=_spread([value["throughput"] for value in values]))
    y = field("usd", cost, scale=_spread([value["usd"] for value in values]))
    marks = [_frontier(x, y), _points(x, y, values), _names(x, y, has_room=len(values) <= MOST_NAMES)]
    spec = {
        "data": {"name": "lines", "values": values},
        "height": 300,
        "layer": [_interval_bar(x, y, "x"), _interval_bar(x, y, "y"), *marks],
    }
    keys = ("type", "setting", "throughput_text", "usd_text")
    table = [[*(value[key] for key in keys), "yes" if value["front"] else ""] for value in values]
    return [
        Chart(
            name=f"pareto-{place}",
            caption=f"{title_of(shown)}: cost against throughput",
            spec=spec,
            titles=("type", "setting", unit, cost, "on the front"),
            rows=table,
        )
    ]


def _points(x: Spec, y: Spec, values: Sequence[dict[str, Any]]) -> Spec:
    types = sorted({value["type"] for value in values})
    settings = sorted({value["setting"] for value in values})
    titles = {"throughput_text": "throughput", "usd_text": "cost"}
    shown = ("type", "setting", "throughput_text", "usd_text", "run")
    return {
        "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
        "encoding": {
            "x": x,
            "y": y,
            "color": nominal("type", "type", scale=scale(types, PALETTE)),
            "shape": nominal("setting", "setting", scale=scale(settings, SHAPES)),
            "tooltip": [nominal(name, titles.get(name, name)) for name in shown],
            "description": DESCRIPTION,
        },
    }


def _frontier(x: Spec, y: Spec) -> Spec:
    line = {"type": "line", "interpolate": "linear", "strokeDash": [5, 4], "color": GREY, "aria": False}
    return {
        "transform": [{"filter": "datum.front"}],
        "mark": line,
        "encoding": {"x": x, "y": y, "order": {"field": "throughput"}},
    }


def _names(x: Spec, y: Spec, *, has_room: bool) -> Spec:
    """Return the names of the points: colours alone do not distinguish types.

    The page gives every point its name if there is room. A picture is laid out once: with many points, it
    names those on the front.
    """
    on_front = {"field": "shown", "type": "quantitative", "scale": None}
    opacity = {"value": 1} if has_room else on_front
    return {
        "mark": {"type": "text", "dy": -13, "fontSize": 11, "aria": False},
        "encoding": {"x": x, "y": y, "text": {"field": "name"}, "opacity": opacity},
    }


def _pareto_value(row: ResultRow, market: Market, *, is_on_front: bool) -> dict[str, Any]:
    throughput, usd = row.throughput, row.usd_per_million(market)
    if throughput is None or usd is None:
        raise ValueError("a row of this chart has a throughput and a price")
    low, high = throughput.interval or (throughput.value, throughput.value)
    cheap, dear = row.usd_interval(market) or (usd, usd)
    unstable = "" if row.result.stable else UNSTABLE
    throughput_text = marked(digits(throughput.value), row.rehearsal) + unstable
    usd_text = marked(money(usd), row.rehearsal)
    if row.has_interval:
        throughput_text += f" ({low:.4g}–{high:.4g})"
        usd_text += f" ({money(cheap)}–{money(dear)})"
    name = marked(f"{row.run.instance_type} {row.result.setting}", row.rehearsal) + unstable
    description = f"{name}: {throughput_text} {throughput.unit}, {usd_text} USD a million"
    return {
        "run": row.run.run_id,
        "type": row.run.instance_type,
        "setting": row.result.setting,
        "name": name,
        "throughput": throughput.value,
        "throughput_low": low,
        "throughput_high": high,
        "usd": float(usd),
        "usd_low": float(cheap),
        "usd_high": float(dear),
        "front": is_on_front,
        "shown": int(is_on_front),
        "throughput_text": f"{throughput_text} {throughput.unit}",
        "usd_text": usd_text,
        "description": description + (", on the front" if is_on_front else ""),
    }


def _interval_bar(x: Spec, y: Spec, axis: str) -> Spec:
    along, across = (x, y) if axis == "x" else (y, x)
    return {
        "mark": {"type": "rule", "strokeWidth": 1.5, "color": GREY, "aria": False},
        "encoding": {
            axis: {**along, "field": f"{along['field']}_low"},
            f"{axis}2": {"field": f"{along['field']}_high"},
            "y" if axis == "x" else "x": across,
        },
    }


def _speed_up_chart(rows: Sequence[ResultRow], place: int) -> list[Chart]:
    """Return the speed-ups over the baseline as bars with intervals; no chart where none was measured."""
    values = [_speed_up_value(row, row.comparison, rows) for row in rows if row.comparison]
    if not values:
        return []
    y = nominal("name", sort=None, axis={"labelLimit": 300})
    # Room for what is written behind the longest bar.
    longest = 1.35 * max(1.0, *(value["high"] for value in values))
    x = field(
        "ratio",
        "speed-up over the baseline setting",
        scale={"domain": [0, longest], "nice": False},
        axis={"tickCount": 6},
    )
    verdicts = scale(tuple(Verdict), (BLUE, ORANGE, GREY, LIGHT_GREY))
    bars = {
        "mark": {"type": "bar", "height": {"band": 0.7}},
        "encoding": {
            "y": y,
            "x": x,
            "color": nominal("verdict", "verdict", scale=verdicts),
            "tooltip": [
                nominal("name", "what"),
                nominal("text", "speed-up"),
                nominal("verdict", "verdict"),
                nominal("run", "run"),
            ],
            "description": DESCRIPTION,
        },
    }
    baseline = {
        "mark": {"type": "rule", "strokeDash": [2, 3], "color": TEXT, "aria": False},
        "encoding": {"x": {"datum": 1, "type": "quantitative"}},
    }
    spec = {
        "data": {"name": "lines", "values": values},
        "height": ROW_PX * len(values),
        "layer": [bars, _whiskers(x, y), _behind(x, y), baseline],
    }
    return [
        Chart(
            name=f"speed-ups-{place}",
            caption=f"{title_of(rows)}: speed-up over the baseline setting",
            spec=spec,
            titles=("what", "speed-up", "verdict"),
            rows=[[value["name"], value["text"], value["verdict"]] for value in values],
        )
    ]


def _speed_up_value(row: ResultRow, comparison: Comparison, rows: Sequence[ResultRow]) -> dict[str, Any]:
    types = {other.run.instance_type for other in rows}
    cases = {other.result.case for other in rows}
    parts = [row.run.instance_type] if len(types) > 1 else []
    parts += [row.result.case] if len(cases) > 1 else []
    name = ", ".join([*parts, f"{row.result.setting} over {comparison.baseline}"])
    text = speed_up(row) + ("" if row.result.stable else UNSTABLE)
    return {
        "run": row.run.run_id,
        "name": name,
        "ratio": comparison.ratio,
        "low": comparison.low,
        "high": comparison.high,
        "verdict": comparison.verdict,
        "text": text,
        "short": f"{text.partition(' (')[0]}",
        "description": f"{name}: {text}, {comparison.verdict}",
    }


def _spread(values: Sequence[float]) -> Spec:
    """Return the scale that suits values: logarithmic where they are of several magnitudes."""
    if min(values) > 0 and max(values) > WIDE_SPREAD * min(values):
        return {"type": "log", "domain": [min(values) / 1.6, max(values) * 1.6], "nice": False}
    return {"zero": False, "padding": 40}


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
    has_whiskers = any(value["low"] != value["high"] for value in values)
    return {
        "data": {"name": "lines", "values": list(values)},
        "height": ROW_PX * len(values),
        "layer": [bars, *([_whiskers(x, y)] if has_whiskers else []), _behind(x, y)],
    }


def _whiskers(x: Spec, y: Spec) -> Spec:
    mark = {"type": "errorbar", "ticks": True, "color": TEXT, "thickness": 1.5, "aria": False}
    return {"mark": mark, "encoding": {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}}}


def _behind(x: Spec, y: Spec) -> Spec:
    """Return the figures as text behind the bars."""
    mark = {"type": "text", "align": "left", "dx": 6, "aria": False}
    return {"mark": mark, "encoding": {"y": y, "x": {**x, "field": "high"}, "text": {"field": "text"}}}
