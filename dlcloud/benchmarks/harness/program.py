"""What the benchmark programs share: arguments, the records around the cases, exit status, signals."""

import argparse
import json
import os
import platform
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from .. import catalog
from . import hardware, protocol, resume, table
from .case import Case, Limits, Session
from .load import ProcLoad
from .process import VariantError
from .records import Failure, Recorder, RecordsFile

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

OUTPUT_ITSELF = Path()
"""What `--resume` stands for without a file."""


def add_arguments(parser: argparse.ArgumentParser, *, limits: Limits) -> None:
    """Add the arguments that every benchmark has."""
    group = parser.add_argument_group("measuring")
    group.add_argument(
        "--output", type=Path, metavar="FILE", help="append the records to FILE, as JSON lines"
    )
    group.add_argument(
        "--resume", type=Path, nargs="?", const=OUTPUT_ITSELF, metavar="EARLIER",
        help="measure only the cases that EARLIER, records of a run that was cut off, does not hold; "
        "default: the output itself",
    )  # fmt: skip
    group.add_argument(
        "--host", default=platform.node(), metavar="NAME",
        help="what to call this machine in the records (default: its name)",
    )  # fmt: skip
    group.add_argument(
        "--width", type=fraction, default=limits.width, metavar="SHARE",
        help="stop when the interval of the speed-up is this narrow, relative to it (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--max-seconds", type=positive_float, default=limits.max_s, metavar="S",
        help="begin no round of a case after this long (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--pin", choices=("none", "cores"), default="none",
        help="cores: keep everything to one hyper-thread of each physical core (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--seed", type=natural, default=0, help="of every random choice (default: %(default)s)"
    )


def add_round_arguments(parser: argparse.ArgumentParser, *, limits: Limits) -> None:
    """Add the arguments of benchmarks whose settings run in slices of time."""
    group = parser.add_argument_group("rounds")
    group.add_argument(
        "--rounds", type=positive, default=limits.rounds, metavar="N",
        help="measure at least N rounds; fewer than 6 cannot name a winner (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--slice-seconds", type=positive_float, default=limits.slice_s, metavar="S",
        help="least time of a setting in a round (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--warm-up-seconds", type=positive_float, default=limits.warm_up_s, metavar="S",
        help="cut off a warm-up that does not end by itself (default: %(default)s)",
    )  # fmt: skip


def limits_from(arguments: argparse.Namespace) -> Limits:
    """Return the limits that the arguments of both groups ask for."""
    return Limits(
        width=arguments.width,
        max_s=arguments.max_seconds,
        rounds=arguments.rounds,
        slice_s=arguments.slice_seconds,
        warm_up_s=arguments.warm_up_seconds,
    )


def run(
    name: str,
    arguments: argparse.Namespace,
    *,
    limits: Limits,
    packages: Iterable[str],
    cases: Callable[[Recorder], Sequence[Case]],
) -> int:
    """Measure the cases of a benchmark, print the table and return the exit status.

    Args:
        name: The benchmark's name.
        arguments: As parsed; they go into the first record.
        limits: When to stop.
        packages: Distributions whose versions belong to the figures.
        cases: Makes the cases; may record failures, and raise VariantError where nothing can be measured.
    """

    def work(session: Session) -> None:
        protocol.measure(cases(session.recorder), session)

    return run_work(name, arguments, limits=limits, packages=packages, work=work)


def run_work(
    name: str,
    arguments: argparse.Namespace,
    *,
    limits: Limits,
    packages: Iterable[str],
    work: Callable[[Session], None],
) -> int:
    """Do the same for a benchmark whose next case depends on what the last one showed.

    Args:
        name: As for `run`, like the others.
        arguments: As there.
        limits: As there.
        packages: As there.
        work: Measures case after case with protocol.measure; may raise VariantError.
    """
    if arguments.resume == OUTPUT_ITSELF and arguments.output is None:
        sys.stderr.write("--resume needs --output FILE, or a file of its own\n")
        return USAGE
    if arguments.pin == "cores":
        try:
            hardware.pin_to_cores()
        except OSError as error:
            sys.stderr.write(f"--pin cores: {error}\n")
            return USAGE
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _interrupt)
    machine = _machine(name, packages)
    earlier = _earlier(name, arguments, machine)
    with RecordsFile(arguments.output) as file:
        recorder = Recorder(output=file.stream, messages=sys.stderr, host=arguments.host)
        recorder.start(name, _plain(arguments), arguments.seed, machine)
        # The seed makes intervals repeatable; nothing here is secret.
        generator = random.Random(arguments.seed)  # noqa: S311
        session = Session(
            limits=limits,
            recorder=recorder,
            load=ProcLoad(),
            generator=generator,
            earlier=earlier.cases,
            record_earlier=arguments.resume != OUTPUT_ITSELF,
        )
        status = _status(name, work, session)
        recorder.end(ok=status == DONE, seconds=time.monotonic() - began)
    sys.stdout.write(table.render(recorder))
    return status


def _machine(name: str, packages: Iterable[str]) -> dict[str, Any]:
    """Return all that figures depend on beside the arguments."""
    machine = hardware.describe(packages)
    entry = catalog.BENCHMARKS.get(name)
    machine["software"]["code"] = resume.code_digest(entry.module.rpartition(".")[2] if entry else name)
    return machine


def _earlier(name: str, arguments: argparse.Namespace, machine: dict[str, Any]) -> resume.EarlierCases:
    """Return what was measured before, and say what of it does not count."""
    if arguments.resume is None:
        return resume.EarlierCases()
    path = arguments.output if arguments.resume == OUTPUT_ITSELF else arguments.resume
    entry = catalog.BENCHMARKS.get(name)
    selecting = [each.replace("-", "_") for each in entry.selecting] if entry else ()
    start = {"benchmark": name, "arguments": _plain(arguments), "seed": arguments.seed, **machine}
    found = resume.find(path, json.loads(json.dumps(start)), selecting=selecting)
    for refusal in found.refusals:
        sys.stderr.write(f"{refusal}\n")
    return found


def _status(name: str, work: Callable[[Session], None], session: Session) -> int:
    try:
        work(session)
    except VariantError as error:
        session.recorder.failure(Failure(case=name, setting=None, message=str(error)))
    except KeyboardInterrupt:
        session.recorder.failure(Failure(case=name, setting=None, message="interrupted"))
        return INTERRUPTED
    return FAILED if session.recorder.failures else DONE


def environment(changes: dict[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment with changes."""
    return {**os.environ, **(changes or {})}


def natural(text: str) -> int:
    """Read a whole number of at least 0."""
    value = int(text) if text.isdecimal() else -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return value


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def positive_float(text: str) -> float:
    """Read a number above 0."""
    value = _number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def fraction(text: str) -> float:
    """Read a share above 0 and below 1."""
    value = _number(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share between 0 and 1")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _plain(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments as JSON can hold them."""
    values = vars(arguments).items()
    return {name: str(value) if isinstance(value, Path) else value for name, value in values}
