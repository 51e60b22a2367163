"""The options of the mixed-precision benchmark."""

import argparse
from collections.abc import Sequence

from ..harness import hardware
from ..harness.benchmark import (
    BF16_FLAGS,
    BF16_NAME,
    THREADS,
    TINY,
    Benchmark,
    HardwareNeed,
    Option,
    positive,
)
from .precisions import IMAGE_SIZES, PYTORCH_ONLY, Optimization, TrainingSetting

IMAGENET = 1_281_167
"""Training images of ImageNet's 1,000 classes. Source: Russakovsky et al. 2014, table 2."""

ENGINES = {"pytorch": ("torch",), "keras": ("torch", "keras")}
"""The modules that each engine needs."""

OPTIMIZATIONS = ", ".join(f"+{optimization.value}" for optimization in Optimization)

WARM_UP_S = 60.0
"""Steps of the large networks take seconds."""


def _setting(text: str) -> str:
    """Read a setting and return its name, so that two spellings of one are one."""
    try:
        return TrainingSetting.parse(text).name
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


ENTRY = Benchmark(
    name="mixed_precision",
    module="benchmarks.mixed_precision",
    requirements="mixed_precision.txt",
    summary="Compare FP32 with mixed-precision training of image networks in PyTorch or Keras: "
    "time of a step and an epoch, memory, kernels, and loss.",
    options=(
        Option(
            "network",
            "networks with random weights, or digits: a small network trained to the end on real ones",
            choices=tuple(IMAGE_SIZES),
            default=("resnet50",),
            metavar="NAME",
            many=True,
            selects=True,
        ),
        Option(
            "engine",
            "pytorch, or keras on it with its policies",
            choices=tuple(ENGINES),
            default=("pytorch",),
            many=True,
            selects=True,
        ),
        Option(
            "setting",
            f"fp32, tf32, bf16 or fp16, followed by any of {OPTIMIZATIONS}; fp32 is always the baseline",
            default_help="the most telling ones on the device",
            type=_setting,
            metavar="SETTING",
            many=True,
        ),
        Option("batch", "images a step", type=positive, default=(8,), many=True, selects=True),
        Option(
            "size",
            "height and width of the images",
            type=positive,
            default_help="as published for each network",
            metavar="PIXELS",
        ),
        Option(
            "head",
            "small: global pooling, dropout and one layer, as in the article",
            choices=("published", "small"),
            default="published",
        ),
        Option("optimizer", "sgd with momentum, or adam", choices=("sgd", "adam"), default="sgd"),
        Option(
            "device", "auto: the first GPU, if there is one", choices=("auto", "cpu", "cuda"), default="auto"
        ),
        THREADS,
        Option(
            "epoch-images",
            "images of an epoch, for its time",
            type=positive,
            default=IMAGENET,
            default_help="ImageNet's 1281167",
        ),
        Option("epochs", "epochs that digits is trained for", type=positive, default=12),
    ),
    defaults={"warm-up-seconds": WARM_UP_S},
    needs=(HardwareNeed(memory_gib=8), HardwareNeed(setting="bf16", flags=BF16_FLAGS, flags_name=BF16_NAME)),
    sweep={"network": ["vgg16", "mobilenet", "resnet50", "efficientnet-b0", "digits"], "batch": "8"},
    tiny={"network": "tiny", "setting": ["fp32", "bf16"], "batch": "2", **TINY},
)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments; a faulty one ends the program with status 2, as argparse does."""
    parser = ENTRY.parser()
    arguments = parser.parse_args(argv)
    for repeated in ("network", "engine", "batch"):
        setattr(arguments, repeated, list(dict.fromkeys(getattr(arguments, repeated))))
    for text in arguments.setting or ():
        unsupported = PYTORCH_ONLY & TrainingSetting.parse(text).optimizations
        if unsupported and "keras" in arguments.engine:
            names = ", ".join(sorted(optimization.value for optimization in unsupported))
            parser.error(f"argument --setting: {names} in {text!r} is for pytorch alone; keras was asked for")
    arguments.threads = arguments.threads or hardware.physical_cores()
    return arguments
