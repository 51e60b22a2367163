"""A benchmark program of sample workloads: `python3 -m benchmarks.sample --variants JSON`."""

import argparse
import json
import sys

from .harness import program
from .harness.case import Case, Limits
from .harness.variant import WorkerVariant


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variants", type=json.loads, required=True)
    parser.add_argument("--cases", type=int)
    limits = Limits(slice_s=0.05)
    program.add_arguments(parser, limits=limits)
    program.add_round_arguments(parser, limits=limits)
    arguments = parser.parse_args()
    limits = Limits(
        width=arguments.width,
        max_s=arguments.max_seconds,
        rounds=arguments.rounds,
        slice_s=arguments.slice_seconds,
        warm_up_s=arguments.warm_up_seconds,
    )
    names = ["sample"] if arguments.cases is None else [f"sample {n}" for n in range(arguments.cases)]
    cases = [Case(name=name, variants=_variants(arguments.variants)) for name in names]
    return program.run("sample", arguments, limits=limits, packages=("pip",), cases=lambda _recorder: cases)


def _variants(told):
    return [
        WorkerVariant(
            name=variant["name"],
            unit="items/s",
            factory=f"sample_workloads:{variant.get('factory', 'spin')}",
            arguments=variant.get("arguments", {}),
            environment=program.environment(variant.get("environment")),
            latencies=True,
        )
        for variant in told
    ]


if __name__ == "__main__":
    sys.exit(main())
