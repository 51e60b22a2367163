"""Compare training in FP32 with mixed precision: `python3 -m benchmarks.mixed_precision`."""

import sys
import tempfile
from collections.abc import Sequence

from ..harness import program
from .arguments import ENGINES, ENTRY, parse
from .cases import TrainingComparison
from .precisions import DIGITS, detect_capabilities


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    try:
        capabilities = detect_capabilities(arguments.device)
    except LookupError as error:
        sys.stderr.write(f"{error}\n")
        return program.FAILED
    modules = [module for engine in arguments.engine for module in ENGINES[engine]]
    modules += ["sklearn"] if DIGITS in arguments.network else []
    if (reason := program.explain_missing_module(modules, ENTRY.requirements_path)) is not None:
        sys.stderr.write(f"{reason}\n")
        return program.FAILED
    with tempfile.TemporaryDirectory(prefix="dlcloud-compiled-") as compiled:
        comparison = TrainingComparison(arguments=arguments, capabilities=capabilities, compiled=compiled)
        return program.run(
            ENTRY,
            arguments,
            limits=program.limits_from(arguments),
            packages=("torch", "keras", "numpy", "triton", "nvidia-cudnn-cu13"),
            work=comparison.run,
        )


if __name__ == "__main__":
    sys.exit(main())
