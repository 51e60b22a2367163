"""Compare fp32 with int8 inference: `python3 -m benchmarks.quantization`."""

import argparse
import sys
from collections.abc import Sequence

from ..harness import program
from .arguments import ENTRY, parse
from .cases import make_cases
from .engines import ENGINES, Engine
from .formats import explain_missing, explain_missing_model


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    reasons = [explain_missing_model(arguments.model)] if arguments.model else []
    reasons += [explain_missing(arguments.data)] if arguments.data else []
    engines = [ENGINES[name] for name in arguments.engine]
    reasons += [_explain_missing_module(engine, arguments) for engine in engines]
    if (reason := next(filter(None, reasons), None)) is not None:
        sys.stderr.write(f"{reason}\n")
        return program.FAILED
    return program.run(
        ENTRY,
        arguments,
        limits=program.limits_from(arguments),
        packages=dict.fromkeys(package for engine in engines for package in engine.packages),
        cases=lambda recorder: make_cases(arguments, recorder),
    )


def _explain_missing_module(engine: Engine, arguments: argparse.Namespace) -> str | None:
    """Return which module an engine lacks, and the requirements to install; None if it can run."""
    if (missing := engine.missing_module()) is None:
        return None
    options = ["--engine", *arguments.engine, "--network", *arguments.network]
    options += ["--model", str(arguments.model)] if arguments.model else []
    return f"{missing} is not installed: pip install -r {ENTRY.requirements_for(options)}"


if __name__ == "__main__":
    sys.exit(main())
