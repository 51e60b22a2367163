"""Tables as text, Markdown, CSV or JSON: one description, every format."""

import csv
import io
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import tabulate as tabulate_module
from tabulate import tabulate

from dlcloud.core.untrusted import printable

SCHEMA = 1
FORMULA = ("=", "+", "-", "@", "\t", "\r")

# By default tabulate makes columns of numbers two wider than their titles; 80 columns have no room for that.
tabulate_module.MIN_PADDING = 0
WIDTH = 80
"""Of a terminal, in characters."""
GAP = 2
"""Between two columns, in characters."""
MARKDOWN_STYLE = "github"

Cell = str | int | float | bool | Decimal | datetime | None


class Format(StrEnum):
    """The format of a result on stdout."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table for people: `rows` of text under `titles`, below a `heading`, above `notes`.

    `wrapped` gives, by column, the width beyond which cells go on in the next line. A `wide` one may be wider
    than a terminal.
    """

    heading: str
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    numeric: frozenset[int] = frozenset()
    wrapped: Mapping[int, int] = field(default_factory=dict)
    wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A command's result: `records` for programs (flat, the same keys in each), `sections` for people.

    `extra` goes into the JSON envelope only.
    """

    command: str
    records: Sequence[Mapping[str, Cell]]
    sections: Sequence[Section]
    empty: str
    extra: Mapping[str, Any] = field(default_factory=dict)


def render(report: Report, form: Format) -> str:
    """Return the report as text that ends without a newline."""
    match form:
        case Format.JSON:
            return envelope(report.command, {"result": {"records": [*report.records], **report.extra}})
        case Format.CSV:
            return _csv(report.records)
        case _:
            style = MARKDOWN_STYLE if form is Format.MARKDOWN else "simple"
            text = "\n\n".join(_section(section, style) for section in report.sections) or report.empty
            return printable(text)


def fitted(section: Section, least: Mapping[int, int]) -> Section:
    """Wrap the widest columns of a section until it is no wider than a terminal.

    Args:
        section: A table.
        least: The columns that may be wrapped, with their least widths.
    """
    columns = zip(section.titles, *section.rows, strict=True)
    widths = [max(map(len, column)) for column in columns]
    wrapped: dict[int, int] = {}
    while sum(widths) + GAP * (len(widths) - 1) > WIDTH:
        narrower = [place for place in least if widths[place] > max(least[place], len(section.titles[place]))]
        if not narrower:
            break
        widest = max(narrower, key=lambda place: widths[place])
        widths[widest] -= 1
        wrapped[widest] = widths[widest]
    return replace(section, wrapped={**section.wrapped, **wrapped})


def envelope(command: str, content: Mapping[str, Any]) -> str:
    """Return the versioned JSON that every command prints, errors included."""
    return json.dumps({"schema": SCHEMA, "command": command, **content}, default=_plain, indent=2)


def _section(section: Section, style: str) -> str:
    aligned = ["right" if index in section.numeric else "left" for index in range(len(section.titles))]
    rows = section.rows
    widths: list[int | None] | None = [section.wrapped.get(index) for index in range(len(section.titles))]
    if style == MARKDOWN_STYLE:
        rows, widths = [[cell.replace("|", r"\|") for cell in row] for row in rows], None
    table = tabulate(
        rows,
        headers=list(section.titles),
        tablefmt=style,
        colalign=aligned,
        disable_numparse=True,
        maxcolwidths=widths if rows else None,
    )
    notes = _wrapped("\n".join(section.notes), style)
    heading = f"{_wrapped(section.heading, style)}\n" if section.heading else ""
    return "\n".join(part for part in (heading, table, f"\n{notes}" if notes else "") if part)


def _wrapped(text: str, style: str) -> str:
    """Break lines that are wider than a terminal; Markdown is broken where it is shown."""
    if style == MARKDOWN_STYLE:
        return text
    lines = (
        textwrap.wrap(line, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )
    return "\n".join("\n".join(line) for line in lines)


def _csv(records: Sequence[Mapping[str, Cell]]) -> str:
    out = io.StringIO()
    if records:
        columns = dict.fromkeys(key for record in records for key in record)
        writer = csv.DictWriter(out, fieldnames=list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _plain_cell(value) for key, value in record.items()} for record in records)
    return out.getvalue().rstrip("\n")


def _plain_cell(value: Cell) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # A spreadsheet would compute what begins like a formula.
        text = printable(value)
        return f"'{text}" if text.startswith(FORMULA) else text
    return _plain(value) if isinstance(value, Decimal | datetime) else value


def _plain(value: object) -> object:
    """Return what JSON cannot represent as text; money stays exact."""
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)
