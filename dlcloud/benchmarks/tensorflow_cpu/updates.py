"""Update weights by TensorFlow's own fused kernels, and scale the loss where gradients are fp16.

Runs inside workers. The same kernels in every setting: what is compared is the setting.
"""

from collections.abc import Sequence
from typing import Any

from .loading import tf

RATE = 1e-4
"""Small enough that the loss of every network falls from the first step, with and without normalisation."""

# Source: the defaults of tf_cnn_benchmarks, whose RMSProp the article trained with.
DECAY, MOMENTUM, EPSILON = 0.9, 0.9, 1.0

Tensor = Any  # TensorFlow ships no types


class Update:
    """One optimizer's values for some weights.

    Args:
        optimizer: `sgd`, `momentum` or `rmsprop`.
        weights: The variables, float32.
    """

    def __init__(self, optimizer: str, weights: Sequence[Tensor]) -> None:
        self._apply = {"sgd": self._sgd, "momentum": self._momentum, "rmsprop": self._rmsprop}[optimizer]
        self._weights = weights
        starts = {"sgd": (), "momentum": (tf.zeros_like,), "rmsprop": (tf.ones_like, tf.zeros_like)}[
            optimizer
        ]
        self._slots = [tuple(tf.Variable(start(weight)) for start in starts) for weight in weights]

    def __call__(self, gradients: Sequence[Tensor]) -> None:
        """Take one step."""
        for weight, slots, gradient in zip(self._weights, self._slots, gradients, strict=True):
            self._apply(weight.handle, [slot.handle for slot in slots], gradient)

    @staticmethod
    def _sgd(weight: Tensor, _slots: Sequence[Tensor], gradient: Tensor) -> None:
        tf.raw_ops.ResourceApplyGradientDescent(var=weight, alpha=RATE, delta=gradient)

    @staticmethod
    def _momentum(weight: Tensor, slots: Sequence[Tensor], gradient: Tensor) -> None:
        tf.raw_ops.ResourceApplyMomentum(
            var=weight, accum=slots[0], lr=RATE, grad=gradient, momentum=MOMENTUM
        )

    @staticmethod
    def _rmsprop(weight: Tensor, slots: Sequence[Tensor], gradient: Tensor) -> None:
        tf.raw_ops.ResourceApplyRMSProp(
            var=weight, ms=slots[0], mom=slots[1], lr=RATE, rho=DECAY, momentum=MOMENTUM, epsilon=EPSILON,
            grad=gradient,
        )  # fmt: skip


class LossScale:
    """A factor that keeps small fp16 gradients from vanishing; halved on overflow, doubled after a while.

    Source: Micikevicius et al. 2017, "Mixed Precision Training", section 3.2; the figures are those of
    TensorFlow's and PyTorch's scalers.
    """

    FIRST = 2.0**15
    STEPS_TO_DOUBLE = 2000

    def __init__(self) -> None:
        self.factor = tf.Variable(self.FIRST)
        self._good = tf.Variable(0, dtype=tf.int32)

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss whose gradients are to be taken."""
        return loss * self.factor

    def apply(self, gradients: Sequence[Tensor], update: Update) -> None:
        """Undo the scale and take a step, or leave this one out where a gradient overflowed."""
        unscaled = [gradient / tf.cast(self.factor, gradient.dtype) for gradient in gradients]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in unscaled])
        tf.cond(finite, lambda: self._take(unscaled, update), self._leave_out)

    def _take(self, gradients: Sequence[Tensor], update: Update) -> Tensor:
        update(gradients)
        doubled = self._good + 1 >= self.STEPS_TO_DOUBLE
        self.factor.assign(tf.where(doubled, self.factor * 2.0, self.factor))
        self._good.assign(tf.where(doubled, 0, self._good + 1))
        return tf.constant(0)

    def _leave_out(self) -> Tensor:
        self.factor.assign(tf.maximum(self.factor / 2.0, 1.0))
        self._good.assign(0)
        return tf.constant(0)
