"""Measure language models: `python3 -m benchmarks.language`."""

import sys
from collections.abc import Sequence

from ..harness import hardware, program
from .arguments import ENTRY, parse
from .cases import LanguageCases
from .engines import ENGINES


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    has_gpu = bool(hardware.gpus())
    if arguments.device == "cuda" and not has_gpu:
        sys.stderr.write("--device cuda: nvidia-smi shows no GPU on this machine\n")
        return program.FAILED
    arguments.device = "cuda" if has_gpu and arguments.device != "cpu" else "cpu"
    engines = [ENGINES[name] for name in arguments.engine]
    modules = [module for engine in engines for module in engine.modules]
    if arguments.task == "training":
        modules = ["torch", "transformers", "peft"]
    if arguments.endpoint is not None:
        modules = []
    requirements = ENTRY.requirements_for(["--engine", *arguments.engine])
    if (reason := program.explain_missing_module(modules, requirements)) is not None:
        sys.stderr.write(f"{reason}\n")
        return program.FAILED
    return program.run(
        ENTRY,
        arguments,
        limits=program.limits_from(arguments),
        packages=dict.fromkeys(("torch", "peft", *(name for engine in engines for name in engine.packages))),
        work=LanguageCases(arguments=arguments).run,
    )


if __name__ == "__main__":
    sys.exit(main())
