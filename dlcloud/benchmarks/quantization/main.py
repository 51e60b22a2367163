"""Measure what int8 is worth: the same network in fp32 and quantized, on the same engine, side by side."""

import sys
from collections.abc import Sequence

from ..harness import program
from .arguments import ENTRY, parse
from .cases import cases_of
from .engines import ENGINES
from .formats import absent, fault_of


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit status."""
    arguments = parse(argv)
    faults = [fault_of(arguments.model)] if arguments.model else []
    faults += [absent(arguments.data)] if arguments.data else []
    for fault in filter(None, faults):
        sys.stderr.write(f"{fault}\n")
        return program.FAILED
    engines = [ENGINES[name] for name in arguments.engine]
    for missing in filter(None, (engine.missing() for engine in engines)):
        asked = ["--engine", *arguments.engine, "--network", *arguments.network]
        asked += ["--model", str(arguments.model)] if arguments.model else []
        requirements = ENTRY.requirements_for(asked)
        sys.stderr.write(f"{missing} is not installed: pip install -r {requirements}\n")
        return program.FAILED
    limits = program.limits_from(arguments)
    return program.run(
        ENTRY,
        arguments,
        limits=limits,
        packages=dict.fromkeys(package for engine in engines for package in engine.packages),
        cases=lambda recorder: cases_of(arguments, recorder),
    )
