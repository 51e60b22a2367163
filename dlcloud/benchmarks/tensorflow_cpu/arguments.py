"""The options of the TensorFlow benchmark, and the sizes of its networks; imports no framework."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ..harness.benchmark import (
    BF16_FLAGS,
    BF16_NAME,
    TINY,
    Benchmark,
    HardwareNeed,
    Option,
    RequirementsChoice,
    positive,
    positive_float,
)
from ..harness.case import Limits
from ..harness.usage import GIB
from .knobs import NAMES

CLASSES = 1000

BYTES = 4

FRAMEWORK_GIB = 0.6
"""Memory of a process with TensorFlow before it builds a network."""

SLOTS: Mapping[str, int] = {"sgd": 0, "momentum": 1, "rmsprop": 2}
"""Values that an optimizer keeps for each weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a network."""

    image: int  # height and width of its images, as in the networks' papers and tf_cnn_benchmarks
    weights: int
    activations: int  # number of output values of its layers for one image

    def training_gib(self, batch: int, optimizer: str) -> float:
        """Estimate the resident memory of one training process, in GiB.

        Weights, their gradients, the optimizer's values and a working copy; activations of every layer,
        kept for the way back. Measured: within a fifth of the resident memory of six networks.
        """
        values = self.weights * (3 + SLOTS[optimizer]) + self.activations * batch
        return FRAMEWORK_GIB + values * BYTES / GIB


SIZES: Mapping[str, Size] = {
    "alexnet": Size(image=224, weights=61_100_840, activations=607_016),
    "googlenet": Size(image=224, weights=6_998_552, activations=5_882_264),
    "inception3": Size(image=299, weights=23_851_784, activations=32_286_184),
    "resnet50": Size(image=224, weights=25_636_712, activations=36_969_684),
    "resnet152": Size(image=224, weights=60_419_944, activations=78_916_820),
    "vgg16": Size(image=224, weights=138_357_544, activations=15_112_168),
    "tiny": Size(image=32, weights=201_320, activations=50_216),
}
"""The networks; those that do not fit into memory are left out in advance."""

STOCK, ARTICLE, TODAY = SETTINGS = ("stock", "article", "today")

SEARCH = Limits(width=0.1, max_s=20.0, rounds=3, slice_s=1.0, warm_up_s=20.0)
"""A search only asks of each value whether it is clearly better."""

_search = partial(Option, group=f"the search for {TODAY}'s best setting")

ENTRY = Benchmark(
    name="tensorflow",
    module="benchmarks.tensorflow_cpu",
    requirements="tensorflow.txt",
    summary="Compare settings of training with TensorFlow: stock, an article's of 2018, and the "
    "best that a search finds.",
    options=(
        Option(
            "network",
            "networks with random weights",
            choices=tuple(SIZES),
            default=("resnet50",),
            many=True,
            selects=True,
        ),
        Option("batch", "images a step", type=positive, default=(32,), many=True, selects=True),
        Option(
            "settings",
            "settings to compare; stock is the baseline in any case",
            choices=SETTINGS,
            default=SETTINGS,
            default_help="all",
            many=True,
        ),
        Option("optimizer", "how weights are updated", choices=tuple(SLOTS), default="sgd"),
        Option("device", "where to train", choices=("cpu", "gpu"), default="cpu"),
        _search(
            "knobs",
            "knobs that the search may turn",
            choices=NAMES,
            default=NAMES,
            default_help="all",
            many=True,
        ),
        _search(
            "search-batch",
            "search at this batch only and use the best setting at every one",
            type=positive,
            default_help="each is searched",
        ),
        _search(
            "search-rounds",
            "rounds of each case of the search at least",
            type=positive,
            default=SEARCH.rounds,
        ),
        _search(
            "search-seconds",
            "seconds after which a case of the search begins no further round",
            type=positive_float,
            default=SEARCH.max_s,
        ),
        _search(
            "search-total-seconds",
            "seconds after which the search turns no further knob",
            type=positive_float,
            default_help="every knob is turned",
        ),
    ),
    needs=(
        HardwareNeed(memory_gib=8),
        # Source: PyPI, tensorflow-cpu 2.21.0: no wheel for aarch64. Its knobs are oneDNN's on x86.
        HardwareNeed(architecture="x86_64"),
        HardwareNeed(given=("device", "gpu"), gpu=True),
        HardwareNeed(
            flags=BF16_FLAGS,
            flags_name=BF16_NAME,
            advice="the search leaves bf16 out there, its largest gain",
        ),
    ),
    case_s=930.0,
    tiny_s=110.0,
    sweep={"network": ["resnet50", "vgg16"], "batch": "32"},
    tiny={"network": "tiny", "batch": "8", "knobs": ["onednn", "precision"], **TINY, "search-seconds": "1"},
    choices=(RequirementsChoice(parameter="device", value="gpu", requirements="tensorflow_gpu.txt"),),
)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments; a faulty one ends the program with status 2, as argparse does."""
    parser = ENTRY.parser()
    arguments = parser.parse_args(argv)
    arguments.settings = [name for name in SETTINGS if name == STOCK or name in arguments.settings]
    if arguments.search_batch is not None and TODAY not in arguments.settings:
        parser.error(f"--search-batch is of the search, which needs --settings {TODAY}")
    return arguments
