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

from dlcloud.model.untrusted import printable
from dlcloud.report.layout import columns_that_fit, fit, terminal_width

SCHEMA = 1
FORMULA = ("=", "+", "-", "@", "\t", "\r")

# By default tabulate makes columns of numbers two wider than their titles; 80 columns have no room for that.
tabulate_module.MIN_PADDING = 0
WIDTH = 80
"""The width of a terminal, in characters."""
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
    """A table for people.

    Attributes:
        heading: Above the table.
        titles: Of the columns; without any there is no table, only heading and notes.
        rows: A text for each column.
        notes: Below the table, a line each.
        numeric: Columns that are aligned to the right.
        optional: Columns that are shown where the terminal has room, the most important first.
        wide: It may be wider than a terminal.
        leads: Above 0 it comes first on a page, the largest first of all, and last on a terminal.
    """

    heading: str
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    numeric: frozenset[int] = frozenset()
    optional: Sequence[int] = ()
    wide: bool = False
    leads: int = 0


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


def render(report: Report, form: Format, width: int | None = None) -> str:
    """Return the report as text that ends without a newline; `width` is by default that of the terminal."""
    match form:
        case Format.JSON:
            return envelope(report.command, {"result": {"records": [*report.records], **report.extra}})
        case Format.CSV:
            return _csv(report.records)
        case Format.MARKDOWN:
            texts = [_markdown(section) for section in report.sections]
        case Format.TABLE:
            columns = terminal_width() if width is None else width
            texts = [_text(section, columns) for section in report.sections]
    return printable("\n\n".join(texts) or report.empty)


def envelope(command: str, content: Mapping[str, Any]) -> str:
    """Return the versioned JSON that every command prints, errors included."""
    return json.dumps({"schema": SCHEMA, "command": command, **content}, default=_plain, indent=2)


def without_optional(section: Section) -> Section:
    """Return a section without its optional columns."""
    return _with_columns(section, [n for n in range(len(section.titles)) if n not in section.optional])


def _text(section: Section, width: int) -> str:
    if not section.wide:
        table = [section.titles, *section.rows]
        section = _with_columns(section, columns_that_fit(table, section.optional, width))
        titles, *rows = fit([section.titles, *section.rows], width)
        section = replace(section, titles=titles, rows=rows)
    return _joined(
        _wrapped(section.heading, width), _table(section, "simple"), _wrapped("\n".join(section.notes), width)
    )


def _markdown(section: Section) -> str:
    section = without_optional(section)
    rows = [[cell.replace("|", r"\|") for cell in row] for row in section.rows]
    return _joined(
        section.heading, _table(replace(section, rows=rows), MARKDOWN_STYLE), "\n".join(section.notes)
    )


def _joined(heading: str, table: str, notes: str) -> str:
    return "\n\n".join(part for part in (heading, table, notes) if part)


def _table(section: Section, style: str) -> str:
    return tabulate(
        section.rows,
        headers=list(section.titles),
        tablefmt=style,
        colalign=["right" if n in section.numeric else "left" for n in range(len(section.titles))],
        disable_numparse=True,
    )


def _with_columns(section: Section, shown: Sequence[int]) -> Section:
    return replace(
        section,
        titles=[section.titles[place] for place in shown],
        rows=[[row[place] for place in shown] for row in section.rows],
        numeric=frozenset(new for new, old in enumerate(shown) if old in section.numeric),
        optional=(),
    )


def _wrapped(text: str, width: int) -> str:
    """Break lines that are wider than the terminal between words; commands stay whole, to be pasted."""
    lines = (
        [line]
        if is_command(line)
        else textwrap.wrap(
            line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        for line in text.splitlines()
    )
    return "\n".join("\n".join(line) for line in lines)


def is_command(note: str) -> bool:
    """True if a line of notes is a command to paste."""
    return note.startswith("  dlcloud ")


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
