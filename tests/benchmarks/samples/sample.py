"""A benchmark program of sample workloads: `python3 -m benchmarks.sample --variants JSON`."""

import json
import sys
from functools import partial

from .harness import program
from .harness.benchmark import Benchmark, Option
from .harness.case import Case, WorkerVariant
from .harness.protocol import measure

ENTRY = Benchmark(
    name="sample",
    module="benchmarks.sample",
    requirements="none.txt",
    summary="Sample workloads.",
    options=(
        Option("variants", "the settings", type=json.loads, required=True),
        Option("cases", "how many", type=int),
    ),
    defaults={"slice-seconds": 0.05},
)


def main():
    arguments = ENTRY.parser().parse_args()
    names = ["sample"] if arguments.cases is None else [f"sample {n}" for n in range(arguments.cases)]
    cases = [Case(name=name, variants=_variants(arguments.variants)) for name in names]
    return program.run(ENTRY, arguments, packages=("pip",), work=partial(measure, cases))


def _variants(records):
    return [
        WorkerVariant(
            name=variant["name"],
            unit="items/s",
            factory=f"sample_workloads:{variant.get('factory', 'spin')}",
            arguments=variant.get("arguments", {}),
            environment=program.environment(variant.get("environment")),
            latencies=True,
            peak_name=variant.get("peak_name", ""),
        )
        for variant in records
    ]


if __name__ == "__main__":
    sys.exit(main())
