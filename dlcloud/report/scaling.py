"""How a job over several nodes scales: its table, its chart, and the cheapest number of nodes."""

from collections.abc import Sequence
from typing import Any

from dlcloud.analysis.compare import Ratio
from dlcloud.analysis.node_scaling import NodeScaling, Point, count_nodes
from dlcloud.analysis.ranking import Best, By
from dlcloud.model.instance import Market
from dlcloud.model.money import exact, millionths, money
from dlcloud.report import cells
from dlcloud.report.cells import fact_notes, facts_of
from dlcloud.report.page import BLUE, DESCRIPTION, GREY, Chart, Spec, field
from dlcloud.report.table import Section

_SUPERLATIVES = {By.COST: "cheapest", By.THROUGHPUT: "fastest"}


def scaling_sections(scalings: Sequence[NodeScaling], market: Market) -> list[Section]:
    """Return a table for each job, with its answer."""
    return [_section(scaling, market) for scaling in scalings]


def scaling_records(scalings: Sequence[NodeScaling], market: Market) -> list[dict[str, Any]]:
    return [
        {
            "benchmark": scaling.points[0].row.run.workload,
            "case": scaling.case,
            "setting": scaling.points[0].row.result.setting,
            "instance_type": scaling.points[0].row.run.instance_type,
            "rehearsal": scaling.is_rehearsal,
            "market": str(market),
            "points": [_point(point, market) for point in scaling.points],
            **{word: _answer(scaling.best(by, market)) for by, word in _SUPERLATIVES.items()},
        }
        for scaling in scalings
    ]


def scaling_charts(scalings: Sequence[NodeScaling], market: Market) -> list[Chart]:
    """Return throughput by the number of nodes, next to that of perfect scaling, a chart for each job."""
    return [_chart(scaling, market, place) for place, scaling in enumerate(scalings)]


def _section(scaling: NodeScaling, market: Market) -> Section:
    first = scaling.points[0].row
    unit = first.throughput.unit if first.throughput else "items/s"
    speed, efficiency, usd = (
        cells.marked(title, scaling.is_rehearsal) for title in (unit, "efficiency", "USD/M")
    )
    return Section(
        heading=f"how it scales: {_title(scaling)}",
        titles=["nodes", speed, "interval", efficiency, "interval", "USD/h", usd, "interval"],
        rows=[_row(point, market) for point in scaling.points],
        notes=_notes(scaling, market),
        numeric=frozenset({0, 1, 3, 5, 6}),
        leads=1,
    )


def _title(scaling: NodeScaling) -> str:
    row = scaling.points[0].row
    several = row.comparison is not None or row.result.baseline
    setting = f", {row.result.setting}" if several and row.result.setting != "as it is" else ""
    title = f"{scaling.case or row.run.workload}{setting} on {row.run.instance_type}"
    return title + (" (rehearsal)" if scaling.is_rehearsal else "")


def _row(point: Point, market: Market) -> list[str]:
    row, hourly = point.row, point.row.prices.hourly_usd(market)
    return [
        str(point.nodes),
        cells.throughput(row),
        cells.interval(row.throughput),
        _percent(point.efficiency.value),
        _percents(point.efficiency),
        "unknown" if hourly is None else exact(hourly),
        cells.usd(market)(row),
        cells.usd_interval(market)(row),
    ]


def _notes(scaling: NodeScaling, market: Market) -> list[str]:
    first = scaling.points[0]
    notes = []
    if scaling.is_rehearsal:
        label = first.row.measured.hardware.label
        shared = f"* rehearsal: all nodes share the processors of this machine, {label}:"
        notes.append(f"{shared} what they lose to each other here says nothing about instances")
    notes.append(f"efficiency: throughput over that of {count_nodes(first.nodes)}, by node")
    notes.append(f"USD/M: USD per million {first.row.items} of all nodes, {market}; intervals of 95 %")
    notes.append("the counts ran one after the other, not in turns")
    words: dict[str, list[str]] = {}
    for by, word in _SUPERLATIVES.items():
        best = scaling.best(by, market)
        name = count_nodes(best.row.run.nodes) if best.row else "none is named"
        words.setdefault(f"{name}: {best.reason}", []).append(word)
    notes += [f"{' and '.join(named)}: {answer}" for answer, named in words.items()]
    rows = [point.row for point in scaling.points]
    return [*fact_notes(rows, lambda row: count_nodes(row.run.nodes)), *notes]


