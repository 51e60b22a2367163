"""Measure training with TensorFlow: stock, an article's settings, and the best that a search finds."""

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import replace

from .. import catalog
from ..harness import program
from ..harness.case import Limits, Session
from .experiment import SETTINGS, STOCK, TODAY, Experiments
from .knobs import NAMES, knobs_of
from .machine import look
from .sizes import SIZES, SLOTS

ENTRY = catalog.BENCHMARKS["tensorflow"]

PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy")

SEARCH = Limits(width=0.1, max_s=20.0, rounds=3, slice_s=1.0, warm_up_s=20.0)
"""A search asks of each value only whether it is clearly better."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit status."""
    arguments = parse(argv)
    if importlib.util.find_spec("tensorflow") is None:
        requirements = ENTRY.requirements_for(["--device", arguments.device])
        sys.stderr.write(f"tensorflow is not installed: pip install -r {requirements}\n")
        return program.FAILED
    limits = program.limits_from(arguments)
    return program.run_work(
        ENTRY.name,
        arguments,
        limits=limits,
        packages=PACKAGES,
        work=lambda session: _work(arguments, session),
    )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments; a faulty one ends the program with status 2, as argparse does."""
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.tensorflow_cpu", description=ENTRY.summary)
    parser.add_argument(
        "--network", nargs="+", choices=tuple(SIZES), default=["resnet50"],
        help="what to train (default: resnet50)",
    )  # fmt: skip
    parser.add_argument(
        "--batch", nargs="+", type=program.positive, default=[32], metavar="N",
        help="images a step (default: 32)",
    )  # fmt: skip
    parser.add_argument(
        "--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS),
        help=f"what to compare; {STOCK} is the baseline in any case (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--optimizer", choices=tuple(SLOTS), default="sgd", help="how weights are updated (default: sgd)"
    )
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="(default: cpu)")
    _add_search(parser)
    program.add_arguments(parser, limits=Limits())
    program.add_round_arguments(parser, limits=Limits())
    arguments = parser.parse_args(argv)
    arguments.settings = [name for name in SETTINGS if name == STOCK or name in arguments.settings]
    if arguments.search_batch is not None and TODAY not in arguments.settings:
        parser.error(f"--search-batch is of the search, which needs --settings {TODAY}")
    return arguments


def _add_search(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(f"the search for {TODAY}'s best setting")
    group.add_argument(
        "--knobs", nargs="+", choices=NAMES, default=list(NAMES), help="what may be turned (default: all)"
    )
    group.add_argument(
        "--search-batch", type=program.positive, default=None, metavar="N",
        help="search at this batch only and use what was found at every one (default: each is searched)",
    )  # fmt: skip
    group.add_argument(
        "--search-rounds", type=program.positive, default=SEARCH.rounds, metavar="N",
        help="rounds of each of its cases at least (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--search-seconds", type=program.positive_float, default=SEARCH.max_s, metavar="S",
        help="begin no round of one of its cases after this long (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--search-total-seconds", type=program.positive_float, default=None, metavar="S",
        help="turn no further knob after this long (default: every knob is turned)",
    )  # fmt: skip


def _work(arguments: argparse.Namespace, session: Session) -> None:
    machine = look(arguments.device)
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
