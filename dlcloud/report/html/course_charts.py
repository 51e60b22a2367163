"""The course of an elastic training as charts: its workers by market and type, and its bill."""

from collections.abc import Sequence
from typing import Any

from dlcloud.model.money import money
from dlcloud.report.chart import (
    BLUE,
    DESCRIPTION,
    GREY,
    PALETTE,
    SHAPES,
    TEXT,
    Chart,
    Spec,
    field,
    nominal,
    scale,
)
from dlcloud.results.training import NOT_RECORDED, Course, Happening

AXIS_PX = 60
"""The room of a vertical axis, so that times stand above each other."""
MOST_SIZES = 2000
"""More changes than this are thinned out: a screen has no more columns."""


def course_charts(name: str, course: Course, place: int, *, rehearsal: bool) -> list[Chart]:
    """Return the charts of a training: its workers over time, and its bill beside that of a fixed run.

    Args:
        name: Of its cluster.
        course: The training.
        place: Its number on the page.
        rehearsal: Nothing of it was billed.
    """
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
