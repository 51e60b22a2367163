"""Train a network on one synthetic batch, a bare `tf.function` step at a time; runs inside workers."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .loading import keras, tf
from .networks import build
from .sizes import CLASSES, SIZES
from .updates import LossScale, Update

LOSSES_KEPT = 20
"""Steps whose loss is compared with the baseline's."""

POLICIES = {"bf16-policy": "mixed_bfloat16", "fp16-policy": "mixed_float16"}
REWRITES = {
    "bf16-rewrite": "auto_mixed_precision_onednn_bfloat16",
    "fp16-rewrite": "auto_mixed_precision",
}

OPENMP = re.compile(r"lib(iomp5|gomp|omp)\b\S*")


class Training:
    """A network in training.

    Args:
        model: A Keras model.
        feed: Images and labels of the one batch.
        optimizer: See Update.
        xla: Whether XLA compiles the whole step.
        scaled: Whether the loss is scaled, for fp16.
        facts: What is known before it runs.
    """

    def __init__(
        self,
        *,
        model: Any,  # noqa: ANN401 - no types
        feed: tuple[Any, Any],
        optimizer: str,
        xla: bool,
        scaled: bool,
        facts: Mapping[str, Any],
    ) -> None:
        self.facts = facts
        self.items_per_step = int(feed[0].shape[0])
        self._feed = feed
        self._losses: list[float] = []
        weights = [variable.value for variable in model.trainable_variables]
        update, scale = Update(optimizer, weights), LossScale() if scaled else None

        def step(images: Any, labels: Any) -> Any:  # noqa: ANN401 - no types
            with tf.GradientTape() as tape:
                logits = tf.cast(model(images, training=True), tf.float32)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
                loss = tf.reduce_mean(losses)
                target = scale.scaled(loss) if scale else loss
            gradients = tape.gradient(target, weights)
            if scale:
                scale.apply(gradients, update)
            else:
                update(gradients)
            return loss

        self._step = tf.function(step, jit_compile=xla)

    def step(self) -> None:
        """Train on the batch once and wait for the loss."""
        loss = float(self._step(*self._feed))
        if len(self._losses) < LOSSES_KEPT:
            self._losses.append(loss)

    def outputs(self) -> list[list[float]]:
        """Return the losses of the first steps: one row."""
        return [self._losses]


def train(  # noqa: PLR0917 - keyword arguments from JSON
    network: str,
    batch: int,
    optimizer: str,
    seed: int,
    precision: str = "fp32",
    layout: str = "NHWC",
    *,
    xla: bool = False,
    intra: int = 0,
    inter: int = 0,
    cpus: Sequence[int] = (),
    device: str = "cpu",
) -> Training:
    """Make a network ready to train.

    Args:
        network: A key of SIZES.
        batch: Images a step.
        optimizer: See Update.
        seed: Of weights and images.
        precision: `fp32`, `tf32`, a key of POLICIES or one of REWRITES.
        layout: `NHWC` or `NCHW`.
        xla: Whether XLA compiles the whole step.
        intra: Threads within an operation; 0 leaves it to TensorFlow.
        inter: Operations at once; 0 leaves it to TensorFlow.
        cpus: The logical CPUs to run on; none means all.
        device: `cpu` or `gpu`.

    Raises:
        RuntimeError: There is no GPU for TensorFlow to use.
    """
    if cpus:
        # Threads that the import of TensorFlow has started already are bound as well.
        for task in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(task.name), cpus)
    tf.config.threading.set_intra_op_parallelism_threads(intra)
    tf.config.threading.set_inter_op_parallelism_threads(inter)
    if device == "gpu":
        _prepare_gpu(tf32=precision == "tf32")
    if precision in REWRITES:
        tf.config.optimizer.set_experimental_options({REWRITES[precision]: True})
    keras.mixed_precision.set_global_policy(POLICIES.get(precision, "float32"))
    keras.config.set_image_data_format("channels_last" if layout == "NHWC" else "channels_first")
    model = build(network, seed)
    feed = _synthetic(SIZES[network].image, batch, layout, seed)
    facts = {
        "weights": "random",
        "optimizer": optimizer,
        "parameters": model.count_params(),
        "engine": f"TensorFlow {tf.__version__}",
        "openmp_runtime": openmp_runtime(),
    }
    return Training(
        model=model, feed=feed, optimizer=optimizer, xla=xla, scaled=precision == "fp16-policy", facts=facts
    )


def openmp_runtime() -> str | None:
    """Return the OpenMP library that this process has loaded; without one, OMP_ and KMP_ say nothing."""
    try:
        found = OPENMP.search(Path("/proc/self/maps").read_text(encoding="utf-8"))
    except OSError:
        return None
    return found.group() if found else None


def _prepare_gpu(*, tf32: bool) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        raise RuntimeError("TensorFlow finds no GPU")
    for gpu in gpus:
        # Every setting's process lives on the same GPU: none may take all of its memory.
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.experimental.enable_tensor_float_32_execution(tf32)


def _synthetic(size: int, batch: int, layout: str, seed: int) -> tuple[Any, Any]:
    """Draw images of mean 0 and variance 1, the same in every setting, and their labels."""
    generator = np.random.default_rng(seed)
    images = generator.standard_normal((batch, size, size, 3), dtype=np.float32)
    labels = generator.integers(0, CLASSES, batch, dtype=np.int64)
    arranged = images if layout == "NHWC" else np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    return tf.constant(arranged), tf.constant(labels)
