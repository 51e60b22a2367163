"""Charts, and the report with its charts as one page that opens offline, or as a picture.

`Chart` and what all charts share (colours, shapes, encodings of Vega-Lite) come first; the modules of the
subjects, such as `cost_charts.py`, build charts from them. `page` and `picture` write the result.

Vega-Lite draws both: in the page by its JavaScript, which the page contains; for a picture by vl-convert,
which needs no browser. Both need the extra `plot`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from dlcloud.analysis.cost import ResultRow
from dlcloud.model.errors import RecipeError, install_hint
from dlcloud.report.cells import UNSTABLE
from dlcloud.report.table import Report, Section, is_command, without_optional
from dlcloud.system.files import write_file

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


PLACE = re.compile(r"@([A-Z]+)@")
VEGA_LITE = "6.1"
HINT = install_hint("plot")
WIDTH_PX = 640
PIXELS_PER_INCH = 300
POINTS_PER_INCH = 72
LONGEST_PX = 6000
AROUND_CHART = 130
"""Points of a chart's title, axis and legend."""
MINOR = frozenset(
    {
        *("interval", "boot", "set-up", "run", "rest", "as of", "zone", "TFLOPS/USD", "region", "launched"),
        *("longest pause", "time", "mean workers", "pauses", "of peak"),
    }
)
"""Columns that a narrow screen leaves out; the terminal and a wider one have them."""
GRID = "#8a919c40"
"""A grey, mostly transparent: visible on white and on dark."""


def page(
    template: str, bundle: str, report: Report, charts: Sequence[Chart], *, title: str, subtitle: str
) -> str:
    """Return the page.

    Args:
        template: Its HTML, with @NAME@ in the place of each part.
        bundle: The JavaScript that draws, which defines `window.vegaEmbed`.
        report: Its tables are shown below the charts.
        charts: The charts.
        title: The heading.
        subtitle: The number of results, and the date.
    """
    leading = sorted((section for section in report.sections if section.leads), key=lambda one: -one.leads)
    answer = [section_html(section) for section in leading]
    body = [section_html(section) for section in report.sections if not section.leads]
    body = body if body or answer else [f"<p>{escape(report.empty)}</p>"]
    parts = {
        "TITLE": escape(title),
        "SUBTITLE": escape(subtitle),
        "BODY": "\n".join([*answer, *map(_figure, charts), *body]),
        "CHARTS": _json({chart.name: themed(chart.spec) for chart in charts}),
        "BUNDLE": bundle.replace("</script", "<\\/script"),
    }
    # In one go, so that what a part holds is never taken for the place of another.
    return PLACE.sub(lambda match: parts[match[1]], template)


def themed(spec: Spec, *, text: str = TEXT, width: int | str = "container") -> Spec:
    """Return a specification with the looks of the page, its background transparent.

    Args:
        spec: The chart.
        text: The colour of words and axes; by default that of the surrounding text.
        width: In pixels, or `container`.
    """
    words = {"labelColor": text, "titleColor": text, "labelFontSize": 12, "titleFontSize": 12}
    config: Spec = {
        "background": None,
        "font": "system-ui, sans-serif",
        "axis": {
            **words,
            "domainColor": text,
            "tickColor": text,
            "gridColor": GRID,
            "titleFontWeight": "normal",
            "labelOverlap": "greedy",
            "labelSeparation": 6,
        },
        "legend": {
            **words,
            "symbolFillColor": text,
            "symbolStrokeColor": text,
            "orient": "bottom",
            "columns": 4,
        },
        "title": {"color": text},
        "text": {"color": text, "fontSize": 12},
        "view": {"stroke": None},
    }
    schema = "https://vega.github.io/schema/vega-lite/v6.json"
    return {
        "$schema": schema,
        **spec,
        "width": width,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": config,
    }


def bundle(cache: Path) -> str:
    """Return the JavaScript that draws, made once (seconds) and kept in the folder `cache`.

    Raises:
        RecipeError: vl-convert is not installed.
    """
    converter = _converter()
    path = cache / f"vega-{VEGA_LITE}-{converter.__version__}.js"
    if not path.exists():
        write_file(path, converter.javascript_bundle(vl_version=VEGA_LITE))
    return path.read_text("utf-8")


def picture(charts: Sequence[Chart], form: str) -> bytes:
    """Return the charts as one picture for a paper, black on white; `form` is `png` or `svg`.

    Raises:
        RecipeError: vl-convert is not installed.
    """
    converter = _converter()
    spec = _printed(charts)
    if form == "svg":
        return str(converter.vegalite_to_svg(spec, vl_version=VEGA_LITE)).encode()
    return bytes(converter.vegalite_to_png(spec, vl_version=VEGA_LITE, ppi=_pixels_per_inch(charts)))


