"""The options of the command benchmark, and the settings, facts and readers that they state."""

import argparse
import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..harness.benchmark import Benchmark, Option, natural, positive
from .output import JsonField, Pattern, Reported, ThroughputReader
from .variant import Setting

FEWEST = 6
"""Runs of each setting by which a winner can be named."""
SETTING_KEYS = {"name", "environment", "arguments"}

_reading = partial(Option, group="throughput (without any of these the wall time of a run is measured)")

ENTRY = Benchmark(
    name="command",
    module="benchmarks.command",
    requirements="command.txt",
    summary="Compare settings (environment, arguments) of any command by the throughput it prints, or by its "
    "wall time.",
    options=(
        Option("run", "the command, run in a shell", metavar="COMMAND", required=True),
        Option(
            "settings",
            'a list of {"name": ..., "environment": {...}, "arguments": [...]}, baseline first; or @FILE',
            default="",
            metavar="JSON",
        ),
        Option("folder", "where the command runs", type=Path, default=Path(), default_help="this folder"),
        Option("case", "name of the work in the table", default="command"),
        Option(
            "repeats",
            f"runs of each setting; fewer than {FEWEST} cannot name a winner",
            type=positive,
            default=FEWEST,
        ),
        Option(
            "warm-up-runs",
            "runs of each setting before those that count",
            type=natural,
            default_help="1 for wall time, otherwise 0",
        ),
        Option(
            "exact",
            "run it exactly that often: no warm-up, and no run is repeated where other work disturbed it",
            flag=True,
        ),
        Option(
            "turn",
            "wait, ready to run, until no other process holds FILE, and hold it while the command runs",
            type=Path,
        ),
        _reading(
            "throughput", "a regular expression of one group, the throughput in a line", metavar="REGEX"
        ),
        _reading(
            "json-field", "field of output lines that are JSON objects (a.b for nested)", metavar="NAME"
        ),
        _reading(
            "reported",
            "the program reports it by `dlcloud_report`, or appends numbers to the file that "
            "DLCLOUD_REPORT names",
            flag=True,
        ),
        Option(
            "facts",
            "other values that it prints: an object of names and regular expressions with one group",
            default="",
            metavar="JSON",
        ),
        _reading("final", "use the last value of a run, not all after warm-up", flag=True),
        _reading("unit", "items counted per second, such as images", default="items"),
    ),
    defaults={"max-seconds": None},
    rounds=False,
)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments; a faulty one ends the program with status 2, as argparse does."""
    parser = ENTRY.parser()
    arguments = parser.parse_args(argv)
    try:
        read_settings(arguments.settings)
        read_facts(arguments.facts)
        make_reader(arguments)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def read_settings(text: str) -> list[Setting]:
    """Read the settings from JSON or, with @FILE, from a file; the baseline comes first.

    `text` is a list of {name, environment, arguments}; the last two are optional, a variable that is null is
    removed. An empty text is one setting, as it is.

    Raises:
        ValueError: Every fault found, joined by semicolons.
    """
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"--settings: {text[1:]}: {error.strerror}") from None
    if not text:
        return [Setting(name="as it is")]
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--settings is not JSON: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise ValueError("--settings must be a list of at least one setting")
    faults = [fault for place, entry in enumerate(entries, 1) for fault in _find_faults(place, entry)]
    if faults:
        raise ValueError("; ".join(faults))
    names = [entry["name"] for entry in entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"--settings: more than one is called {', '.join(map(repr, twice))}")
    return [
        Setting(
            name=entry["name"],
            environment=entry.get("environment", {}),
            arguments=tuple(entry.get("arguments", [])),
        )
        for entry in entries
    ]


def _find_faults(place: int, entry: Any) -> list[str]:  # noqa: ANN401 - any JSON
    where = f"setting {place}"
    if not isinstance(entry, dict):
        return [f"{where} is not an object"]
    faults = [f"{where}: unknown key {key!r}" for key in sorted(entry.keys() - SETTING_KEYS)]
    if not isinstance(entry.get("name"), str) or not entry["name"]:
        faults.append(f"{where}: no name")
    variables = entry.get("environment", {})
    if not isinstance(variables, dict) or not all(
        value is None or isinstance(value, str) for value in variables.values()
    ):
        faults.append(f"{where}: environment must map names to texts")
    added = entry.get("arguments", [])
    if not isinstance(added, list) or not all(isinstance(value, str) for value in added):
        faults.append(f"{where}: arguments must be a list of texts")
    return faults


def read_facts(text: str) -> dict[str, re.Pattern[str]]:
    """Read the expressions of facts from JSON, by name.

    Raises:
        ValueError: It is no object of names and regular expressions with one group.
    """
    try:
        facts = json.loads(text or "{}")
        expressions = {name: re.compile(expression) for name, expression in facts.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, re.error) as error:
        raise ValueError(f"--facts must map names to regular expressions: {error}") from None
    for name, expression in expressions.items():
        if expression.groups != 1:
            raise ValueError(f"--facts: {name} must have one group, not {expression.groups}")
    return expressions


def make_reader(arguments: argparse.Namespace) -> ThroughputReader | None:
    """Make the reader of the throughput; None if the wall time is measured.

    Raises:
        ValueError: The arguments contradict each other.
    """
    ways = (arguments.throughput is not None, arguments.json_field is not None, arguments.reported)
    if sum(ways) > 1:
        raise ValueError("--throughput, --json-field and --reported exclude each other")
    if arguments.throughput is not None:
        return Pattern.parse(arguments.throughput, arguments.unit)
    if arguments.json_field is not None:
        return JsonField(arguments.json_field)
    if arguments.reported:
        return Reported()
    if arguments.final:
        raise ValueError("--final needs --throughput, --json-field or --reported")
    return None
