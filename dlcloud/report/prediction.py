"""Predictions as tables and a chart: each figure is marked as predicted or measured, in every format.

The chart shows cost against throughput of all types of a region, measured and predicted apart, with the
Pareto front.
"""

from collections.abc import Sequence
from decimal import Decimal
from math import sqrt
from typing import Any

from dlcloud.model.instance import Market
from dlcloud.model.money import money
from dlcloud.prediction.offers import PredictedJob, PredictedOffer
from dlcloud.report.page import BLUE, DESCRIPTION, GREY, ORANGE, Chart, Spec, field, nominal, scale
from dlcloud.report.table import Cell, Report, Section

FEW_MEASURED = 3
FEW_RACED = 3
ATTRIBUTION = "table of types derived from measurements (c) Spare Cores, CC BY-SA 4.0"


def prediction_report(
    jobs: Sequence[PredictedJob], *, region: str, market: Market, most: int, as_of: str
) -> Report:
    """Return the predictions, of each job the `most` cheapest types; records have all types."""
    return Report(
        command="predict",
        records=[_record(job, offer) for job in jobs for offer in job.offers],
        sections=[
            *(_section(job, region, market, most, as_of) for job in jobs if not job.refused),
            *_refused_sections(jobs),
        ],
        empty="nothing is measured; dlcloud bench measures",
        extra={
            "region": region,
            "table_as_of": as_of,
            "attribution": ATTRIBUTION,
            "not_predicted": [
                {"benchmark": job.workload, "case": job.case, "setting": job.setting, "reason": job.refused}
                for job in jobs
                if job.refused
            ],
        },
    )


def _listed(job: PredictedJob, most: int) -> list[PredictedOffer]:
    """Return the types to print: all, or the cheapest that are not burstable, and the measured ones."""
    if most >= len(job.offers):
        return [*job.offers]
    cheapest = [offer.estimate.instance_type for offer in job.offers if not offer.is_burstable][:most]
    return [o for o in job.offers if o.estimate.measured or o.estimate.instance_type in cheapest]


def _section(job: PredictedJob, region: str, market: Market, most: int, as_of: str) -> Section:
    return Section(
        heading=_name(job),
        titles=("type", "source", job.unit, "90 %", f"USD/M {market}, {region}", "90 %"),
        rows=[_row(offer, market) for offer in _listed(job, most)],
        notes=_notes(job, region, most, as_of),
        numeric=frozenset({2, 4}),
    )


def _name(job: PredictedJob) -> str:
    return f"{job.workload}, {job.case}, {job.setting}".replace(", ,", ",")


def _refused_sections(jobs: Sequence[PredictedJob]) -> list[Section]:
    """Return why jobs are not predicted: each reason once, however many trials it holds for."""
    names: dict[str, list[str]] = {}
    for job in jobs:
        if job.refused:
            names.setdefault(job.refused, []).append(_name(job))
    return [
        Section(
            heading=f"{some[0]}{f' and {len(some) - 1} more' if len(some) > 1 else ''}",
            titles=(),
            rows=(),
            notes=[f"not predicted: {reason}"],
        )
        for reason, some in names.items()
    ]


def _notes(job: PredictedJob, region: str, most: int, as_of: str) -> list[str]:
    measured = [offer.estimate.instance_type for offer in job.offers if offer.estimate.measured]
    notes = [f"predicted from {len(measured)} measured type(s); {region}; {ATTRIBUTION}, until {as_of}"]
    if job.resembles:
        likened = ", ".join(f"{name} ({chance:.0%})" for name, chance in job.resembles)
        notes.append(f"resembles most: {likened}")
    if job.by_rule:
        notes.append(f"first choice, by the mean of this and PassMark per USD: {job.by_rule}")
    if len(job.race) > 1:
        few = ", ".join(job.race[:FEW_RACED])
        notes.append(f"to be surer, measure {few}: they are chosen to err differently; --race does so")
    if len(job.offers) > most:
        notes.append(
            f"measured types, and the {most} cheapest of {len(job.offers)} without those that slow down when"
            " their CPU credits are spent; --all, or --output csv, has all"
        )
    if len(measured) < FEW_MEASURED:
        notes.append(f"{FEW_MEASURED} measured types of different size and processor tell much more")
    if any(not offer.listed for offer in _listed(job, most)):
        notes.append("predicted~: the type itself is estimated from its specifications")
    return notes


def _source(offer: PredictedOffer) -> str:
    return "measured" if offer.estimate.measured else "predicted" if offer.listed else "predicted~"


def _row(offer: PredictedOffer, market: Market) -> tuple[str, ...]:
    one, figures = offer.estimate, offer.usd_per_million(market)
    return (
        one.instance_type,
        _source(offer),
        _rate(one.throughput),
        f"{_rate(one.low)}–{_rate(one.high)}",
        "" if figures is None else money(figures[1]),
        "" if figures is None else f"{money(figures[0])}–{money(figures[2])}",
    )


def _rate(value: float) -> str:
    """Format a throughput with three digits, without an exponent."""
    return f"{float(f'{value:.3g}'):.12g}"


def _record(job: PredictedJob, offer: PredictedOffer) -> dict[str, Cell]:
    one = offer.estimate
    record: dict[str, Cell] = {
        "benchmark": job.workload,
        "case": job.case,
        "setting": job.setting,
        "instance_type": one.instance_type,
        "source": "measured" if one.measured else "predicted",
        "type_estimated_from_specifications": not offer.listed,
        "unit": job.unit,
        "throughput": one.throughput,
        "throughput_low": one.low,
        "throughput_high": one.high,
        "named_by_rule": one.instance_type == job.by_rule,
    }
    for market in Market:
        figures: Sequence[Decimal | None] = offer.usd_per_million(market) or (None, None, None)
        word = market.value.replace("-", "_")
        for bound, figure in zip(("low", "", "high"), figures, strict=True):
            record[f"{word}_usd_per_million{'_' if bound else ''}{bound}"] = figure
    return record