def _figure(chart: Chart) -> str:
    table = _table(chart.titles, chart.rows, chart.numeric)
    return (
        f'<figure id="{chart.name}"><figcaption>{escape(chart.caption)}</figcaption>\n'
        f'<div class="chart"></div>\n<p class="reading" role="status"></p>\n'
        f"<details><summary>Values of this chart</summary>{table}</details></figure>"
    )


def section_html(section: Section) -> str:
    """Return a table as HTML, with its heading and notes."""
    first, *others = section.heading.splitlines() or [""]
    heading = f"<h2>{escape(first)}</h2>\n" if first else ""
    heading += "".join(f"<p>{escape(line)}</p>\n" for line in others)
    notes = "".join(f"<li>{_note(note)}</li>" for note in section.notes)
    section = without_optional(section)
    table = _table(section.titles, section.rows, section.numeric) if section.titles else ""
    return f"<section>{heading}{table}{f'<ul>{notes}</ul>' if notes else ''}</section>"


def _note(note: str) -> str:
    return f"<code>{escape(note.strip())}</code>" if is_command(note) else escape(note)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], numeric: frozenset[int]) -> str:
    kinds = [_class(title, is_number=place in numeric) for place, title in enumerate(titles)]
    head = "".join(
        f'<th scope="col"{kind}>{escape(title)}</th>' for kind, title in zip(kinds, titles, strict=True)
    )
    body = "\n".join(f"<tr>{''.join(map(_cell, titles, kinds, row))}</tr>" for row in rows)
    return (
        f'<div class="wide" tabindex="0" role="group"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _cell(title: str, kind: str, text: str) -> str:
    """Return a cell; its title is shown next to it if a narrow screen has no room for columns."""
    return f'<td{kind} data-title="{escape(title)}">{escape(_keep_marks(text))}</td>'


def _keep_marks(text: str) -> str:
    """Return a cell whose mark stays on the line of the word before it."""
    return text.replace(UNSTABLE, f"\N{NO-BREAK SPACE}{UNSTABLE.strip()}")


def _class(title: str, *, is_number: bool) -> str:
    names = ["number"] if is_number else []
    names += ["minor"] if title in MINOR else []
    return f' class="{" ".join(names)}"' if names else ""


def _json(value: Mapping[str, Any]) -> str:
    """Return JSON that cannot end the script it stands in."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _pixels_per_inch(charts: Sequence[Chart]) -> float:
    """Return the resolution at which a picture is no longer than LONGEST_PX."""
    points = sum(chart.spec["height"] + AROUND_CHART for chart in charts)
    return float(min(PIXELS_PER_INCH, POINTS_PER_INCH * LONGEST_PX / points))


def _printed(charts: Sequence[Chart]) -> Spec:
    panels = [
        {
            **chart.spec,
            "data": {**chart.spec["data"], "name": chart.name},
            "title": {"text": chart.caption, "anchor": "start"},
            "width": WIDTH_PX,
        }
        for chart in charts
    ]
    whole = themed(
        {"vconcat": panels, "resolve": {"scale": {"color": "independent", "shape": "independent"}}},
        text="black",
    )
    config = {**whole["config"], "background": "white", "font": "sans-serif"}
    kept = {name: value for name, value in whole.items() if name not in {"width", "autosize"}}
    return _coloured({**kept, "config": config})


def _coloured(value: Spec) -> Spec:
    """Replace the colour of the page's text, which a picture does not have."""

    def replaced(part: object) -> object:
        if isinstance(part, dict):
            return {name: replaced(inner) for name, inner in part.items()}
        if isinstance(part, list):
            return [replaced(inner) for inner in part]
        return "black" if part == TEXT else part

    return {name: replaced(inner) for name, inner in value.items()}


def refuse_missing_plot() -> None:
    """Refuse what would draw charts, before anything is launched for them.

    Raises:
        RecipeError: The extra `plot` is not installed.
    """
    if find_spec("vl_convert") is None:
        raise RecipeError("charts are drawn by vl-convert, which is missing", HINT)


def _converter() -> ModuleType:
    try:
        import vl_convert  # noqa: PLC0415  84 MB that only pictures need
    except ImportError as error:
        raise RecipeError("charts are drawn by vl-convert, which is missing", HINT) from error
    return vl_convert
