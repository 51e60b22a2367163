"""`setup.requirements: requirements.txt`: the packages of the named file, in the recipe's text."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from dlcloud.model.errors import RecipeError
from dlcloud.recipe.document import parse

PINNED = re.compile(r"^[A-Za-z0-9._-]+(\[[A-Za-z0-9,._-]+\])?==[^\s]+$")
_FILE = re.compile(r"^[^\s=]+\.(txt|in|lock)$")
_KEYS = ("setup", "requirements")


def include_requirements(text: str, file: str, read: Callable[[str], str | None]) -> str:
    """Return a recipe's text with the packages of a requirements file in the place of its name.

    A recipe without such a name is returned as it is, faults included; lines keep their numbers.

    Args:
        text: The recipe's.
        file: Its name in messages.
        read: Returns the content of a file beside the recipe; None if there is none.

    Raises:
        RecipeError: There is no such file, or a line of it is no pinned package.
    """
    document = parse(text)
    setup = document.value.get("setup") if isinstance(document.value, dict) else None
    value = setup.get("requirements") if isinstance(setup, dict) else None
    name = value[0] if isinstance(value, list) and len(value) == 1 else value
    if document.faults or not isinstance(name, str) or not _FILE.match(name.strip()):
        return text
    name = name.strip()
    place = f"{file}:{document.line_of(_KEYS)}: setup.requirements"
    content = read(name)
    if content is None:
        raise RecipeError(f"{place}: there is no file {name} beside the recipe", "names are relative to it")
    packages, faults = _packages(content)
    if faults:
        message = "\n".join(f"{place}: {name}:{number}: {fault}" for number, fault in faults)
        raise RecipeError(message, "pip freeze, in the environment that runs it, prints such lines")
    start, end = _span(text)
    line_ends = "\n" * text[start:end].count("\n")
    return f"{text[:start]}{json.dumps(packages)}{line_ends}{text[end:]}"


def _span(text: str) -> tuple[int, int]:
    """Return where the value of setup.requirements begins and ends in a recipe's text."""
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for key in _KEYS:
        node = next(value for name, value in node.value if name.value == key)
    return node.start_mark.index, node.end_mark.index


def _packages(content: str) -> tuple[list[str], list[tuple[int, str]]]:
    """Return the pinned packages of a requirements file, and what it has else, by line."""
    packages: list[str] = []
    faults: list[tuple[int, str]] = []
    for number, line in _logical_lines(content):
        requirement = re.sub(r"\s+--hash[= ]\S+", "", line)
        requirement = re.sub(r"\s*(==)\s*", r"\1", requirement)
        if PINNED.match(requirement):
            packages.append(requirement)
        elif line.startswith("-"):
            faults.append((number, f"{line!r} is an option of pip; list the packages"))
        elif ";" in line:
            faults.append((number, f"{line!r} has a condition; list what the instance is to have"))
        else:
            faults.append((number, f"{line!r} is not pinned; write name==version"))
    return packages, faults


def _logical_lines(content: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers, continued ones joined, without comments."""
    pending, first = "", 0
    for number, raw in enumerate(content.lstrip("\ufeff").splitlines(), start=1):
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        first = first if pending else number
        if line.endswith("\\"):
            pending += f"{line[:-1].strip()} "
            continue
        if whole := f"{pending}{line}".strip():
            yield first, whole
        pending = ""
    if pending.strip():
        yield first, pending.strip()
