"""Deadlines by their price: the table and the curve of `dlcloud plan`."""

from collections.abc import Sequence
from dataclasses import fields

from dlcloud.report.chart import Chart, field, nominal
from dlcloud.report.table import Report, Section
from dlcloud.scheduling.deadline_costs import DeadlineCost

SINGLE_POOLS_SHOWN = 2
TITLES = ("deadline h", "pools", "USD", "10 to 90 %", "of on-demand", "done h", "missed")


def deadline_costs_report(costs: Sequence[DeadlineCost], *, heading: str, notes: Sequence[str]) -> Report:
    """Return the table; `notes` say where availability and prices come from.

    Of the pools alone it has the cheapest ones; the records have all.
    """
    shown = _shown_pools(costs)
    hidden = len({cost.pools for cost in costs}) - len(shown)
    if hidden:
        notes = [*notes, f"{hidden} other pool(s) alone would cost more: --output json"]
    section = Section(
        heading=heading,
        titles=TITLES,
        rows=[
            (
                f"{cost.hours:.1f}",
                cost.pools,
                f"{cost.usd:.2f}",
                f"{cost.low_usd:.2f} to {cost.high_usd:.2f}",
                f"{cost.over_on_demand:.0%}",
                f"{cost.finished_h:.1f}",
                f"{cost.missed} of {cost.windows}",
            )
            for cost in costs
            if cost.pools in shown
        ],
        notes=list(notes),
        numeric=frozenset({0, 2, 4, 5}),
    )
    records = [
        {
            **{column.name: getattr(cost, column.name) for column in fields(cost)},
            "over_on_demand": cost.over_on_demand,
        }
        for cost in costs
    ]
    return Report(command="plan", records=records, sections=[section], empty="", extra={"notes": list(notes)})


def _shown_pools(costs: Sequence[DeadlineCost]) -> list[str]:
    """Return the choices of pools to show: the first, which is all of them, and the cheapest others."""
    names = list(dict.fromkeys(cost.pools for cost in costs))
    usd = {name: sum(cost.usd for cost in costs if cost.pools == name) for name in names}
    return [*names[:1], *sorted(names[1:], key=lambda name: usd[name])[:SINGLE_POOLS_SHOWN]]


def deadline_costs_chart(costs: Sequence[DeadlineCost], *, caption: str) -> Chart:
    """Return the curve of mean cost against deadline, by choice of pools, with its spread."""
    shown = _shown_pools(costs)
    costs = [cost for cost in costs if cost.pools in shown]
    values = [
        {
            "hours": cost.hours,
            "usd": cost.usd,
            "low": cost.low_usd,
            "high": cost.high_usd,
            "pools": cost.pools,
            "description": f"{cost.pools}, deadline {cost.hours:.1f} h: {cost.usd:.2f} USD",
        }
        for cost in costs
    ]
    x = field("hours", "deadline, hours", scale={"zero": False})
    color = nominal("pools", "pools")
    description = {"field": "description", "type": "nominal"}
    on_demand = costs[0].on_demand_usd
    spec = {
        "data": {"name": "deadlines", "values": values},
        "height": 260,
        "layer": [
            {
                "mark": {"type": "area", "opacity": 0.15},
                "encoding": {"x": x, "y": field("low", "USD"), "y2": {"field": "high"}, "color": color},
            },
            {
                "mark": {"type": "line", "point": True},
                "encoding": {"x": x, "y": field("usd", "USD"), "color": color, "description": description},
            },
            {
                "mark": {"type": "rule", "strokeDash": [5, 4]},
                "encoding": {"y": {"datum": on_demand, "type": "quantitative"}},
            },
        ],
    }
    return Chart(
        name="deadline-costs",
        caption=f"{caption}; dashed: all on-demand, {on_demand:.2f} USD",
        spec=spec,
        titles=("deadline h", "pools", "USD", "10 %", "90 %"),
        rows=[
            [f"{c.hours:.1f}", c.pools, f"{c.usd:.2f}", f"{c.low_usd:.2f}", f"{c.high_usd:.2f}"]
            for c in costs
        ],
        numeric=frozenset({0, 2, 3, 4}),
    )
