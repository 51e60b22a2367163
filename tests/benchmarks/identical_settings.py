"""Count how often two identical settings are called different on this machine, in real worker processes.

Run it from a folder that holds `benchmarks` with the files of `samples` added:
`python3 identical_settings.py --tries 100`. At most 7 of 100 are allowed. A try takes 17 to 60
seconds; shorter slices are quicker and see more of the noise.
"""

import argparse
import io
import random
import sys

from benchmarks.harness import program
from benchmarks.harness.arm import WorkerArm
from benchmarks.harness.load import ProcLoad
from benchmarks.harness.protocol import Case, Limits, Session, measure
from benchmarks.harness.records import Recorder

ALLOWED = 0.07


def compared(number, limits):
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
    return recorder


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--slice-seconds", type=float, default=1.0)
    parser.add_argument("--max-seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    limits = Limits(slice_s=arguments.slice_seconds, max_s=arguments.max_seconds, warm_up_s=2.0)
    different = 0
    for number in range(arguments.tries):
        recorder = compared(number, limits)
        comparison = recorder.comparisons[0]
        different += comparison.verdict != "no difference seen"
        interval = f"{comparison.ratio:.3f} [{comparison.low:.3f}, {comparison.high:.3f}]"
        sys.stdout.write(f"{number + 1}: {interval} {comparison.verdict}; {different} called different")
        warnings = dict.fromkeys(warning for result in recorder.results for warning in result.warnings)
        sys.stdout.write("".join(f"; {warning}" for warning in warnings) + "\n")
        sys.stdout.flush()
    return 0 if different <= ALLOWED * arguments.tries else 1


if __name__ == "__main__":
    sys.exit(main())
