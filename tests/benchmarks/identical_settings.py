"""Count how often two identical settings are called different on this machine, in real worker processes.

Run it from a folder that holds `benchmarks` with the files of `samples` added:
`python3 identical_settings.py --tries 100 2> /dev/null`. At most 7 of 100 are allowed. A try takes about five
seconds; `--slice-seconds 1 --max-seconds 60` is what a benchmark measures by default. With `--output` the
raw samples of every try are kept.
"""

import argparse
import io
import random
import sys
from pathlib import Path

from benchmarks.harness import program
from benchmarks.harness.case import Case, Limits, Session, WorkerVariant
from benchmarks.harness.protocol import measure
from benchmarks.harness.records import Recorder, open_records

ALLOWED = 0.07


def compared(number, limits, output):
    variants = [
        WorkerVariant(
            name=name,
            unit="items/s",
            factory="sample_workloads:spin",
            arguments={"work": 20_000},
            environment=program.environment(),
        )
        for name in ("a", "same")
    ]
    recorder = Recorder(output=output, messages=io.StringIO())
    session = Session(limits=limits, recorder=recorder, generator=random.Random(number))
    measure([Case(name="identical", variants=variants)], session)
    return recorder


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--slice-seconds", type=float, default=0.2)
    parser.add_argument("--max-seconds", type=float, default=4.0)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    limits = Limits(slice_s=arguments.slice_seconds, max_s=arguments.max_seconds, warm_up_s=2.0)
    with open_records(arguments.output) as file:
        return tried(arguments.tries, limits, file)


def tried(tries, limits, output):
    different = 0
    for number in range(tries):
        recorder = compared(number, limits, output)
        comparison = recorder.comparisons[0]
        different += comparison.verdict != "no difference seen"
        interval = f"{comparison.ratio:.3f} [{comparison.low:.3f}, {comparison.high:.3f}]"
        sys.stdout.write(f"{number + 1}: {interval} {comparison.verdict}; {different} called different")
        warnings = dict.fromkeys(warning for result in recorder.results for warning in result.warnings)
        sys.stdout.write("".join(f"; {warning}" for warning in warnings) + "\n")
        sys.stdout.flush()
    return 0 if different <= ALLOWED * tries else 1


if __name__ == "__main__":
    sys.exit(main())
