"""What the benchmark programs share: arguments, the records around the cases, signals, and the final table.

`run` is called by the `__main__` of every family: it describes the machine, finds the cases that need not be
measured again, has the cases measured, and prints the table. Its exit status is 0 if everything was measured.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from . import hardware
from .benchmark import OUTPUT_ITSELF, Benchmark
from .case import Limits, Session, VariantError
from .protocol import TIME_WAS_UP
from .records import FINISH, EarlierCases, Recorder, code_digest, find_cases, open_records
from .schema import Comparison, Measurement, MetricName, Result
from .usage import MIB

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def run(
    benchmark: Benchmark,
    arguments: argparse.Namespace,
    *,
    work: Callable[[Session], None],
    packages: Iterable[str] = (),
    modules: Iterable[str] = (),
    requirements: Path | None = None,
    limits: Limits | None = None,
) -> int:
    """Run a benchmark, print the table and return the exit status.

    Args:
        benchmark: The program.
        arguments: Those that it was started with.
        work: Measures the cases with protocol.measure; may raise VariantError if nothing can be measured.
        packages: Their versions go into the first record.
        modules: The program fails if one of them is not installed, and says what to install.
        requirements: The file to install from; None: that of the benchmark's defaults.
        limits: When to stop; None: as the arguments say.
    """
    if missing := next((name for name in modules if find_spec(name) is None), None):
        install = f"pip install -r {requirements or benchmark.requirements_path}"
        sys.stderr.write(f"{missing} is not installed: {install}\n")
        return FAILED
    if arguments.resume == OUTPUT_ITSELF and arguments.output is None:
        sys.stderr.write("--resume needs --output FILE, or --resume FILE\n")
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
    machine["software"]["code"] = code_digest(benchmark.module.rpartition(".")[2])
    earlier = _earlier_cases(benchmark, arguments, machine)
    with open_records(arguments.output) as output:
        recorder = Recorder(output=output, messages=sys.stderr, host=arguments.host)
        recorder.start(benchmark.name, _as_json(arguments), arguments.seed, machine)
        session = Session(
            limits=limits or _limits_from(arguments),
            recorder=recorder,
            # The seed makes intervals repeatable; nothing here is secret.
            generator=random.Random(arguments.seed),  # noqa: S311
            earlier=earlier.cases,
            record_earlier=arguments.resume != OUTPUT_ITSELF,
            is_finishing=partial(_is_asked_to_finish, arguments.output),
        )
        status = _run_to_end(benchmark.name, work, session)
        recorder.end(ok=status == DONE, seconds=time.monotonic() - began)
    sys.stdout.write(render(recorder))
    return status


def _limits_from(arguments: argparse.Namespace) -> Limits:
    return Limits(
        width=arguments.width,
        max_s=arguments.max_seconds,
        rounds=arguments.rounds,
        slice_s=arguments.slice_seconds,
        warm_up_s=arguments.warm_up_seconds,
    )


def _is_asked_to_finish(output: Path | None) -> bool:
    return output is not None and output.with_name(output.name + FINISH).exists()


def _earlier_cases(
    benchmark: Benchmark, arguments: argparse.Namespace, machine: dict[str, Any]
) -> EarlierCases:
    """Return the cases measured before, and print why others do not count."""
    if arguments.resume is None:
        return EarlierCases()
    path = arguments.output if arguments.resume == OUTPUT_ITSELF else arguments.resume
    selecting = [name.replace("-", "_") for name in benchmark.selecting]
    start = {"benchmark": benchmark.name, "arguments": _as_json(arguments), "seed": arguments.seed, **machine}
    earlier = find_cases(path, json.loads(json.dumps(start)), selecting=selecting)
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


_BySetting = Mapping[tuple[str, str], Comparison]


def render(recorder: Recorder) -> str:
    """Return the table of results, then the warnings, skipped settings and failures."""
    comparisons = {(comparison.case, comparison.candidate): comparison for comparison in recorder.comparisons}
    overall = {(comparison.case, comparison.candidate): comparison for comparison in recorder.overall}
    rows = [_row(result, comparisons, overall) for result in recorder.results]
    parts = []
    if rows:
        names = list(dict.fromkeys(name for row in rows for name in row))
        parts.append(_align([names, *([row.get(name, "") for name in names] for row in rows)]))
    parts.extend(_notes(recorder))
    return "\n".join(parts) + ("\n" if parts else "")


def _row(result: Result, comparisons: _BySetting, overall: _BySetting) -> dict[str, str]:
    comparison = comparisons.get((result.case, result.setting))
    row = {"case": result.case, "setting": result.setting}
    for metric, measured in result.metrics.items():
        row[f"{metric.replace('_', ' ')} ({measured.unit})"] = _value(metric, measured)
    if "model_bytes" in result.facts:
        row["model (MiB)"] = f"{result.facts['model_bytes'] / MIB:.2f}"
    if "cosine_similarity" in result.facts:
        row["cosine to baseline"] = f"{result.facts['cosine_similarity']:.5f}"
    if "accuracy_drop_points" in result.facts:
        row["accuracy (%)"] = f"{result.facts['accuracy_percent']:.2f}"
        row["drop (points)"] = f"{result.facts['accuracy_drop_points']:.2f}"
    row |= result.facts.get("printed", {})
    row["speed-up"] = _speed_up(comparison) if comparison else ("baseline" if result.baseline else "")
    if comparison and any(warning.startswith(TIME_WAS_UP) for warning in result.warnings):
        row["speed-up"] += f", {TIME_WAS_UP}"
    if any(case == result.case for case, _ in overall):
        best = overall.get((result.case, result.setting))
        row["over the best baseline"] = _speed_up(best) if best else "the best"
    return row


def _value(metric: str, measured: Measurement) -> str:
    if metric in (MetricName.PEAK_MEMORY, MetricName.RESIDENT_MEMORY):
        return f"{measured.value:.0f}"
    return f"{measured.value:.4g} [{measured.low:.4g}, {measured.high:.4g}]"


def _speed_up(comparison: Comparison) -> str:
    interval = f"{comparison.ratio:.3g} [{comparison.low:.3g}, {comparison.high:.3g}]"
    return f"{interval} {comparison.verdict}"


def _notes(recorder: Recorder) -> Iterable[str]:
    for result in recorder.results:
        for warning in result.warnings:
            yield f"warning: {result.case}, {result.setting}: {warning}"
    if any(result.facts.get("weights") == "random" for result in recorder.results):
        yield "The weights are random: speed, size and agreement are real, accuracy was not measured."
    for skip in recorder.skips:
        yield f"skipped: {skip.case}, {skip.setting}: {skip.reason}"
    for failure in recorder.failures:
        yield f"failed: {failure.case}, {failure.setting or 'every setting'}: {failure.message}"


def _align(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)