SOURCES = ("measured", "predicted")


def prediction_charts(jobs: Sequence[PredictedJob], market: Market) -> list[Chart]:
    """Return a chart for each job that is predicted."""
    charts = []
    for place, job in enumerate(job for job in jobs if job.offers):
        values = _values(job, market)
        if values:
            charts.append(_chart(job, market, values, place))
    return charts


def _chart(job: PredictedJob, market: Market, values: Sequence[dict[str, Any]], place: int) -> Chart:
    unit, cost = job.unit, f"USD per million {job.unit.removesuffix('/s')}, {market}"
    x = field("throughput", unit, scale={"type": "log", "nice": False})
    y = field("usd", cost, scale={"type": "log", "nice": False})
    name = ", ".join(part for part in (job.workload, job.case, job.setting) if part)
    listed = [value for value in values if value["front"] or value["source"] == "measured"]
    return Chart(
        name=f"prediction-{place}",
        caption=f"{name}: cost against throughput of {len(values)} types, measured and predicted",
        spec={
            "data": {"name": "types", "values": list(values)},
            "height": 320,
            "layer": _layers(x, y, values),
        },
        titles=("type", "source", unit, cost, "on the front"),
        rows=[
            [v["type"], v["source"], v["throughput_text"], v["usd_text"], "yes" if v["front"] else ""]
            for v in listed
        ],
        numeric=frozenset({2, 3}),
    )


def _layers(x: Spec, y: Spec, values: Sequence[dict[str, Any]]) -> list[Spec]:
    """Return the layers that have values: Vega warns of one without."""
    layers = [_front(x, y)] if any(value["front"] for value in values) else []
    halves = {value["right"] for value in values if value["named"]}
    return [*layers, _points(x, y), *(_names(x, y, right=half) for half in sorted(halves))]


def _values(job: PredictedJob, market: Market) -> list[dict[str, Any]]:
    """Return the types with a price, the cheapest first.

    Those that no other beats in both are the front; burstable types, which slow down, are not on it. The ends
    of the front and the measured types have their names next to them.
    """
    values = [value for offer in job.offers if (value := _value(offer, job, market)) is not None]
    values.sort(key=lambda value: (value["usd"], -value["throughput"]))
    fastest = 0.0
    for value in values:
        value["front"] = value["throughput"] > fastest and not value["burstable"]
        fastest = max(fastest, value["throughput"] if value["front"] else 0.0)
    ends = [value for value in values if value["front"]]
    rates = [value["throughput"] for value in values]
    middle = sqrt(min(rates) * max(rates)) if rates else 0.0
    for value in values:
        value["named"] = value["source"] == "measured" or value in (*ends[:1], *ends[-1:])
        value["right"] = value["throughput"] > middle
    return values


def _value(offer: PredictedOffer, job: PredictedJob, market: Market) -> dict[str, Any] | None:
    figures, one = offer.usd_per_million(market), offer.estimate
    if figures is None:
        return None
    source = SOURCES[not one.measured]
    low, middle, high = (money(figure) for figure in figures)
    throughput_text = f"{_rate(one.throughput)} ({_rate(one.low)}–{_rate(one.high)})"
    usd_text, name = f"{middle} ({low}–{high})", f"{one.instance_type}, {source}"
    return {
        "type": one.instance_type,
        "source": source,
        "burstable": offer.is_burstable,
        "throughput": one.throughput,
        "usd": float(figures[1]),
        "throughput_text": throughput_text,
        "usd_text": usd_text,
        "description": f"{name}: {throughput_text} {job.unit}, {usd_text} USD a million",
    }


def _front(x: Spec, y: Spec) -> Spec:
    line = {"type": "line", "interpolate": "step-after", "strokeDash": [5, 4], "color": GREY, "aria": False}
    return {
        "transform": [{"filter": "datum.front"}],
        "mark": line,
        "encoding": {"x": x, "y": y, "order": {"field": "throughput"}},
    }


def _points(x: Spec, y: Spec) -> Spec:
    shown = ("type", "source", "throughput_text", "usd_text")
    titles = {"throughput_text": "throughput", "usd_text": "cost"}
    is_measured = "datum.source === 'measured'"
    return {
        "mark": {"type": "point", "filled": True},
        "encoding": {
            "x": x,
            "y": y,
            "color": nominal("source", "source", scale=scale(SOURCES, (ORANGE, BLUE))),
            "shape": nominal("source", "source", scale=scale(SOURCES, ("square", "circle"))),
            "size": {"condition": {"test": is_measured, "value": 130}, "value": 25},
            "opacity": {"condition": {"test": is_measured, "value": 1}, "value": 0.5},
            "tooltip": [nominal(name, titles.get(name, name)) for name in shown],
            "description": DESCRIPTION,
        },
    }


def _names(x: Spec, y: Spec, *, right: bool) -> Spec:
    """Return the names of one half of the chart, written towards its middle."""
    align, dx = ("right", -8) if right else ("left", 8)
    return {
        "transform": [{"filter": f"datum.named && datum.right === {str(right).lower()}"}],
        "mark": {"type": "text", "align": align, "dx": dx, "dy": -8, "aria": False},
        "encoding": {"x": x, "y": y, "text": nominal("type")},
    }
