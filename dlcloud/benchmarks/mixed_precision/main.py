"""Measure what mixed precision is worth: training steps in FP32 and in less, side by side."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec

from .. import catalog
from ..harness import hardware, program
from ..harness.case import Limits
from .cases import TrainingComparison
from .settings import (
    DIGITS,
    IMAGE_SIZES,
    PYTORCH_ONLY,
    Optimization,
    TrainingSetting,
    detect_capabilities,
)

ENTRY = catalog.BENCHMARKS["mixed_precision"]

IMAGENET = 1_281_167
"""Training images of ImageNet's 1,000 classes. Source: Russakovsky et al. 2014, table 2."""

ENGINES = {"pytorch": ("torch",), "keras": ("torch", "keras")}
"""The modules that each engine needs."""

WARM_UP_S = 60.0
"""Steps of the large networks take seconds."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit status."""
    arguments = parse(argv)
    try:
        capabilities = detect_capabilities(arguments.device)
    except LookupError as error:
        sys.stderr.write(f"{error}\n")
        return program.FAILED
    modules = [module for engine in arguments.engine for module in ENGINES[engine]]
    modules += ["sklearn"] if DIGITS in arguments.network else []
    missing = next((module for module in modules if find_spec(module) is None), None)
    if missing is not None:
        sys.stderr.write(f"{missing} is not installed: pip install -r {ENTRY.requirements_path}\n")
        return program.FAILED
    with tempfile.TemporaryDirectory(prefix="dlcloud-compiled-") as compiled:
        comparison = TrainingComparison(arguments=arguments, capabilities=capabilities, compiled=compiled)
        return program.run_work(
            ENTRY.name,
            arguments,
            limits=program.limits_from(arguments),
            packages=("torch", "keras", "numpy", "triton", "nvidia-cudnn-cu13"),
            work=comparison.run,
        )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments; a faulty one ends the program with status 2, as argparse does."""
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.mixed_precision", description=ENTRY.summary)
    _add_what(parser)
    _add_how(parser)
    program.add_arguments(parser, limits=Limits())
    program.add_round_arguments(parser, limits=Limits(warm_up_s=WARM_UP_S))
    arguments = parser.parse_args(argv)
    for repeated in ("network", "engine", "batch"):
        setattr(arguments, repeated, list(dict.fromkeys(getattr(arguments, repeated))))
    _check(parser, arguments)
    arguments.threads = arguments.threads or hardware.physical_cores()
    return arguments


def _add_what(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is trained")
    group.add_argument(
        "--network", nargs="+", choices=tuple(IMAGE_SIZES), default=["resnet50"], metavar="NAME",
        help=f"{', '.join(IMAGE_SIZES)}; digits is trained to the end (default: resnet50)",
    )  # fmt: skip
    group.add_argument(
        "--engine", nargs="+", choices=tuple(ENGINES), default=["pytorch"],
        help="pytorch, or keras on it with its policies (default: pytorch)",
    )  # fmt: skip
    group.add_argument(
        "--batch", nargs="+", type=program.positive, default=[8], metavar="N",
        help="images a step (default: 8)",
    )  # fmt: skip
    group.add_argument(
        "--size", type=program.positive, default=None, metavar="PIXELS",
        help="height and width of the images (default: as published for each network)",
    )  # fmt: skip
    group.add_argument(
        "--head", choices=("published", "small"), default="published",
        help="small: global pooling, dropout and one layer, as in the article (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--optimizer", choices=("sgd", "adam"), default="sgd",
        help="sgd with momentum, or adam (default: %(default)s)",
    )  # fmt: skip


def _add_how(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how")
    optimizations = ", ".join(optimization.value for optimization in Optimization)
    group.add_argument(
        "--setting", nargs="+", type=_setting, default=None, metavar="SETTING",
        help=f"fp32, tf32, bf16 or fp16, with +optimizations of {optimizations}; fp32 is always the "
        "baseline (default: what tells most on the device)",
    )  # fmt: skip
    group.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto",
        help="auto takes the first GPU, where there is one (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--threads", type=program.positive, default=None, metavar="N",
        help="threads of the engine (default: one per physical core)",
    )  # fmt: skip
    group.add_argument(
        "--epoch-images", type=program.positive, default=IMAGENET, metavar="N",
        help="images that the computed time of an epoch is of (default: ImageNet's %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--epochs", type=program.positive, default=12, metavar="N",
        help="epochs that digits is trained for (default: %(default)s)",
    )  # fmt: skip


def _setting(text: str) -> str:
    """Read a setting and return its name, so that two spellings of one are one."""
    try:
        return TrainingSetting.parse(text).name
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse optimizations that an engine lacks."""
    for text in arguments.setting or ():
        unsupported = PYTORCH_ONLY & TrainingSetting.parse(text).optimizations
        if unsupported and "keras" in arguments.engine:
            names = ", ".join(sorted(optimization.value for optimization in unsupported))
            parser.error(f"argument --setting: {names} in {text!r} is for pytorch alone; keras was asked for")
