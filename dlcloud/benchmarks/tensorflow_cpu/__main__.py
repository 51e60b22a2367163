"""Compare settings of training with TensorFlow: `python3 -m benchmarks.tensorflow_cpu`."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from ..harness import program
from ..harness.case import Session
from .arguments import ENTRY, SEARCH, parse
from .experiment import Experiments
from .knobs import inspect_machine, knobs_of


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    requirements = ENTRY.requirements_for(["--device", arguments.device])
    if (reason := program.explain_missing_module(["tensorflow"], requirements)) is not None:
        sys.stderr.write(f"{reason}\n")
        return program.FAILED
    return program.run(
        ENTRY,
        arguments,
        limits=program.limits_from(arguments),
        packages=("tensorflow", "tensorflow-cpu", "keras", "numpy"),
        work=lambda session: _work(arguments, session),
    )


def _work(arguments: argparse.Namespace, session: Session) -> None:
    machine = inspect_machine(arguments.device)
    search = replace(
        SEARCH,
        rounds=arguments.search_rounds,
        max_s=arguments.search_seconds,
        slice_s=min(SEARCH.slice_s, arguments.slice_seconds),
        warm_up_s=min(SEARCH.warm_up_s, arguments.warm_up_seconds),
    )
    Experiments(
        arguments=arguments,
        machine=machine,
        knobs=knobs_of(arguments.device, machine),
        search_limits=search,
        session=session,
    ).run()


if __name__ == "__main__":
    sys.exit(main())
