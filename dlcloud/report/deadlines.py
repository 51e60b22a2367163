"""Deadlines as tables and charts: what each deadline costs (`dlcloud deadlines`), and simulated policies.

`deadline_costs_report` and its curve show the price of deadlines, `simulation_report` compares policies over
replayed windows, and `simulation_charts` draws one window: instances by market over time, and the work done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import isfinite

from dlcloud.report.page import BLUE, GREY, ORANGE, TEXT, Chart, Spec, field, nominal, scale
from dlcloud.report.table import Cell, Report, Section
from dlcloud.scheduling.policies.situation import HOUR_S
from dlcloud.scheduling.simulation.replay import SimulatedJob, SimulatedOutcome
from dlcloud.scheduling.simulation.summary import BOUND, DeadlineCost, Row

SINGLE_POOLS_SHOWN = 2
_DEADLINE_TITLES = ("deadline h", "pools", "USD", "10 to 90 %", "of on-demand", "done h", "missed")


def deadline_costs_report(costs: Sequence[DeadlineCost], *, heading: str, notes: Sequence[str]) -> Report:
    """Return the table; `notes` say where availability and prices come from.

    Of the pools alone it has the cheapest ones; the records have all.
    """
    shown = _shown_pools(costs)
    hidden = len({cost.pools for cost in costs}) - len(shown)
    if hidden:
        notes = [*notes, f"{hidden} other pool(s) alone would cost more: --output json"]
    notes = [*notes, *_cheaper_if_earlier([cost for cost in costs if cost.pools in shown])]
    section = Section(
        heading=heading,
        titles=_DEADLINE_TITLES,
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


def _cheaper_if_earlier(costs: Sequence[DeadlineCost]) -> list[str]:
    """Return a note for each deadline that costs 0.5 % more than an earlier one, which keeps it as well.

    The policy plans by a model of spot, so that more spare time can cost more in the windows replayed.
    """
    notes = []
    for late in costs:
        safer = [
            c for c in costs if c.pools == late.pools and c.hours < late.hours and c.missed <= late.missed
        ]
        best = min(safer, key=lambda cost: cost.usd, default=late)
        if best.usd < 0.995 * late.usd:
            saved = f"{late.usd - best.usd:.2f} USD less than {late.hours:.1f} h"
            notes.append(f"deadline {best.hours:.1f} h costs {saved} with {late.pools}: set the earlier one")
    return notes


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


_SIMULATION_TITLES = (
    "policy",
    "cost/on-demand",
    "95 %",
    "over bound",
    "hours",
    "lost",
    "on-dem.",
    "missed",
    "late",
)
_SIMULATION_NUMERIC = frozenset(range(1, len(_SIMULATION_TITLES)))
_SIMULATION_NOTES = (
    "cost/on-demand: mean bill over that of on-demand only, with its 95 % interval over the windows.",
    "offline bound: the least cost had the future been known; a proven lower bound, not always attained.",
    "lost: spot instances taken away, in the mean; on-dem.: on-demand share of the instance-hours;",
    "missed: windows that ended after the deadline; late: by how much at most.",
)


def simulation_report(results: Sequence[tuple[SimulatedJob, Sequence[Row]]]) -> Report:
    """Return the report over jobs, each with its rows."""
    last = len(results) - 1
    sections = [
        _section(job, rows, _SIMULATION_NOTES if place == last else ())
        for place, (job, rows) in enumerate(results)
    ]
    records = [_record(job, row) for job, rows in results for row in rows]
    return Report(command="simulate", records=records, sections=sections, empty="no window was replayed")


def _section(job: SimulatedJob, rows: Sequence[Row], notes: Sequence[str]) -> Section:
    windows = rows[0].windows
    size = f"{job.maximum} workers" if job.maximum > 1 else "one worker"
    work_h = job.work_s / HOUR_S / job.scaling.speed(job.maximum)
    heading = (
        f"{work_h:.4g} h of work on {size}, deadline {job.allowed_s / HOUR_S:g} h, "
        f"changeover {job.changeover_s:g} s, {windows} window(s)"
    )
    return Section(
        heading=heading,
        titles=_SIMULATION_TITLES,
        rows=[_cells(row) for row in rows],
        numeric=_SIMULATION_NUMERIC,
        notes=notes,
    )


def _cells(row: Row) -> list[str]:
    over = "" if row.over_bound is None else f"{row.over_bound:.3f}"
    cells = [row.policy, f"{row.cost:.3f}", f"{row.low:.3f}–{row.high:.3f}", over]
    if row.policy == BOUND:
        return cells + [""] * (len(_SIMULATION_TITLES) - len(cells))
    hours = "never" if row.hours is None else f"{row.hours:.1f}"
    return [*cells, hours, f"{row.interruptions:.1f}", f"{row.on_demand:.0%}", f"{row.missed}", _late(row)]


def _late(row: Row) -> str:
    if not row.late_h:
        return ""
    return f"{row.late_h:.1f} h" if isfinite(row.late_h) else "never done"


def _record(job: SimulatedJob, row: Row) -> Mapping[str, Cell]:
    late_h = row.late_h if row.late_h is None or isfinite(row.late_h) else None
    return {
        "policy": row.policy,
        "workers": job.maximum,
        "work_worker_hours": job.work_s / HOUR_S,
        "deadline_hours": job.allowed_s / HOUR_S,
        "changeover_seconds": job.changeover_s,
        "boot_seconds": job.boot_s,
        "refusal_seconds": job.refusal_s,
        "windows": row.windows,
        "usd": row.usd,
        "cost_over_on_demand": row.cost,
        "cost_low": row.low,
        "cost_high": row.high,
        "over_bound": row.over_bound,
        "hours": row.hours,
        "interruptions": row.interruptions,
        "on_demand_share": row.on_demand,
        "missed": row.missed,
        "latest_hours": late_h,
    }


SPOT, ON_DEMAND = "spot", "on-demand"


def simulation_charts(
    job: SimulatedJob, outcome: SimulatedOutcome, *, policy: str, window: str
) -> list[Chart]:
    """Return both charts of an outcome, which must have been replayed with its moments."""
    last_h = max(job.allowed_s, outcome.moments[-1].at_s) / HOUR_S
    x = field("hour", "hours", scale={"domain": [0, last_h], "nice": False})
    title = f"{policy} in {window}"
    return [_instances(outcome, x, title), _progress(job, outcome, x, title)]


def _instances(outcome: SimulatedOutcome, x: Spec, title: str) -> Chart:
    values = []
    for moment, following in zip(outcome.moments, outcome.moments[1:], strict=False):
        begin_h, end_h = moment.at_s / HOUR_S, following.at_s / HOUR_S
        for market, low, count in (
            (SPOT, 0, moment.spot),
            (ON_DEMAND, moment.spot, moment.on_demand),
        ):
            if count and end_h > begin_h:
                text = f"{count} {market} from {begin_h:.2f} h to {end_h:.2f} h: {moment.reason}"
                values.append(
                    {
                        "hour": begin_h,
                        "until": end_h,
                        "low": low,
                        "high": low + count,
                        "market": market,
                        "reason": moment.reason,
                        "description": text,
                    }
                )
    spec = {
        "data": {"name": "lines", "values": values},
        "height": 120,
        "mark": {"type": "rect"},
        "encoding": {
            "x": x,
            "x2": {"field": "until"},
            "y": field("low", "instances"),
            "y2": {"field": "high"},
            "color": nominal("market", "market", scale=scale((SPOT, ON_DEMAND), (BLUE, ORANGE))),
            "tooltip": [
                nominal("market", "market"),
                nominal("reason", "reason"),
                field("hour", "from, hours"),
            ],
            "description": {"field": "description", "type": "nominal"},
        },
    }
    rows = [[f"{m.at_s / HOUR_S:.2f}", str(m.spot), str(m.on_demand), m.reason] for m in outcome.moments]
    return Chart(
        name="simulation-instances",
        caption=f"{title}: instances",
        spec=spec,
        titles=("hour", SPOT, ON_DEMAND, "reason"),
        rows=rows,
        numeric=frozenset({0, 1, 2}),
    )


def _progress(job: SimulatedJob, outcome: SimulatedOutcome, x: Spec, title: str) -> Chart:
    speed = job.scaling.speed(job.maximum)
    least_h, allowed_h = job.work_s / speed / HOUR_S, job.allowed_s / HOUR_S
    done = [{"hour": m.at_s / HOUR_S, "share": m.done_s / job.work_s} for m in outcome.moments]
    y = field("share", "work done", scale={"domain": [0, 1]}, axis={"format": "%"})
    latest = [{"hour": allowed_h - least_h, "share": 0.0}, {"hour": allowed_h, "share": 1.0}]
    spec = {
        "data": {"name": "lines", "values": done},
        "height": 220,
        "layer": [
            {"mark": {"type": "line", "color": BLUE}, "encoding": {"x": x, "y": y}},
            {
                "data": {"values": latest},
                "mark": {"type": "line", "strokeDash": [5, 4], "color": GREY},
                "encoding": {"x": x, "y": y},
            },
            {
                "mark": {"type": "rule", "color": TEXT, "strokeDash": [2, 3]},
                "encoding": {"x": {"datum": allowed_h, "type": "quantitative"}},
            },
        ],
    }
    return Chart(
        name="simulation-progress",
        caption=f"{title}: work done; dashed: the latest start at full speed, and the deadline",
        spec=spec,
        titles=("hour", "work done"),
        rows=[[f"{value['hour']:.2f}", f"{value['share']:.1%}"] for value in done],
        numeric=frozenset({0, 1}),
    )
