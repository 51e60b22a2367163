"""A chart, and what all charts share: colours, shapes, encodings of Vega-Lite."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dlcloud.analysis.cost import ResultRow

Spec = dict[str, Any]

# Mid-tones: each has a contrast of at least 3 to white and to the page's dark; shapes say the same again.
PALETTE = ("#2f7fd6", "#c8591f", "#1f8f63", "#a35fc7", "#967216", "#17808f", "#cf4f86", "#767b84")
BLUE, ORANGE, GREY = PALETTE[0], PALETTE[1], PALETTE[7]
LIGHT_GREY = "#b3b8c1"
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
TEXT = "currentColor"
"""The colour of the page's text, in light and dark; a picture for paper replaces it."""
ROW_PX = 24
WIDE_SPREAD = 10
"""An axis is logarithmic if the largest value is at least this many times the smallest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart: `spec` has its values under `data.values`; `titles` and `rows` are the same as a table."""

    name: str
    caption: str
    spec: Spec
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()


def field(name: str, title: str | None = None, kind: str = "quantitative", **other: object) -> Spec:
    """Return the encoding of a field of the values."""
    return {"field": name, "type": kind, "title": title, **other}


def nominal(name: str, title: str | None = None, **other: object) -> Spec:
    return field(name, title, "nominal", **other)


DESCRIPTION = {"field": "description", "type": "nominal"}
"""The encoding of the text that a screen reader reads out for a mark."""


def scale(names: Sequence[str], values: Sequence[str]) -> Spec:
    """Return a scale that repeats its values where there are more names."""
    return {"domain": list(names), "range": [values[place % len(values)] for place in range(len(names))]}


def title_of(rows: Sequence[ResultRow]) -> str:
    """Return the benchmark, case and type that rows share."""
    cases = {row.result.case for row in rows}
    parts = dict.fromkeys([rows[0].run.workload, *(cases if len(cases) == 1 else ())])
    title = ", ".join(part for part in parts if part)
    types = {row.run.instance_type for row in rows}
    title += f" on {types.pop()}" if len(types) == 1 else ""
    return title + (" (rehearsal)" if rows[0].rehearsal else "")
