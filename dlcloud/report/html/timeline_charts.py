"""The timeline of an elastic run as charts that share their axis of time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dlcloud.report.chart import BLUE, DESCRIPTION, ORANGE, SHAPES, Chart, Spec, field, nominal, scale
from dlcloud.report.html.course_charts import seconds_since_launch
from dlcloud.results.training import Course, Step, Timeline, number_segments

MOST_POINTS = 2000
"""More steps than this are thinned out evenly: a screen has no more columns."""
MANY_POINTS = 100
"""A chart with more points draws them small."""
AXIS_PX = 60
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
