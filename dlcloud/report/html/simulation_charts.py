"""One simulated window as charts: instances by market over time, progress against the deadline."""

from dlcloud.report.chart import BLUE, GREY, ORANGE, TEXT, Chart, Spec, field, nominal, scale
from dlcloud.scheduling.policies.situation import HOUR_S
from dlcloud.scheduling.simulation.replay import SimulatedJob, SimulatedOutcome

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
