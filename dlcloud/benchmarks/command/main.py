"""Compare settings of any command by the throughput it prints, or by its wall time where it prints none."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import catalog
from ..harness import program, redaction, statistics
from ..harness.case import Case, Limits
from .output import JsonField, Pattern, Reading, Reported
from .variant import CommandVariant, Setting

ENTRY = catalog.BENCHMARKS["command"]
SETTING_KEYS = {"name", "environment", "arguments"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit status."""
    arguments = parse(argv)
    settings, reading = read_settings(_text(arguments.settings)), _reading(arguments)
    adaptive = arguments.max_seconds is not None
    limits = Limits(
        width=arguments.width,
        max_s=arguments.max_seconds or 0.0,
        rounds=arguments.repeats,
        fixed=not adaptive,
    )
    variants = [_variant(setting, arguments, reading) for setting in settings]
    case = Case(name=arguments.case, variants=variants)
    shown = _without_secrets(arguments, settings)
    return program.run(ENTRY.name, shown, limits=limits, packages=(), cases=lambda _recorder: [case])


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments; SystemExit, with the fault on stderr, where they are none."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        read_settings(_text(arguments.settings))
        _reading(arguments)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def read_settings(text: str) -> list[Setting]:
    """Read the settings from JSON, the baseline first.

    Args:
        text: A list of {name, environment, arguments}; the last two may be left out, a variable that is null
            is taken out of the environment. Nothing at all is one setting, as things are.

    Raises:
        ValueError: Every fault found, joined by semicolons.
    """
    if not text:
        return [Setting(name="as it is")]
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--settings is not JSON: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise ValueError("--settings must be a list of at least one setting")
    faults = [fault for place, entry in enumerate(entries, 1) for fault in _faults(place, entry)]
    if faults:
        raise ValueError("; ".join(faults))
    names = [entry["name"] for entry in entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"--settings: more than one is called {', '.join(map(repr, twice))}")
    return [_setting(entry) for entry in entries]


def _faults(place: int, entry: Any) -> list[str]:  # noqa: ANN401 - whatever JSON holds
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


def _setting(entry: dict[str, Any]) -> Setting:
    return Setting(
        name=entry["name"],
        environment=entry.get("environment", {}),
        arguments=tuple(entry.get("arguments", [])),
    )


def _text(given: str) -> str:
    """Return the JSON itself, read from a file where the argument is `@FILE`."""
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--settings: {given[1:]}: {error.strerror}") from None


def _without_secrets(arguments: argparse.Namespace, settings: Sequence[Setting]) -> argparse.Namespace:
    """Return the arguments as they may be recorded."""
    shown = [
        {
            "name": setting.name,
            "environment": redaction.variables(setting.environment),
            "arguments": redaction.words(setting.arguments),
        }
        for setting in settings
    ]
    changed = {"run": redaction.text(arguments.run), "settings": json.dumps(shown)}
    return argparse.Namespace(**{**vars(arguments), **changed})


def _reading(arguments: argparse.Namespace) -> Reading | None:
    ways = (arguments.throughput is not None, arguments.json_field is not None, arguments.reported)
    if sum(ways) > 1:
        raise ValueError("--throughput, --json-field and --reported exclude each other")
    if arguments.throughput is not None:
        return Pattern.parse(arguments.throughput)
    if arguments.json_field is not None:
        return JsonField(arguments.json_field)
    if arguments.reported:
        return Reported()
    if arguments.final:
        raise ValueError("--final needs --throughput, --json-field or --reported")
    return None


def _variant(setting: Setting, arguments: argparse.Namespace, reading: Reading | None) -> CommandVariant:
    warm_up_runs = arguments.warm_up_runs
    if warm_up_runs is None:
        warm_up_runs = 1 if reading is None else 0
    return CommandVariant(
        setting=setting,
        command=arguments.run,
        reading=reading,
        final=arguments.final,
        counted=arguments.unit,
        warm_up_runs=warm_up_runs,
        environment=program.environment(),
        echo=sys.stderr,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.command", description=ENTRY.summary)
    parser.add_argument("--run", required=True, metavar="COMMAND", help="what to run, in a shell")
    parser.add_argument(
        "--settings", default="", metavar="JSON",
        help='a list of {"name": ..., "environment": {...}, "arguments": [...]}, baseline first; or @FILE',
    )  # fmt: skip
    parser.add_argument("--case", default="command", help="what to call the work in the table")
    _add_reading(parser)
    parser.add_argument(
        "--repeats", type=program.positive, default=statistics.MINIMUM_PAIRS, metavar="N",
        help="runs of each setting; fewer than 6 cannot name a winner (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--warm-up-runs", type=program.natural, metavar="N",
        help="runs of each setting before those that count (default: 1 for wall time, otherwise 0)",
    )  # fmt: skip
    program.add_arguments(parser, limits=Limits())
    parser.set_defaults(max_seconds=None)
    return parser


def _add_reading(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("throughput (without any of these the wall time of a run is measured)")
    group.add_argument(
        "--throughput",
        metavar="REGEX",
        help="a regular expression whose one group is the throughput, per line",
    )
    group.add_argument(
        "--json-field",
        metavar="NAME",
        help="lines that are JSON objects hold it in this field (a.b for nested)",
    )
    group.add_argument(
        "--reported", action="store_true",
        help="the program reports it: `import dlcloud_report; dlcloud_report.throughput(images / seconds)`, "
        "or numbers appended to the file that the variable DLCLOUD_REPORT names, one a line",
    )  # fmt: skip
    group.add_argument(
        "--final", action="store_true", help="take the last value of a run, not all after warm-up"
    )
    group.add_argument(
        "--unit", default="items", help="what is counted per second, such as images (default: %(default)s)"
    )
