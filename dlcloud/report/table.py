"""Tables as text, Markdown, CSV or JSON: one description, every format.

A use case makes a `Report`: records for programs, sections for people. `render` turns it into the format that
was asked for; on a terminal a table leaves out optional columns, then wraps cells between words, until it
fits the width. Ids, paths and commands stay whole so that they can be pasted. Text from instances is made
printable, and a CSV cell never begins a formula.

`rich` wraps and measures, too. It is not used here: importing `rich.table` and `rich.console` takes 0.2 s in
addition to tabulate (three runs on two busy cores, November 2026), which every `status` would pay; and rich
folds a word that does not fit, such as an id or a path, anywhere within the word.
"""

import csv
import io
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import tabulate as tabulate_module
from tabulate import tabulate

from dlcloud.model.untrusted import printable

SCHEMA = 1
FORMULA = ("=", "+", "-", "@", "\t", "\r")

# By default tabulate makes columns of numbers two wider than their titles; 80 columns have no room for that.
tabulate_module.MIN_PADDING = 0
WIDTH = 80
"""The width of a terminal, in characters."""
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
        titles: Of the columns; without any there is no table, only heading and notes.
        rows: A text for each column.
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


NARROWEST, WIDEST = 80, 200
"""Tables are never narrower than a standard terminal, nor wider than eyes follow a line."""
LONGEST_WHOLE = 12
"""A longer word may be cut after hyphens."""
LONGEST_PATH = 60
"""A longer word may be cut after slashes, too."""
BREAKS = (re.compile(r"(?!)"), re.compile(r"(?<=-)(?![0-9a-f]{17}$)"), re.compile(r"(?<=\w[-/])"))
"""The places at which a word may be cut: of a short one, a long one, and one longer than LONGEST_PATH.

An id of EC2, such as i-0123456789abcdef0, stays whole: it is there to be copied.
"""
GAP = 2
"""The width between two columns, in characters."""

Rows = Sequence[Sequence[str]]


MARKS = frozenset({"~", "*"})
"""Words that say something of the one before."""


def terminal_width() -> int:
    """Return the columns to print in: those of the terminal, or of the variable COLUMNS; else 80."""
    columns = NARROWEST
    with suppress(OSError, ValueError):
        if os.environ.get("COLUMNS") or sys.stdout.isatty():
            columns = shutil.get_terminal_size((NARROWEST, 24)).columns
    return min(WIDEST, max(NARROWEST, columns))


def columns_that_fit(table: Rows, optional: Sequence[int], width: int) -> list[int]:
    """Return the columns of a table (titles first) to print: optional ones as long as there is room.

    `table` has the titles, then the rows; of `optional` columns the most important comes first.
    """
    widths = _widths(table)
    shown = [place for place in range(len(widths)) if place not in optional]
    for place in optional:
        if _total([widths[other] for other in (*shown, place)]) > width:
            break
        shown.append(place)
    return sorted(shown)


def fit(table: Rows, width: int) -> list[list[str]]:
    """Return a table (titles first) whose cells are wrapped until it is no wider than `width`.

    Cells are wrapped at spaces, then, only if that is not enough, after hyphens.
    """
    widths = _widths(table)
    for is_hyphen_split in (False, True):
        least = _least_widths(table, is_hyphen_split=is_hyphen_split)
        while _total(widths) > width:
            wider = [place for place, characters in enumerate(widths) if characters > least[place]]
            if not wider:
                break
            widths[max(wider, key=lambda place: widths[place])] -= 1
    return [
        [wrap_cell(cell, characters) for cell, characters in zip(row, widths, strict=True)] for row in table
    ]


def wrap_cell(cell: str, width: int) -> str:
    """Wrap a cell at spaces, words that are too long after hyphens; a number or a name stays whole."""
    if max(map(len, cell.splitlines()), default=0) <= width:
        return cell
    return "\n".join(line for text in cell.splitlines() for line in _lines(text, width))


def _lines(text: str, width: int) -> list[str]:
    """Join the pieces of a text to lines, as long as they fit."""
    lines = [""]
    for word in words_of(text):
        pieces = [word] if len(word) <= width else _split_at_hyphens(word)
        for place, piece in enumerate(pieces):
            space = " " if lines[-1] and not place else ""
            if lines[-1] and len(lines[-1] + space + piece) > width:
                lines.append(piece)
            else:
                lines[-1] += space + piece
    return lines


def words_of(text: str) -> list[str]:
    """Return the words of a cell; a mark stays with the word before it."""
    words: list[str] = []
    for word in text.split():
        if word in MARKS and words:
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


def _widths(table: Rows) -> list[int]:
    return [max(_longest(cell, str.splitlines) for cell in column) for column in zip(*table, strict=True)]


def _least_widths(table: Rows, *, is_hyphen_split: bool) -> list[int]:
    split = _split_at_hyphens if is_hyphen_split else words_of
    return [max(_longest(cell, split) for cell in column) for column in zip(*table, strict=True)]


def _split_at_hyphens(text: str) -> list[str]:
    """Return the words of a text, long ones cut after their hyphens, those of a whole line after slashes."""
    return [piece for word in words_of(text) for piece in BREAKS[_length_class(word)].split(word)]


def _length_class(word: str) -> int:
    return (len(word) > LONGEST_WHOLE) + (len(word) > LONGEST_PATH)


def _longest(text: str, split: Callable[[str], Sequence[str]]) -> int:
    return max(map(len, split(text)), default=0)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)
