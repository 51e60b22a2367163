"""What the benchmark programs share: arguments, the records around the cases, exit status, signals."""

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from . import hardware, resume, table
from .benchmark import OUTPUT_ITSELF, Benchmark
from .case import Limits, Session
from .records import FINISH, Recorder, open_records
from .variant import VariantError

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def limits_from(arguments: argparse.Namespace) -> Limits:
    return Limits(
        width=arguments.width,
        max_s=arguments.max_seconds,
        rounds=arguments.rounds,
        slice_s=arguments.slice_seconds,
        warm_up_s=arguments.warm_up_seconds,
    )


def explain_missing_module(modules: Iterable[str], requirements: Path) -> str | None:
    """Return which module is not installed, and what to install; None if all are installed."""
    missing = next((name for name in modules if find_spec(name) is None), None)
    return None if missing is None else f"{missing} is not installed: pip install -r {requirements}"


def run(
    benchmark: Benchmark,
    arguments: argparse.Namespace,
    *,
    limits: Limits,
    packages: Iterable[str],
    work: Callable[[Session], None],
) -> int:
    """Run a benchmark, print the table and return the exit status.

    `work` measures the cases with protocol.measure; it may raise VariantError if nothing can be measured. The
    versions of `packages` go into the first record.
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
    machine = hardware.describe(packages)
    machine["software"]["code"] = resume.code_digest(benchmark.module.rpartition(".")[2])
    earlier = _earlier_cases(benchmark, arguments, machine)
    with open_records(arguments.output) as output:
        recorder = Recorder(output=output, messages=sys.stderr, host=arguments.host)
        recorder.start(benchmark.name, _as_json(arguments), arguments.seed, machine)
        session = Session(
            limits=limits,
            recorder=recorder,
            # The seed makes intervals repeatable; nothing here is secret.
            generator=random.Random(arguments.seed),  # noqa: S311
            earlier=earlier.cases,
            record_earlier=arguments.resume != OUTPUT_ITSELF,
            is_finishing=partial(_is_asked_to_finish, arguments.output),
        )
        status = _run_to_end(benchmark.name, work, session)
        recorder.end(ok=status == DONE, seconds=time.monotonic() - began)
    sys.stdout.write(table.render(recorder))
    return status


def _is_asked_to_finish(output: Path | None) -> bool:
    return output is not None and output.with_name(output.name + FINISH).exists()


def _earlier_cases(
    benchmark: Benchmark, arguments: argparse.Namespace, machine: dict[str, Any]
) -> resume.EarlierCases:
    """Return the cases measured before, and print why others do not count."""
    if arguments.resume is None:
        return resume.EarlierCases()
    path = arguments.output if arguments.resume == OUTPUT_ITSELF else arguments.resume
    selecting = [name.replace("-", "_") for name in benchmark.selecting]
    start = {"benchmark": benchmark.name, "arguments": _as_json(arguments), "seed": arguments.seed, **machine}
    earlier = resume.find_cases(path, json.loads(json.dumps(start)), selecting=selecting)
    for refusal in earlier.refusals:
        sys.stderr.write(f"{refusal}\n")
    return earlier


def _run_to_end(name: str, work: Callable[[Session], None], session: Session) -> int:
    try:
        work(session)
    except VariantError as error:
        session.recorder.failure(name, None, str(error))
    except KeyboardInterrupt:
        session.recorder.failure(name, None, "interrupted")
        return INTERRUPTED
    return FAILED if session.recorder.failures else DONE


def environment(changes: dict[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, **(changes or {})}


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _as_json(arguments: argparse.Namespace) -> dict[str, Any]:
    values = vars(arguments).items()
    return {name: str(value) if isinstance(value, Path) else value for name, value in values}
