"""Train a network on one synthetic batch, a bare `tf.function` step at a time; runs inside workers."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..harness.roofline import Peak
from .keras_networks import build
from .loading import keras, tf
from .sizes import CLASSES, SIZES
from .work import count_work, measure_peak

LOSSES_KEPT = 20
"""Steps whose loss is compared with the baseline's."""

POLICIES = {"bf16-policy": "mixed_bfloat16", "fp16-policy": "mixed_float16"}
REWRITES = {
    "bf16-rewrite": "auto_mixed_precision_onednn_bfloat16",
    "fp16-rewrite": "auto_mixed_precision",
}

OPENMP = re.compile(r"lib(iomp5|gomp|omp)\b\S*")

RATE = 1e-4
"""Small enough that the loss of every network falls from the first step, with and without normalisation."""

# Source: the defaults of tf_cnn_benchmarks, whose RMSProp the article trained with.
DECAY, MOMENTUM, EPSILON = 0.9, 0.9, 1.0

Tensor = Any  # TensorFlow ships no types


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """A network and how to train it."""

    network: str  # a key of SIZES
    batch: int  # images a step
    optimizer: str  # `sgd`, `momentum` or `rmsprop`
    seed: int  # seed of weights and images
    precision: str = "fp32"  # `fp32`, `tf32`, a key of POLICIES or one of REWRITES
    layout: str = "NHWC"  # `NHWC` or `NCHW`
    xla: bool = False  # compile the whole step with XLA
    intra: int = 0  # threads within an operation; 0 is TensorFlow's own choice
    inter: int = 0  # concurrent operations; 0 is TensorFlow's own choice
    cpus: Sequence[int] = ()  # the logical CPUs to run on; all if empty
    device: str = "cpu"  # `cpu` or `gpu`


class Training:
    """A network in training; TensorFlow is configured for the job."""

    def __init__(self, job: TrainingJob) -> None:
        model = build(job.network, job.seed)
        self.items_per_step = job.batch
        self.facts = {
            "weights": "random",
            "optimizer": job.optimizer,
            "parameters": model.count_params(),
            "engine": f"TensorFlow {tf.__version__}",
            "openmp_runtime": openmp_runtime(),
        }
        self._feed = _draw_feed(job)
        self._losses: list[float] = []
        weights = [variable.value for variable in model.trainable_variables]
        update = Update(job.optimizer, weights)
        scale = LossScale() if job.precision == "fp16-policy" else None

        def step(images: Tensor, labels: Tensor) -> Tensor:
            with tf.GradientTape() as tape:
                logits = tf.cast(model(images, training=True), tf.float32)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
                loss = tf.reduce_mean(losses)
                target = scale.scale(loss) if scale else loss
            gradients = tape.gradient(target, weights)
            if scale:
                scale.apply(gradients, update)
            else:
                update(gradients)
            return loss

        self._step = tf.function(step, jit_compile=job.xla)
        self._dtype = job.precision.partition("-")[0]
        self.facts |= self._count_work()

    def step(self) -> None:
        loss = float(self._step(*self._feed))
        if len(self._losses) < LOSSES_KEPT:
            self._losses.append(loss)

    def measure_peak(self, seconds: float) -> Peak:
        return measure_peak(self._dtype, seconds)

    def _count_work(self) -> dict[str, Any]:
        graph = self._step.get_concrete_function(*self._feed).graph
        return count_work(graph, self.items_per_step).facts()

    def outputs(self) -> list[list[float]]:
        """Return the losses of the first steps: one row."""
        return [self._losses]


def train(**arguments: Any) -> Training:  # noqa: ANN401 - the fields of TrainingJob, from JSON
    """Configure TensorFlow for a job and make its network ready to train.

    Raises:
        RuntimeError: TensorFlow finds no GPU to use.
    """
    job = TrainingJob(**arguments)
    if job.cpus:
        # Threads that the import of TensorFlow has started already are bound as well.
        for task in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(task.name), job.cpus)
    tf.config.threading.set_intra_op_parallelism_threads(job.intra)
    tf.config.threading.set_inter_op_parallelism_threads(job.inter)
    if job.device == "gpu":
        _prepare_gpu(tf32=job.precision == "tf32")
    if job.precision in REWRITES:
        tf.config.optimizer.set_experimental_options({REWRITES[job.precision]: True})
    keras.mixed_precision.set_global_policy(POLICIES.get(job.precision, "float32"))
    keras.config.set_image_data_format("channels_last" if job.layout == "NHWC" else "channels_first")
    return Training(job)


def openmp_runtime() -> str | None:
    """Return the OpenMP library that this process has loaded; without one, OMP_ and KMP_ have no effect."""
    try:
        library = OPENMP.search(Path("/proc/self/maps").read_text(encoding="utf-8"))
    except OSError:
        return None
    return library.group() if library else None


def _prepare_gpu(*, tf32: bool) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        raise RuntimeError("TensorFlow finds no GPU")
    for gpu in gpus:
        # Every setting's process lives on the same GPU: none may take all of its memory.
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.experimental.enable_tensor_float_32_execution(tf32)


def _draw_feed(job: TrainingJob) -> tuple[Tensor, Tensor]:
    """Draw images of mean 0 and variance 1, the same in every setting, and their labels."""
    generator = np.random.default_rng(job.seed)
    size = SIZES[job.network].image
    images = generator.standard_normal((job.batch, size, size, 3), dtype=np.float32)
    labels = generator.integers(0, CLASSES, job.batch, dtype=np.int64)
    arranged = images if job.layout == "NHWC" else np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    return tf.constant(arranged), tf.constant(labels)


class Update:
    """An optimizer (`sgd`, `momentum` or `rmsprop`) with its values for some float32 weights."""

    def __init__(self, optimizer: str, weights: Sequence[Tensor]) -> None:
        self._apply, starts = {
            "sgd": (self._sgd, ()),
            "momentum": (self._momentum, (tf.zeros_like,)),
            "rmsprop": (self._rmsprop, (tf.ones_like, tf.zeros_like)),
        }[optimizer]
        self._weights = weights
        self._slots = [tuple(tf.Variable(start(weight)) for start in starts) for weight in weights]

    def __call__(self, gradients: Sequence[Tensor]) -> None:
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

    def scale(self, loss: Tensor) -> Tensor:
        return loss * self.factor

    def apply(self, gradients: Sequence[Tensor], update: Update) -> None:
        """Undo the scale and take a step, or skip it if a gradient overflowed."""
        unscaled = [gradient / tf.cast(self.factor, gradient.dtype) for gradient in gradients]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in unscaled])
        tf.cond(finite, lambda: self._take_step(unscaled, update), self._skip)

    def _take_step(self, gradients: Sequence[Tensor], update: Update) -> Tensor:
        update(gradients)
        doubled = self._good + 1 >= self.STEPS_TO_DOUBLE
        self.factor.assign(tf.where(doubled, self.factor * 2.0, self.factor))
        self._good.assign(tf.where(doubled, 0, self._good + 1))
        return tf.constant(0)

    def _skip(self) -> Tensor:
        self.factor.assign(tf.maximum(self.factor / 2.0, 1.0))
        self._good.assign(0)
        return tf.constant(0)
