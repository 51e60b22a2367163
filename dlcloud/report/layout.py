"""Tables within the width of a terminal: columns left out, cells wrapped between words, never within one.

`rich` wraps and measures, too. It is not used here: `rich.table` and `rich.console` take 0.2 s to import
beside tabulate (three runs on two busy cores, November 2026), which every `status` would pay; and rich folds
a word that does not fit, as an id or a path, anywhere within the word.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

NARROWEST, WIDEST = 80, 200
"""Tables are never narrower than a standard terminal, nor wider than eyes follow a line."""
LONGEST_WHOLE = 12
"""A longer word may be cut after hyphens."""
LONGEST_PATH = 60
"""A longer word may be cut after slashes, too."""
BREAKS = (re.compile(r"(?!)"), re.compile(r"(?<=-)"), re.compile(r"(?<=\w[-/])"))
"""The places at which a word may be cut: of a short one, a long one, and one longer than LONGEST_PATH."""
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

    Args:
        table: The titles, then the rows.
        optional: Columns that may be left out, the most important first.
        width: In characters.
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
