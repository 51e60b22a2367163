"""The charts of the cost report as Vega-Lite specifications: plain values, drawn elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dlcloud.core.cost import money
from dlcloud.core.instance import Market
from dlcloud.core.ranking import Group, group_rows, pareto_front
from dlcloud.core.result_row import ResultRow
from dlcloud.report.cells import digits, speed_up

Spec = dict[str, Any]

# Mid-tones: each has a contrast of at least 3 to white and to the page's dark; shapes say the same again.
PALETTE = ("#2f7fd6", "#c8591f", "#1f8f63", "#a35fc7", "#967216", "#17808f", "#cf4f86", "#767b84")
SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "triangle-right",
    "triangle-left",
)
ROW_PX = 24
MOST_NAMES = 24
"""With more points than this, only those on the front bear their names."""
WIDE_SPREAD = 10
"""Where the largest value is so many times the smallest, an axis is logarithmic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart: `spec` has its values under `data.values`, which `titles` and `rows` say as a table, too."""

    name: str
    caption: str
    spec: Spec
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()


def cost_charts(lines: Sequence[ResultRow], market: Market) -> list[Chart]:
    """Return the charts of the lines: cost against throughput by case, then all speed-ups by benchmark."""
    charts: list[Chart] = []
    for of_case in group_rows(lines, Group.CASE):
        charts += _pareto_chart(of_case, market, len(charts))
    for of_benchmark in group_rows(lines, Group.BENCHMARK):
        charts += _speed_up_chart(of_benchmark, len(charts))
    return charts


def _pareto_chart(lines: Sequence[ResultRow], market: Market, place: int) -> list[Chart]:
    """Return cost against throughput, with intervals and the Pareto front; no chart without any price."""
    shown = [line for line in lines if line.throughput and line.usd_per_million(market) is not None]
    if not shown:
        return []
    front = {id(line) for line in pareto_front(shown, market)}
    values = [_pareto_value(line, market, front=id(line) in front) for line in shown]
    unit = shown[0].throughput.unit if shown[0].throughput else ""
    cost = f"USD per million {shown[0].items}, {market}"
    caption = f"{_title(shown)}: cost against throughput"
    x = {
        "field": "throughput",
        "type": "quantitative",
        "title": unit,
        "scale": _spread([value["throughput"] for value in values]),
    }
    y = {
        "field": "usd",
        "type": "quantitative",
        "title": cost,
        "scale": _spread([value["usd"] for value in values]),
    }
    kinds = sorted({value["type"] for value in values}), sorted({value["setting"] for value in values})
    symbol = {
        "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
        "encoding": {
            "x": x,
            "y": y,
            "color": {
                "field": "type",
                "type": "nominal",
                "title": "type",
                "scale": _scale(kinds[0], PALETTE),
            },
            "shape": {
                "field": "setting",
                "type": "nominal",
                "title": "setting",
                "scale": _scale(kinds[1], SHAPES),
            },
            "tooltip": _tooltip(type="type", setting="setting", told="told", usd_told="cost", run="run"),
            "description": {"field": "description", "type": "nominal"},
        },
    }
    frontier = {
        "transform": [{"filter": "datum.front"}],
        "mark": {
            "type": "line",
            "interpolate": "linear",
            "strokeDash": [5, 4],
            "color": "#767b84",
            "aria": False,
        },
        "encoding": {"x": x, "y": y, "order": {"field": "throughput"}},
    }
    labels = {
        "mark": {"type": "text", "dy": -13, "fontSize": 11, "aria": False},
        "encoding": {
            "x": x,
            "y": y,
            "text": {"field": "name"},
            # Every point has its name where there is room: colours alone would not tell types apart.
            "opacity": {"value": 1} if len(values) <= MOST_NAMES else {"field": "shown", "scale": None},
        },
    }
    spec = {
        "data": {"name": "lines", "values": values},
        "height": 300,
        "layer": [_bar(x, y, "x"), _bar(x, y, "y"), frontier, symbol, labels],
    }
    rows = [
        [each["type"], each["setting"], each["told"], each["usd_told"], "yes" if each["front"] else ""]
        for each in values
    ]
    titles = ("type", "setting", unit, cost, "on the front")
    return [Chart(name=f"pareto-{place}", caption=caption, spec=spec, titles=titles, rows=rows)]


def _pareto_value(line: ResultRow, market: Market, *, front: bool) -> dict[str, Any]:
    throughput, usd = line.throughput, line.usd_per_million(market)
    if throughput is None or usd is None:
        raise ValueError("a line of this chart has a throughput and a price")
    bounds = line.usd_interval(market) or (usd, usd)
    low, high = (
        (throughput.low, throughput.high) if line.has_interval else (throughput.value, throughput.value)
    )
    marks = ("*" if line.rehearsal else "") + ("" if line.result.stable else " ~")
    told = digits(throughput.value) + marks + (f" ({low:.4g}–{high:.4g})" if line.has_interval else "")
    usd_told = money(usd) + ("*" if line.rehearsal else "")
    usd_told += f" ({money(bounds[0])}–{money(bounds[1])})" if line.has_interval else ""
    name = f"{line.run.instance_type} {line.result.setting}{marks}"
    return {
        "run": line.run.run_id,
        "type": line.run.instance_type,
        "setting": line.result.setting,
        "name": name,
        "throughput": throughput.value,
        "throughput_low": low,
        "throughput_high": high,
        "usd": float(usd),
        "usd_low": float(bounds[0]),
        "usd_high": float(bounds[1]),
        "front": front,
        "shown": int(front),
        "told": f"{told} {throughput.unit}",
        "usd_told": usd_told,
        "description": f"{name}: {told} {throughput.unit}, {usd_told} USD a million"
        + (", on the front" if front else ""),
    }


def _bar(x: Spec, y: Spec, axis: str) -> Spec:
    """Return the interval of one axis as a thin rule."""
    field = "throughput" if axis == "x" else "usd"
    along = {**(x if axis == "x" else y), "field": f"{field}_low"}
    across = y if axis == "x" else x
    return {
        "mark": {"type": "rule", "strokeWidth": 1.5, "color": "#767b84", "aria": False},
        "encoding": {
            axis: along,
            f"{axis}2": {"field": f"{field}_high"},
            "y" if axis == "x" else "x": across,
        },
    }


def _speed_up_chart(lines: Sequence[ResultRow], place: int) -> list[Chart]:
    """Return the speed-ups over the baseline as bars with intervals; no chart where none was measured."""
    shown = [line for line in lines if line.comparison]
    if not shown:
        return []
    values = [_speed_up_value(line, lines) for line in shown]
    y = {"field": "name", "type": "nominal", "title": None, "sort": None, "axis": {"labelLimit": 300}}
    x = {
        "field": "ratio",
        "type": "quantitative",
        "title": "speed-up over the baseline setting",
        # Room for what is written behind the longest bar.
        "scale": {"domain": [0, 1.35 * max(1.0, *(value["high"] for value in values))], "nice": False},
    }
    verdicts = ("faster", "slower", "no difference seen", "undecided")
    colour = {
        "field": "verdict",
        "type": "nominal",
        "title": "verdict",
        "scale": _scale(verdicts, (PALETTE[0], PALETTE[1], PALETTE[7], PALETTE[7])),
    }
    spec = {
        "data": {"name": "lines", "values": values},
        "height": ROW_PX * len(values),
        "layer": [
            {
                "mark": {"type": "bar", "height": {"band": 0.7}},
                "encoding": {
                    "y": y,
                    "x": x,
                    "color": colour,
                    "tooltip": _tooltip(name="what", told="speed-up", verdict="verdict", run="run"),
                    "description": {"field": "description", "type": "nominal"},
                },
            },
            {
                "mark": {"type": "errorbar", "ticks": True, "color": TEXT, "thickness": 1.5, "aria": False},
                "encoding": {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 6, "aria": False},
                "encoding": {"y": y, "x": {**x, "field": "high"}, "text": {"field": "told"}},
            },
            {
                "mark": {"type": "rule", "strokeDash": [2, 3], "color": TEXT, "aria": False},
                "encoding": {"x": {"datum": 1, "type": "quantitative"}},
            },
        ],
    }
    rows = [[each["name"], each["told"], each["verdict"]] for each in values]
    caption = f"{_title(lines)}: speed-up over the baseline setting"
    titles = ("what", "speed-up", "verdict")
    return [Chart(name=f"speed-ups-{place}", caption=caption, spec=spec, titles=titles, rows=rows)]


TEXT = "currentColor"
"""What the page's text has, in light and dark; a picture for paper replaces it."""


