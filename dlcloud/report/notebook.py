"""Results for Python and notebooks: rows of plain values, tables and charts that show themselves."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from math import nan
from pathlib import Path
from typing import Any

from dlcloud.benchmarks.harness.numbers import read_number
from dlcloud.model.errors import RecipeError
from dlcloud.report.page import Chart, picture, section_html
from dlcloud.report.table import Format, Report, render

INFERRED_ROWS = 100
"""Rows by which polars decides what a column holds."""
PRINTED_FACTS = "fact_printed"
"""The column with what a program printed, by name."""
STYLE = (
    "<style>.dlcloud .number{text-align:right}.dlcloud td,.dlcloud th{text-align:left}"
    ".dlcloud ul{padding-left:1.2em}.dlcloud svg{max-width:100%;height:auto;background:#fff}</style>"
)


class Rows(list[dict[str, Any]]):
    """A result as a list of rows, each a dictionary with the same keys.

    Values are texts, numbers, truth values, aware times, and None where there is none; money is a float of
    USD. `pandas.DataFrame(rows)` and `polars.DataFrame(rows)` take them as they are. A notebook shows the
    table that the command prints, `print` prints it.
    """

    def __init__(self, report: Report, charts: Callable[[], Sequence[Chart]] = tuple) -> None:
        super().__init__(plain_rows(report.records))
        self._report = report
        self._charts = charts

    def __repr__(self) -> str:
        return render(self._report, Format.TABLE)

    __str__ = __repr__

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[dict[str, Any]]]]:
        """Return the rows alone, for copies and other processes."""
        return list, ([*self],)

    def _repr_html_(self) -> str:
        sections = [section_html(section) for section in self._report.sections]
        return f'<div class="dlcloud">{STYLE}{"".join(sections)}</div>'

    def chart(self) -> "Figure":
        """Return the charts of these rows: cost against throughput, and speed-ups.

        Raises:
            RecipeError: There is nothing to draw, or vl-convert is not installed (`dlcloud[plot]`).
        """
        charts = self._charts()
        if not charts:
            raise RecipeError("there is nothing to draw: no comparison and no price", "dlcloud.results()")
        return Figure(charts)


class Figure:
    """Charts that a notebook shows; `save` writes them to a file.

    Raises:
        RecipeError: vl-convert is not installed.
    """

    def __init__(self, charts: Sequence[Chart]) -> None:
        self._charts = charts
        self._svg = picture(charts, "svg").decode()

    def __repr__(self) -> str:
        return "\n".join(chart.caption for chart in self._charts)

    def _repr_html_(self) -> str:
        return f'<div class="dlcloud">{STYLE}{self._svg}</div>'

    def save(self, path: str | Path) -> None:
        """Write a PNG or an SVG, as the file's name ends.

        Raises:
            RecipeError: It ends in neither.
        """
        form = Path(path).suffix.lower()
        if form not in {".png", ".svg"}:
            raise RecipeError(f"{path}: which format?", "end it in .png or .svg")
        Path(path).write_bytes(picture(self._charts, form.lstrip(".")))


def plain_rows(records: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    """Return records as rows of plain values: the same keys in each, one kind of value in a column."""
    rows = [dict(_cells(record)) for record in records]
    columns = {name: [row.get(name) for row in rows] for row in rows for name in row}
    uniform = {name: _uniform(values) for name, values in columns.items()}
    return [{name: values[place] for name, values in uniform.items()} for place in range(len(rows))]


def _cells(record: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the cells of a record; what a program printed under its own names, unless these are taken."""
    for name, value in record.items():
        if isinstance(value, Mapping) and name == PRINTED_FACTS:
            yield from (
                (fact if fact not in record else f"fact_{fact}", _number_or_text(text))
                for fact, text in value.items()
            )
        elif isinstance(value, Mapping | list | tuple):
            yield name, json.dumps(value, default=str)
        else:
            yield name, float(value) if isinstance(value, Decimal) else value


def _number_or_text(value: object) -> object:
    number = read_number(str(value))
    return str(value) if number is None else number


def _uniform(values: Sequence[object]) -> list[object]:
    """Return a column whose values have one type, which is seen in its first rows."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        values = [float(value) if isinstance(value, int) else value for value in values]
    elif len(kinds) > 1:
        values = [None if value is None else str(value) for value in values]
    first = [value for value in values if value is not None][:1]
    if not first or any(value is not None for value in values[:INFERRED_ROWS]):
        return [*values]
    missing: object = "" if isinstance(first[0], str) else None
    if isinstance(first[0], int | float) and not isinstance(first[0], bool):
        values = [None if value is None else float(str(value)) for value in values]
        missing = nan
    return [missing if value is None else value for value in values]
