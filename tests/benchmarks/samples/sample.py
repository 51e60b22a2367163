"""A benchmark program of sample workloads: `python3 -m benchmarks.sample --arms JSON`."""

import argparse
import json
import sys

from .harness import program
from .harness.arm import WorkerArm
from .harness.protocol import Case, Limits


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--arms", type=json.loads, required=True)
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
    cases = [Case(name=name, arms=_arms(arguments.arms)) for name in names]
    return program.run("sample", arguments, limits=limits, packages=("pip",), cases=lambda _recorder: cases)


def _arms(told):
    return [
        WorkerArm(
            name=arm["name"],
            unit="items/s",
            factory=f"sample_workloads:{arm.get('factory', 'spin')}",
            arguments=arm.get("arguments", {}),
            environment=program.environment(arm.get("environment")),
            latencies=True,
        )
        for arm in told
    ]


if __name__ == "__main__":
    sys.exit(main())
