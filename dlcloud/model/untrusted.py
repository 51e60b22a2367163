"""Text and JSON that an instance sent: made safe to print, to store and to compute with."""

import json
import math
import re
from datetime import UTC, datetime
from typing import Any

LARGEST = 1e18
"""A larger number counts as none: it is no measurement, and sums with it overflow."""

# Control characters but newline and tab, and marks that change the direction in which text is shown.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_ESCAPED = re.compile(r"\\[bfru]")
_REPLACEMENT = "\ufffd"


LONGEST_PATH, LONGEST_NAME = 4096, 255
"""Source: Linux, PATH_MAX and NAME_MAX."""


def is_below(name: str) -> bool:
    """True for the path of a file below a folder, relative to it, that any folder can have.

    Every name from outside is asked for by it, or by its twins in the programs of instances
    (`templates/storage.py`, `templates/checkpoints.py`).
    """
    parts = name.split("/")
    is_relative = name != "" and not name.startswith("/") and ".." not in parts and "\0" not in name
    return is_relative and len(name) <= LONGEST_PATH and len(max(parts, key=len)) <= LONGEST_NAME


def printable(text: str) -> str:
    """Return a text without what would control a terminal; newlines and tabs stay."""
    return _UNPRINTABLE.sub(_REPLACEMENT, text) if _UNPRINTABLE.search(text) else text


def parse_json(text: str) -> Any:  # noqa: ANN401  any JSON value
    """Parse JSON; its texts are printable, its numbers finite, and what is no such number is null.

    Raises:
        ValueError: It is not JSON, or nested too deeply.
    """
    try:
        value = json.loads(text, parse_constant=lambda _: None, parse_float=_number, parse_int=_whole)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return _clean(value) if _ESCAPED.search(text) or _UNPRINTABLE.search(text) else value


def number_of(value: object) -> float:
    """Return a finite number; a text may state it, too.

    Raises:
        ValueError, TypeError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"not a number: {value!r}")
    number = float(value)
    if not abs(number) <= LARGEST:
        raise ValueError(f"not a number: {value!r}")
    return number


def number_or_none(value: object) -> float | None:
    """Return a number of a record; None for anything else."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def count_or_none(value: object) -> int | None:
    """Return a whole number of at least 0 of a record; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def time_or_none(value: object) -> datetime | None:
    """Return a time of a record, which is in UTC where it does not say; None for anything else."""
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _number(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) and abs(number) <= LARGEST else None


def _whole(text: str) -> int | None:
    return int(text) if len(text) <= len(str(int(LARGEST))) else None


def _clean(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): _clean(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_clean(inner) for inner in value]
    return value