def _speed_up_value(line: ResultRow, lines: Sequence[ResultRow]) -> dict[str, Any]:
    comparison = line.comparison
    if comparison is None:
        raise ValueError("a line of this chart has a comparison")
    several = {
        "type": {each.run.instance_type for each in lines},
        "case": {each.result.case for each in lines},
    }
    parts = [line.run.instance_type] if len(several["type"]) > 1 else []
    parts += [line.result.case] if len(several["case"]) > 1 else []
    name = ", ".join([*parts, f"{line.result.setting} over {comparison.baseline}"])
    told = speed_up(line) + ("" if line.result.stable else " ~")
    return {
        "run": line.run.run_id,
        "name": name,
        "ratio": comparison.ratio,
        "low": comparison.low,
        "high": comparison.high,
        "verdict": comparison.verdict,
        "told": told,
        "description": f"{name}: {told}, {comparison.verdict}",
    }


def _title(lines: Sequence[ResultRow]) -> str:
    cases = {line.result.case for line in lines}
    parts = dict.fromkeys([lines[0].run.workload, *(cases if len(cases) == 1 else ())])
    types = {line.run.instance_type for line in lines}
    told = ", ".join(part for part in parts if part) + (f" on {types.pop()}" if len(types) == 1 else "")
    return told + (" (rehearsal)" if lines[0].rehearsal else "")


def _spread(values: Sequence[float]) -> Spec:
    """Return the scale that suits values: logarithmic where they are of several magnitudes."""
    if min(values) > 0 and max(values) > WIDE_SPREAD * min(values):
        return {"type": "log", "domain": [min(values) / 1.6, max(values) * 1.6], "nice": False}
    return {"zero": False, "padding": 40}


def _scale(names: Sequence[str], values: Sequence[str]) -> Spec:
    """Return a scale that repeats its values where there are more names."""
    return {"domain": list(names), "range": [values[place % len(values)] for place in range(len(names))]}


def _tooltip(**titles: str) -> list[Spec]:
    return [{"field": field, "type": "nominal", "title": title} for field, title in titles.items()]
