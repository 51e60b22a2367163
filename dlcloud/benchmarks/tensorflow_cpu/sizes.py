"""Sizes of the networks, so that those that do not fit into memory are left out in advance."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..harness.usage import GIB

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
