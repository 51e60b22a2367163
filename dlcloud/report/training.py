"""Elastic trainings as tables and charts: one in detail, several side by side, and the pictures on the page.

`training_report` prints one training: world sizes, events, decisions for its deadline, and the cost of each
instance. `trainings_section` compares several in the cost report. `course_charts` draws workers and bill over
time, `step_charts` adds throughput and loss on the same axis, and `timeline_charts` draws a run whose
instances are not stored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from dlcloud.analysis.training import (
    NOT_RECORDED,
    Course,
    Happening,
    InstanceCost,
    Step,
    Timeline,
    Training,
    market_usd,
    number_segments,
)
from dlcloud.model.instance import Market
from dlcloud.model.money import millionths, money, rounded
from dlcloud.report.cells import digits, duration, marked
from dlcloud.report.page import (
    BLUE,
    DESCRIPTION,
    GREY,
    ORANGE,
    PALETTE,
    SHAPES,
    TEXT,
    Chart,
    Spec,
    field,
    nominal,
    scale,
)
from dlcloud.report.table import Cell, Report, Section
from dlcloud.scheduling.outlook import Outlook, describe_probability, describe_seconds

CALM_S = 0.0005
"""A shorter pause is none."""


def training_report(
    training: Training,
    *,
    cluster: str,
    rehearsal: bool,
    command: str = "training",
    decisions: Sequence[Outlook] = (),
) -> Report:
    """Return a training as tables."""
    return Report(
        command=command,
        records=[_record(training)],
        sections=[
            _sizes(training, cluster, rehearsal=rehearsal),
            _events(training),
            *([_decisions(decisions)] if decisions else []),
            _costs(training),
        ],
        empty="",
        extra={
            "cluster": cluster,
            "rehearsal": rehearsal,
            "world_sizes": [
                {key: getattr(period, key) for key in ("at_s", "world_size", "steps", "pause_s")}
                for period in training.periods
            ],
            "events": [
                {key: getattr(event, key) for key in ("at_s", "event", "cause", "worker")}
                for event in training.events
            ],
            "instances": [_cost_record(cost) for cost in training.costs],
            **({"decisions": [outlook.to_values() for outlook in decisions]} if decisions else {}),
        },
    )


def _record(training: Training) -> dict[str, Cell]:
    baseline, saved = training.baseline, training.saved_fraction
    return {
        "run": training.run,
        "steps": training.steps,
        "samples": training.samples,
        "seconds": round(training.seconds, 3),
        "start_seconds": round(training.start_s, 3),
        "mean_world_size": round(training.mean_world_size, 3),
        "steps_redone": training.steps_redone,
        "redone_usd": _usd(training.redone_usd),
        "last_loss": training.last_loss,
        "usd": _usd(training.usd),
        "spot_usd": _usd(market_usd(training, Market.SPOT)),
        "on_demand_usd": _usd(market_usd(training, Market.ON_DEMAND)),
        "fixed_instances": baseline.instances if baseline else None,
        "fixed_seconds": round(baseline.seconds, 1) if baseline else None,
        "fixed_usd": _usd(baseline.usd) if baseline else None,
        "saved": None if saved is None else round(float(saved), 4),
        "traffic_gb_at_most": round(training.traffic_gb, 3),
        "traffic_usd_at_most": _usd(training.traffic_usd),
    }


def _sizes(training: Training, cluster: str, *, rehearsal: bool) -> Section:
    notes = [
        f"{training.mean_world_size:.2f} workers on average; {_redone(training)}",
        f"start: {duration(training.start_s)} from the launch to the first step, which is no pause",
        "pause: the time to the first step of a line, less a usual step; a stall begins a line",
    ]
    if rehearsal:
        notes.append("rehearsal: the workers ran on this machine")
    work = f"{training.steps} steps, {training.samples} samples in {training.seconds:.1f} s"
    return Section(
        heading=f"{cluster}: {work}",
        titles=("at s", "workers", "steps", "pause s"),
        rows=[
            (f"{period.at_s:.1f}", str(period.world_size), str(period.steps), _pause(period.pause_s))
            for period in training.periods
        ],
        notes=notes,
        numeric=frozenset({0, 1, 2, 3}),
    )


def _redone(training: Training) -> str:
    text = f"{training.steps_redone} step(s) redone"
    if not training.redone_usd:
        return text
    return f"{text}, which cost {money(training.redone_usd)} USD"


def _events(training: Training) -> Section:
    return Section(
        heading="what happened",
        titles=("at s", "worker", "event", "cause"),
        rows=[(f"{event.at_s:.1f}", event.worker, event.event, event.cause) for event in training.events],
        numeric=frozenset({0}),
    )


def _decisions(decisions: Sequence[Outlook]) -> Section:
    last = decisions[-1]
    return Section(
        heading=f"decisions for the deadline, {last.deadline:%Y-%m-%d %H:%M:%S} UTC",
        titles=("time left", "worker-hours left", "probability", "change", "reason"),
        rows=[
            (
                describe_seconds(outlook.time_left_s),
                f"{outlook.work_left_s / 3600:.2f}",
                describe_probability(outlook.probability),
                _change(outlook),
                outlook.reason,
            )
            for outlook in decisions
        ],
        notes=["probability: that the deadline holds, an estimate (docs/elastic.md)"],
        numeric=frozenset({1}),
    )


def _change(outlook: Outlook) -> str:
    launches = [f"+{count} {pools}" for pools, count in outlook.launch.items()]
    return "; ".join([*launches, *(f"-{name}" for name in outlook.drain)])


def _costs(training: Training) -> Section:
    rows = []
    for cost in training.costs:
        record = {**_cost_record(cost), "usd": None if cost.usd is None else money(cost.usd)}
        rows.append(tuple("" if value is None else str(value) for value in record.values()))
    heading = "what each instance cost; a price is not known"
    if training.usd is not None:
        heading = f"{money(training.usd)} USD in all, volumes and addresses included"
    return Section(
        heading=heading,
        titles=("instance", "type", "market", "seconds", "USD/h", "USD"),
        rows=rows,
        notes=[_beside_baseline(training), *_traffic(training)],
        numeric=frozenset({3, 4, 5}),
    )


def _cost_record(cost: InstanceCost) -> dict[str, Cell]:
    instance, hourly_usd = cost.member.instance, cost.member.hourly_usd
    return {
        "instance": instance.instance_id,
        "type": instance.instance_type,
        "market": instance.market.value,
        "seconds": cost.seconds,
        "hourly_usd": None if hourly_usd is None else str(hourly_usd),
        "usd": _usd(cost.usd),
    }


def _beside_baseline(training: Training) -> str:
    baseline, saved = training.baseline, training.saved_fraction
    if not training.trained_s:
        return "one step compares nothing: no saving compared with a fixed run is claimed"
    if baseline is None or saved is None:
        return "the cost of a fixed run is unknown: a price or a speed is missing"
    word = "saved" if saved >= 0 else "more"
    return (
        f"the same steps on {baseline.instances} on-demand instances, without a change: about"
        f" {money(baseline.usd)} USD in {baseline.seconds:.0f} s; {abs(saved) * 100:.0f} % {word}"
        + (", which EC2's minimum of a minute an instance decides" if training.is_minimum_billed else "")
    )


def _traffic(training: Training) -> list[str]:
    if not training.traffic_gb:
        return []
    amount = f"{training.traffic_gb:.3g} GB, {money(training.traffic_usd)} USD"
    return [f"traffic between zones, at most, not in the total: {amount}"]


def _pause(pause_s: float | None) -> str:
    if pause_s is None:
        return ""
    return "0" if pause_s < CALM_S else f"{pause_s:.3f}"


def _usd(value: Decimal | None) -> str | None:
    return None if value is None else str(rounded(value))


TITLES = (
    "training",
    "samples/s",
    "USD/M",
    "fixed",
    "saved",
    "start",
    "USD",
    "longest pause",
    "time",
    "steps",
    "mean workers",
    "pauses",
)
OPTIONAL = range(TITLES.index("longest pause"), len(TITLES))
NOTES = (
    "samples/s: between the first step and the last; start: from the launch to the first step",
    "USD/M: USD per million samples; fixed: the same steps on on-demand instances, without a change",
)


def trainings_section(
    trainings: Mapping[str, tuple[Training, bool]], *, whole: bool = True, older: int = 0
) -> list[Section]:
    """Return a row for each training; nothing without any.

    Args:
        trainings: By cluster name, each with whether it was rehearsed.
        whole: Every column, whatever the width.
        older: The number of trainings that are not among them.
    """
    notes = [*NOTES]
    short = [name for name, (training, _) in trainings.items() if training.is_minimum_billed]
    if short:
        notes.append(f"EC2 bills a minute of each instance at least, which decides: {', '.join(short)}")
    if any(is_rehearsal for _, is_rehearsal in trainings.values()):
        notes.append("* rehearsal: not billed, at the types' prices, at this machine's speed")
    if older:
        notes.append(f"and {older} older: dlcloud training NAME")
    section = Section(
        heading="elastic trainings",
        titles=TITLES,
        rows=[_row(name, *values) for name, values in trainings.items()],
        notes=notes,
        numeric=frozenset({1, 2, 3, 4, 5, 6, 9, 10}),
        optional=() if whole else OPTIONAL,
    )
    return [section] if trainings else []


def training_records(trainings: Mapping[str, tuple[Training, bool]]) -> list[dict[str, Any]]:
    return [
        {
            "cluster": name,
            "rehearsal": is_rehearsal,
            "steps": training.steps,
            "samples": training.samples,
            "samples_per_s": training.samples_per_s,
            "start_seconds": round(training.start_s, 3),
            "seconds": round(training.trained_s, 3),
            "mean_world_size": round(training.mean_world_size, 3),
            "longest_pause_seconds": max(_pauses(training), default=0.0),
            "usd": millionths(training.usd),
            "usd_per_million": millionths(training.usd_per_million),
            "fixed_usd_per_million": millionths(training.fixed_usd_per_million),
            "saved": None if training.saved_fraction is None else round(float(training.saved_fraction), 4),
            "minimum_billed": training.is_minimum_billed,
        }
        for name, (training, is_rehearsal) in trainings.items()
    ]


def _row(name: str, training: Training, is_rehearsal: bool) -> Sequence[str]:  # noqa: FBT001  unpacked
    pauses, saved, speed = _pauses(training), training.saved_fraction, training.samples_per_s

    def usd(amount: Decimal | None) -> str:
        return "unknown" if amount is None else marked(money(amount), is_rehearsal)

    return (
        name,
        "" if speed is None else marked(digits(speed), is_rehearsal),
        usd(training.usd_per_million),
        usd(training.fixed_usd_per_million),
        "" if saved is None else f"{float(saved):.0%}",
        duration(training.start_s),
        usd(training.usd),
        duration(max(pauses, default=0.0)),
        duration(training.trained_s),
        f"{training.steps:,}",
        f"{training.mean_world_size:.2f}",
        f"{duration(sum(pauses))} in {len(pauses)}",
    )


def _pauses(training: Training) -> list[float]:
    """Return the pauses of changes and stalls; the time before the first step is none."""
    return [period.pause_s for period in training.periods if period.pause_s is not None]


AXIS_PX = 60
"""The room of a vertical axis, so that times stand above each other."""
MOST_SIZES = 2000
"""More changes than this are thinned out: a screen has no more columns."""


def course_charts(name: str, course: Course, place: int, *, rehearsal: bool) -> list[Chart]:
    """Return the charts of a training: its workers over time, and its bill next to that of a fixed run."""
    x = seconds_since_launch(course)
    mark = " (rehearsal)" if rehearsal else ""
    charts = [_workers(f"training-{place}-workers", f"{name}{mark}: workers by market and type", course, x)]
    return charts + _bills(f"training-{place}-usd", f"{name}{mark}: USD so far", course, x)


def seconds_since_launch(course: Course) -> Spec:
    """Return the axis of time that all charts of a training share."""
    title = f"seconds since the launch, {course.launched_at:%Y-%m-%d %H:%M:%S} UTC"
    end_s = max([course.end_s, *(at_s for at_s, _ in course.fixed_bill)]) or 1
    return field("at_s", title, scale={"domain": [0, end_s], "nice": False})


def _workers(name: str, caption: str, course: Course, x: Spec) -> Chart:
    sizes = course.sizes[: MOST_SIZES * len({size.pool for size in course.sizes})]
    pools = sorted({size.pool for size in sizes}, key=lambda pool: (pool == NOT_RECORDED, pool))
    values: list[dict[str, Any]] = [
        {
            "at_s": size.at_s,
            "pool": size.pool,
            "workers": size.workers,
            "description": f"{size.workers} workers {size.pool} from {size.at_s:.1f} s on",
        }
        for size in sizes
    ]
    most = max([1, *(mark.size for mark in course.marks), *_totals(course)])
    axis = {"minExtent": AXIS_PX, "format": "d", "values": _ticks(most)}
    y = field("workers", "workers", axis=axis, scale={"domain": [0, most + 0.5], "nice": False})
    colours = {
        "domain": pools,
        "range": [GREY if pool == NOT_RECORDED else PALETTE[place % 7] for place, pool in enumerate(pools)],
    }
    area = {
        "mark": {"type": "area", "interpolate": "step-after", "opacity": 0.75, "aria": False},
        "encoding": {
            "x": x,
            "y": {**y, "stack": "zero"},
            "color": nominal("pool", None, scale=colours),
            "order": {"field": "pool"},
        },
    }
    start = {
        "data": {"values": [{"from": 0, "to": course.start_s, "text": "start"}]},
        "mark": {"type": "rect", "color": GREY, "opacity": 0.15, "aria": False},
        "encoding": {"x": {**x, "field": "from"}, "x2": {"field": "to"}},
    }
    return Chart(
        name=name,
        caption=caption,
        spec={
            "data": {"name": "lines", "values": values},
            "height": 160,
            "layer": [start, area, *([_happenings(course, x, y)] if course.marks else [])],
        },
        titles=("seconds", "event", "worker or pool", "workers", "cause"),
        rows=_rows(course),
        numeric=frozenset({0, 3}),
    )


def _happenings(course: Course, x: Spec, y: Spec) -> Spec:
    """Return the layer with a point for each event of a worker."""
    marks = [
        {
            "at_s": mark.at_s,
            "happening": str(mark.happening),
            "workers": mark.size,
            "worker": mark.worker,
            "cause": mark.cause,
            "description": f"{mark.happening} of {mark.worker} after {mark.at_s:.1f} s: {mark.cause}",
        }
        for mark in course.marks
    ]
    return {
        "data": {"values": marks},
        "mark": {"type": "point", "filled": True, "size": 90, "color": TEXT, "opacity": 1},
        "encoding": {
            "x": x,
            "y": {**y, "stack": None},
            "shape": nominal("happening", None, scale=scale([str(kind) for kind in Happening], SHAPES)),
            "tooltip": [
                field("at_s", "seconds", format=".1f"),
                *map(nominal, ("happening", "worker", "cause")),
            ],
            "description": DESCRIPTION,
        },
    }


def _totals(course: Course) -> list[int]:
    """Return the workers of all pools together at each change."""
    totals: dict[float, int] = {}
    for size in course.sizes:
        totals[size.at_s] = totals.get(size.at_s, 0) + size.workers
    return [*totals.values()]


def _ticks(most: int) -> list[int]:
    """Return whole numbers of workers, about five."""
    return [*range(0, most + 1, max(1, -(-most // 5)))]


def _rows(course: Course) -> Sequence[Sequence[str]]:
    """Return sizes and events in the order of time, as a table."""
    rows = [(size.at_s, "size", size.pool, str(size.workers), "") for size in course.sizes]
    rows += [
        (mark.at_s, str(mark.happening), mark.worker, str(mark.size), mark.cause) for mark in course.marks
    ]
    first = ("0.0", "launch", "", "0", f"the start takes {course.start_s:.1f} s")
    return [first, *((f"{at_s:.1f}", *others) for at_s, *others in sorted(rows, key=lambda row: row[0]))]


def _bills(name: str, caption: str, course: Course, x: Spec) -> list[Chart]:
    """Return the chart of the bill; none without a price."""
    if not course.bill:
        return []
    lines = (("this training", course.bill), ("the fixed run, on demand", course.fixed_bill))
    values = [
        {
            "at_s": at_s,
            "usd": float(usd),
            "of": of,
            "description": f"{of}: {money(usd)} USD after {at_s:.1f} s",
        }
        for of, points in lines
        for at_s, usd in points
    ]
    names = [of for of, points in lines if points]
    spec = {
        "data": {"name": "lines", "values": values},
        "height": 140,
        "mark": {"type": "line", "point": {"size": 20}, "strokeWidth": 2},
        "encoding": {
            "x": x,
            "y": field("usd", "USD", axis={"minExtent": AXIS_PX}, scale={"zero": True}),
            "color": nominal("of", None, scale=scale(names, (BLUE, GREY))),
            "strokeDash": nominal("of", None, scale={"domain": names, "range": [[1, 0], [6, 4]]}),
            "tooltip": [
                field("at_s", "seconds", format=".1f"),
                field("usd", "USD", format=".3~g"),
                nominal("of", "of"),
            ],
            "description": DESCRIPTION,
        },
    }
    rows = [(of, f"{at_s:.1f}", money(usd)) for of, points in lines for at_s, usd in points]
    return [
        Chart(
            name=name,
            caption=caption,
            spec=spec,
            titles=("of", "seconds", "USD"),
            rows=rows,
            numeric=frozenset({1, 2}),
        )
    ]


MOST_POINTS = 2000
"""More steps than this are thinned out evenly: a screen has no more columns."""
MANY_POINTS = 100
"""A chart with more points draws them small."""
"""The room of every vertical axis, so that times stand above each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A value of each step that is drawn over time."""

    title: str
    value: Callable[[Step], float | None]
    interpolate: str = "linear"
    zero: bool = True


WORLD_SIZE = Panel(title="world size", value=lambda step: step.world_size, interpolate="step-before")
THROUGHPUT = Panel(title="samples/s", value=lambda step: step.throughput)
LOSS = Panel(title="loss", value=lambda step: step.loss, zero=False)


def step_charts(timeline: Timeline, name: str, place: int, course: Course) -> list[Chart]:
    """Return throughput and, where it is reported, loss over time: what `course_charts` does not draw."""
    offset_s = (timeline.began_at - course.launched_at).total_seconds()
    steps = tuple(replace(step, at_s=step.at_s + offset_s) for step in timeline.steps)
    shifted = replace(timeline, steps=steps)
    x = seconds_since_launch(course)
    return [chart for chart in _panels(shifted, name, place, [THROUGHPUT, LOSS], x) if chart is not None]


def _panels(
    timeline: Timeline, name: str, place: int, panels: Sequence[Panel], x: Spec
) -> list[Chart | None]:
    return [
        _steps_chart(f"timeline-{place}-{number}", f"{name}: {panel.title}", panel, timeline.steps, x)
        for number, panel in enumerate(panels)
    ]


def timeline_charts(timeline: Timeline, place: int) -> list[Chart]:
    """Return world size, throughput, loss and events over time."""
    last = max([timeline.steps[-1].at_s, *(event.at_s for event in timeline.events)])
    title = f"seconds since {timeline.began_at:%Y-%m-%d %H:%M:%S} UTC"
    x = field("at_s", title, scale={"domain": [0, last or 1], "nice": False})
    name = timeline.run or "elastic run"
    panels = [WORLD_SIZE, THROUGHPUT, LOSS]
    charts = _panels(timeline, name, place, panels, x)
    events = _events_chart(f"timeline-{place}-events", f"{name}: events", timeline, x)
    return [chart for chart in (*charts, events) if chart is not None]


def _steps_chart(name: str, caption: str, panel: Panel, steps: Sequence[Step], x: Spec) -> Chart | None:
    title = panel.title
    values: list[dict[str, Any]] = [
        {
            "at_s": step.at_s,
            "step": step.step,
            "value": value,
            "world_size": step.world_size,
            # No line crosses a stall: it would show work where there was none.
            "segment": segment,
        }
        for step, segment in zip(steps, number_segments(steps), strict=True)
        if (value := panel.value(step)) is not None
    ]
    if not values:
        return None
    values = _thinned(values)
    for point in values:
        at_s, value = point["at_s"], point["value"]
        point["description"] = f"step {point['step']} after {at_s:.1f} s: {value:.4g} {title}"
    y = field("value", title, axis={"minExtent": AXIS_PX}, scale={"zero": panel.zero})
    tooltip = [
        field("step", "step"),
        field("at_s", "seconds", format=".2f"),
        field("value", title, format=".5~g"),
        field("world_size", "world size"),
    ]
    size = 12 if len(values) > MANY_POINTS else 40
    points = {
        "mark": {"type": "point", "filled": True, "size": size, "color": BLUE},
        "encoding": {"x": x, "y": y, "tooltip": tooltip, "description": DESCRIPTION},
    }
    line = {
        "mark": {"type": "line", "interpolate": panel.interpolate, "color": BLUE, "aria": False},
        "encoding": {"x": x, "y": y, "detail": {"field": "segment"}},
    }
    return Chart(
        name=name,
        caption=caption,
        spec={"data": {"name": "lines", "values": values}, "height": 120, "layer": [line, points]},
        titles=("step", "seconds", title),
        rows=[[str(point["step"]), f"{point['at_s']:.2f}", f"{point['value']:.5g}"] for point in values],
        numeric=frozenset({0, 1, 2}),
    )


def _events_chart(name: str, caption: str, timeline: Timeline, x: Spec) -> Chart | None:
    if not timeline.events:
        return None
    values = [
        {
            "at_s": event.at_s,
            "event": event.event,
            "cause": event.cause,
            "worker": event.worker,
            "description": f"{event.event} of {event.worker} after {event.at_s:.1f} s: {event.cause}",
        }
        for event in timeline.events
    ]
    kinds = list(dict.fromkeys(event.event for event in timeline.events))
    tooltip = [
        field("at_s", "seconds", format=".2f"),
        *(nominal(name, name) for name in ("event", "cause", "worker")),
    ]
    spec = {
        "data": {"name": "lines", "values": values},
        "height": 22 * len(kinds),
        "mark": {"type": "point", "filled": True, "size": 80, "color": ORANGE, "opacity": 0.9},
        "encoding": {
            "x": x,
            "y": nominal("event", sort=kinds, axis={"minExtent": AXIS_PX, "grid": True}),
            # The row already says which event it is; the shape does so where rows are far from their names.
            "shape": {"field": "event", "type": "nominal", "scale": scale(kinds, SHAPES), "legend": None},
            "tooltip": tooltip,
            "description": DESCRIPTION,
        },
    }
    rows = [[f"{event.at_s:.2f}", event.event, event.worker, event.cause] for event in timeline.events]
    return Chart(
        name=name,
        caption=caption,
        spec=spec,
        titles=("seconds", "event", "worker", "cause"),
        rows=rows,
        numeric=frozenset({0}),
    )


def _thinned(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most MOST_POINTS of the values, evenly, the first and the last among them."""
    if len(values) <= MOST_POINTS:
        return values
    step = (len(values) - 1) / (MOST_POINTS - 1)
    return [values[round(place * step)] for place in range(MOST_POINTS)]