def _point(point: Point, market: Market) -> dict[str, Any]:
    row, usd = point.row, point.row.usd_per_million(market)
    low, high = row.throughput.interval or (None, None) if row.throughput else (None, None)
    cheap, dear = row.usd_interval(market) or (None, None)
    return {
        "nodes": point.nodes,
        "run": row.run.run_id,
        **({"facts": dict(facts_of(row))} if facts_of(row) else {}),
        "throughput": row.throughput.value if row.throughput else None,
        "throughput_low": low,
        "throughput_high": high,
        "efficiency": point.efficiency.value,
        "efficiency_low": point.efficiency.low,
        "efficiency_high": point.efficiency.high,
        "hourly_usd": row.prices.hourly_usd(market),
        "usd_per_million": millionths(usd),
        "usd_per_million_low": millionths(cheap),
        "usd_per_million_high": millionths(dear),
    }


def _answer(best: Best) -> dict[str, Any]:
    return {
        "nodes": best.row.run.nodes if best.row else None,
        "reason": best.reason,
        "between": [row.run.nodes for row in best.tied],
    }


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _percents(ratio: Ratio) -> str:
    return "" if ratio.low is None or ratio.high is None else f"{ratio.low:.0%}–{ratio.high:.0%}"


def _chart(scaling: NodeScaling, market: Market, place: int) -> Chart:
    values = [_value(scaling, point, market) for point in scaling.points]
    unit = values[0]["unit"]
    x = field("nodes", "nodes", "ordinal", axis={"labelAngle": 0})
    y = field("throughput", unit, scale={"zero": True})
    perfect: Spec = {
        "mark": {"type": "line", "strokeDash": [5, 4], "color": GREY, "aria": False},
        "encoding": {"x": x, "y": {**y, "field": "perfect"}},
    }
    line: Spec = {
        "mark": {"type": "line", "color": BLUE, "aria": False},
        "encoding": {"x": x, "y": y},
    }
    points: Spec = {
        "mark": {"type": "point", "filled": True, "size": 90, "color": BLUE, "opacity": 1},
        "encoding": {"x": x, "y": y, "description": DESCRIPTION},
    }
    intervals: Spec = {
        "mark": {"type": "rule", "strokeWidth": 1.5, "color": BLUE, "aria": False},
        "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
    }
    labels: Spec = {
        "mark": {"type": "text", "dy": -14, "fontSize": 11, "aria": False},
        "encoding": {"x": x, "y": {**y, "field": "high"}, "text": {"field": "label"}},
    }
    return Chart(
        name=f"scaling-{place}",
        caption=f"{_title(scaling)}: throughput by nodes, efficiency, USD per million; dashed: perfect",
        spec={
            "data": {"name": "lines", "values": values},
            "height": 300,
            "layer": [perfect, line, intervals, points, labels],
        },
        titles=("nodes", unit, "efficiency", f"USD per million, {market}"),
        rows=[[str(value["nodes"]), value["text"], value["short"], value["usd"]] for value in values],
        numeric=frozenset({0}),
    )


def _value(scaling: NodeScaling, point: Point, market: Market) -> dict[str, Any]:
    row, first = point.row, scaling.points[0]
    if row.throughput is None or first.row.throughput is None:
        raise ValueError("a point has a throughput")
    low, high = row.throughput.interval or (row.throughput.value, row.throughput.value)
    bounds = cells.interval(row.throughput)
    text = cells.digits(row.throughput.value) + (f" ({bounds})" if bounds else "")
    usd = row.usd_per_million(market)
    efficiency = _percent(point.efficiency.value)
    return {
        "run": row.run.run_id,
        "nodes": point.nodes,
        "throughput": row.throughput.value,
        "low": low,
        "high": high,
        "perfect": first.row.throughput.value * point.nodes / first.nodes,
        "unit": row.throughput.unit,
        "text": text,
        "short": efficiency,
        "usd": "unknown" if usd is None else money(usd),
        "label": efficiency if usd is None else f"{efficiency}, {money(usd)} USD",
        "description": f"{count_nodes(point.nodes)}: {text} {row.throughput.unit}, efficiency {efficiency}",
    }
