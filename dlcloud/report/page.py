"""The report as one page that opens offline: tables, and charts drawn by Vega, which travels in the page."""

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from dlcloud.report.charts import TEXT, Chart, Spec
from dlcloud.report.table import Report, Section

PLACE = re.compile(r"@([A-Z]+)@")
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
    body = [_section(section) for section in report.sections] or [f"<p>{escape(report.empty)}</p>"]
    parts = {
        "TITLE": escape(title),
        "SUBTITLE": escape(subtitle),
        "BODY": "\n".join([*map(_figure, charts), *body]),
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


def _figure(chart: Chart) -> str:
    table = _table(chart.titles, chart.rows, chart.numeric)
    return (
        f'<figure id="{chart.name}"><figcaption>{escape(chart.caption)}</figcaption>\n'
        f'<div class="chart"></div>\n<p class="reading" role="status"></p>\n'
        f"<details><summary>Values of this chart</summary>{table}</details></figure>"
    )


def _section(section: Section) -> str:
    first, *others = section.heading.splitlines() or [""]
    heading = f"<h2>{escape(first)}</h2>\n" if first else ""
    heading += "".join(f"<p>{escape(line)}</p>\n" for line in others)
    notes = "".join(f"<li>{escape(note)}</li>" for note in section.notes)
    table = _table(section.titles, section.rows, section.numeric)
    return f"<section>{heading}{table}{f'<ul>{notes}</ul>' if notes else ''}</section>"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], numeric: frozenset[int]) -> str:
    kinds = [' class="number"' if place in numeric else "" for place in range(len(titles))]
    head = "".join(
        f'<th scope="col"{kind}>{escape(title)}</th>' for kind, title in zip(kinds, titles, strict=True)
    )
    body = "\n".join(
        f"<tr>{''.join(f'<td{kind}>{escape(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>"
        for row in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="group"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _json(value: Mapping[str, Any]) -> str:
    """Return JSON that cannot end the script it stands in."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
