"""Count how often two identical settings are called different on this machine, in real worker processes.

Run it from a folder that holds `benchmarks` with the files of `samples` added:
`python3 identical_settings.py --tries 100`. At most 7 of 100 are allowed. It takes about two seconds a try.
"""

import argparse
import io
import random
import sys

from benchmarks import program
from benchmarks.arm import WorkerArm
from benchmarks.harness import Case, Limits, Session, measure
from benchmarks.load import ProcLoad
from benchmarks.records import Recorder

ALLOWED = 0.07


def verdict(number, limits):
    arms = [
        WorkerArm(
            name=name,
            unit="items/s",
            factory="sample_workloads:spin",
            arguments={"work": 20_000},
            environment=program.environment(),
        )
        for name in ("a", "same")
    ]
    recorder = Recorder(output=None, messages=io.StringIO())
    session = Session(limits=limits, recorder=recorder, load=ProcLoad(), generator=random.Random(number))
    measure([Case(name="identical", arms=arms)], session)
    return recorder.comparisons[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--slice-seconds", type=float, default=0.1)
    parser.add_argument("--max-seconds", type=float, default=6.0)
    arguments = parser.parse_args()
    limits = Limits(slice_s=arguments.slice_seconds, max_s=arguments.max_seconds, warm_up_s=2.0)
    different = 0
    for number in range(arguments.tries):
        comparison = verdict(number, limits)
        different += comparison.verdict != "no difference seen"
        interval = f"{comparison.ratio:.3f} [{comparison.low:.3f}, {comparison.high:.3f}]"
        sys.stdout.write(f"{number + 1}: {interval} {comparison.verdict}; {different} called different\n")
        sys.stdout.flush()
    return 0 if different <= ALLOWED * arguments.tries else 1


if __name__ == "__main__":
    sys.exit(main())
