"""Compare fp32 with int8 inference: `python3 -m benchmarks.quantization`."""

import sys
from collections.abc import Sequence

from ..harness import program
from ..harness.protocol import measure
from .arguments import ENTRY, parse
from .cases import make_cases
from .engines import ENGINES, explain_missing, explain_missing_model


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    reasons = [explain_missing_model(arguments.model)] if arguments.model else []
    reasons += [explain_missing(arguments.data)] if arguments.data else []
    engines = [ENGINES[name] for name in arguments.engine]
    options = ["--engine", *arguments.engine, "--network", *arguments.network]
    options += ["--model", str(arguments.model)] if arguments.model else []
    modules = [module for engine in engines for module in engine.modules]
    reasons.append(program.explain_missing_module(modules, ENTRY.requirements_for(options)))
    if (reason := next(filter(None, reasons), None)) is not None:
        sys.stderr.write(f"{reason}\n")
        return program.FAILED
    return program.run(
        ENTRY,
        arguments,
        limits=program.limits_from(arguments),
        packages=dict.fromkeys(package for engine in engines for package in engine.packages),
        work=lambda session: measure(make_cases(arguments, session.recorder), session),
    )


if __name__ == "__main__":
    sys.exit(main())
