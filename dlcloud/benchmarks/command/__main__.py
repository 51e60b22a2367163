"""Compare settings of any command by the throughput it prints, or by its wall time where it prints none."""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial

from ..harness import program
from ..harness.case import Case, Limits
from ..harness.protocol import measure
from ..harness.records import redact_text, redact_variables, redact_words
from .output import ThroughputReader
from .settings import ENTRY, make_reader, parse, read_facts, read_settings
from .variant import CommandVariant, Setting, Turn


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    settings, reader = read_settings(arguments.settings), make_reader(arguments)
    limits = Limits(
        width=arguments.width,
        max_s=arguments.max_seconds or 0.0,
        rounds=arguments.repeats,
        fixed=arguments.exact or arguments.max_seconds is None,
        redo=not arguments.exact,
    )
    variants = [_variant(setting, arguments, reader) for setting in settings]
    case = Case(name=arguments.case, variants=variants)
    shown = _without_secrets(arguments, settings)
    return program.run(ENTRY, shown, limits=limits, work=partial(measure, [case]))


def _without_secrets(arguments: argparse.Namespace, settings: Sequence[Setting]) -> argparse.Namespace:
    shown = [
        {
            "name": setting.name,
            "environment": redact_variables(setting.environment),
            "arguments": redact_words(setting.arguments),
        }
        for setting in settings
    ]
    changed = {"run": redact_text(arguments.run), "settings": json.dumps(shown)}
    return argparse.Namespace(**{**vars(arguments), **changed})


def _variant(
    setting: Setting, arguments: argparse.Namespace, reader: ThroughputReader | None
) -> CommandVariant:
    warm_up_runs = arguments.warm_up_runs
    if warm_up_runs is None:
        warm_up_runs = 1 if reader is None and not arguments.exact else 0
    return CommandVariant(
        setting=setting,
        command=arguments.run,
        reader=reader,
        final=arguments.final,
        counted=arguments.unit,
        warm_up_runs=warm_up_runs,
        keeps_all=arguments.exact,
        facts=read_facts(arguments.facts),
        turn=Turn(arguments.turn),
        records=arguments.output,
        folder=arguments.folder,
        environment=program.environment(),
        echo=sys.stderr.buffer,
    )


if __name__ == "__main__":
    sys.exit(main())
