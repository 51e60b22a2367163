"""Train a network with TensorFlow as one setting says; runs inside workers.

The networks come first, with random weights from one seed: four are Keras's own applications; AlexNet,
GoogLeNet and the tiny one are built here.

`train` makes the workload that is timed: one synthetic batch, a bare `tf.function` step at a time. Its
operations are counted by the shapes of the graph's tensors, forward and backward: TensorFlow's own profiler
counts the same, but refuses gradients of images whose channels come first. `prove` trains one step and
reports which kernels computed it: oneDNN prints every primitive that it runs if ONEDNN_VERBOSE is set; on a
GPU the profiler lists the kernels.
"""

import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..harness.case import UntimedWorkload
from ..harness.kernels import capture_output, uses_tensor_cores
from ..harness.roofline import ELEMENT_BYTES, Peak, Work, array_values, best_product, best_rate
from .settings import CLASSES, SIZES

with capture_output(2):  # TensorFlow's first lines come before it reads TF_CPP_MIN_LOG_LEVEL
    import keras
    import tensorflow as tf

layers = keras.layers
applications = keras.applications

Tensor = Any  # neither Keras nor TensorFlow ships types

DROPOUT = 0.5
INCEPTION_DROPOUT = 0.4

LAST_SPREAD = 0.01
"""Standard deviation of the last layer's first weights, so that the loss starts near that of a guess."""

UNNORMALISED = {"vgg16"}
"""Applications without batch normalisation."""


def build_network(network: str, seed: int) -> Tensor:
    """Build a network in the global data format and precision policy.

    Images: (batch, size, size, 3), or (batch, 3, size, size) if the data format is `channels_first`. Output:
    logits (batch, CLASSES).
    """
    keras.utils.set_random_seed(seed)
    size = SIZES[network].image
    channels_last = keras.config.image_data_format() == "channels_last"
    shape = (size, size, 3) if channels_last else (3, size, size)
    if network in APPLICATIONS:
        make = APPLICATIONS[network]
        model = make(weights=None, classes=CLASSES, classifier_activation=None, input_shape=shape)
        if network in UNNORMALISED:
            _strengthen(model)
        return model
    images = keras.Input(shape)
    classes = layers.Dense(CLASSES, kernel_initializer=keras.initializers.RandomNormal(stddev=LAST_SPREAD))
    return keras.Model(images, classes(OWN[network](images)), name=network)


def _strengthen(model: Tensor) -> None:
    """Turn the Glorot start of layers before a rectifier into He's; without it the signal fades to nothing.

    Source: He et al. 2015, "Delving Deep into Rectifiers", section 2.2.
    """
    for layer in model.layers[:-1]:
        if layer.weights:
            layer.kernel.assign(layer.kernel * math.sqrt(2.0))


def _alexnet(images: Tensor) -> Tensor:
    """Return AlexNet's features, in the form for one device.

    Source: Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks".
    """
    values = _conv(images, 64, 11, strides=4)
    values = layers.MaxPooling2D(3, 2)(values)
    values = layers.MaxPooling2D(3, 2)(_conv(values, 192, 5))
    for filters in (384, 256, 256):
        values = _conv(values, filters, 3)
    values = layers.Flatten()(layers.MaxPooling2D(3, 2)(values))
    for _ in range(2):
        values = layers.Dropout(DROPOUT)(layers.Dense(4096, activation="relu")(values))
    return values


GOOGLENET = {
    "3": ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    "4": (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    "5": ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
}
"""Filters of each inception block: 1x1; 3x3 reduced, 3x3; 5x5 reduced, 5x5; pool projection.

Source: Szegedy et al. 2014, "Going Deeper with Convolutions", table 1.
"""


def _googlenet(images: Tensor) -> Tensor:
    """Return GoogLeNet's features, without the auxiliary heads and the local response normalisation."""
    values = layers.MaxPooling2D(3, 2, padding="same")(_conv(images, 64, 7, strides=2))
    values = _conv(_conv(values, 64, 1), 192, 3)
    for stage in GOOGLENET.values():
        values = layers.MaxPooling2D(3, 2, padding="same")(values)
        for filters in stage:
            values = _inception(values, filters)
    return layers.Dropout(INCEPTION_DROPOUT)(layers.GlobalAveragePooling2D()(values))


def _inception(values: Tensor, filters: tuple[int, ...]) -> Tensor:
    single, reduced3, three, reduced5, five, pooled = filters
    branches = [
        _conv(values, single, 1),
        _conv(_conv(values, reduced3, 1), three, 3),
        _conv(_conv(values, reduced5, 1), five, 5),
        _conv(layers.MaxPooling2D(3, 1, padding="same")(values), pooled, 1),
    ]
    return layers.Concatenate(axis=_channel_axis())(branches)


def _tiny(images: Tensor) -> Tensor:
    """Return the features of a network of the same kinds of layers whose step takes milliseconds."""
    values = layers.MaxPooling2D(2)(_conv(images, 16, 3))
    convolved = layers.Conv2D(32, 3, padding="same", use_bias=False)(values)
    values = layers.ReLU()(layers.BatchNormalization(axis=_channel_axis())(convolved))
    return layers.Dense(64, activation="relu")(layers.Flatten()(layers.MaxPooling2D(2)(values)))


def _conv(values: Tensor, filters: int, size: int, strides: int = 1) -> Tensor:
    # These networks have no normalisation: Keras's default start would let their signal fade.
    convolution = layers.Conv2D(
        filters, size, strides, padding="same", activation="relu", kernel_initializer="he_normal"
    )
    return convolution(values)


def _channel_axis() -> int:
    return -1 if keras.config.image_data_format() == "channels_last" else 1


APPLICATIONS: dict[str, Callable[..., Any]] = {
    "vgg16": applications.VGG16,
    "resnet50": applications.ResNet50,
    "resnet152": applications.ResNet152,
    "inception3": applications.InceptionV3,
}

OWN: dict[str, Callable[[Tensor], Tensor]] = {
    "alexnet": _alexnet,
    "googlenet": _googlenet,
    "tiny": _tiny,
}


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
        model = build_network(job.network, job.seed)
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


IDLE = {
    *("Const", "Identity", "IdentityN", "NoOp", "Placeholder", "ReadVariableOp", "Reshape", "Shape"),
    *("StridedSlice", "Pack", "Squeeze", "ExpandDims", "StopGradient", "VarIsInitializedOp"),
}
"""Operators that compute nothing and move nothing; what a variable holds is counted where it is used."""

WIDTH = 32
"""Width of the images of which a convolution by 1x1 is a product of matrices."""

DTYPES = {"fp32": tf.float32, "tf32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}

Graph = Any  # TensorFlow ships no types
Operation = Any


def count_work(graph: Graph, items: int) -> Work:
    """Return the work of an item of a step's graph, whose shapes are all known.

    Bytes: each tensor that an operator makes written once and read once, and each variable read once.
    """
    flop, moved, uncounted = 0, 0, set()
    for operation in graph.get_operations():
        if operation.type == "ReadVariableOp":
            moved += _bytes(operation.outputs[0])
        if operation.type in IDLE:
            continue
        moved += 2 * sum(map(_bytes, operation.outputs))
        if operation.type in COUNTERS:
            flop += COUNTERS[operation.type](operation)
        else:
            uncounted.add(operation.type)
    return Work(flop=flop / items, bytes=moved / items, uncounted=tuple(sorted(uncounted)))


def _conv_flop(values: Tensor, weights: Tensor) -> int:
    # Weights are (height, width, inputs, outputs): each output value takes one product for each of its
    # weights.
    return 2 * _count(values) * _count(weights) // int(weights.shape[-1])


def _depthwise_flop(values: Tensor, weights: Tensor) -> int:
    return 2 * _count(values) * int(weights.shape[0]) * int(weights.shape[1])


def _matmul_flop(operation: Operation) -> int:
    is_transposed = operation.get_attr("transpose_a")
    return 2 * _count(operation.outputs[0]) * int(operation.inputs[0].shape[0 if is_transposed else 1])


COUNTERS: Mapping[str, Callable[[Operation], int]] = {
    "Conv2D": lambda operation: _conv_flop(operation.outputs[0], operation.inputs[1]),
    "Conv2DBackpropInput": lambda operation: _conv_flop(operation.inputs[2], operation.inputs[1]),
    "Conv2DBackpropFilter": lambda operation: _conv_flop(operation.inputs[2], operation.outputs[0]),
    "DepthwiseConv2dNative": lambda operation: _depthwise_flop(operation.outputs[0], operation.inputs[1]),
    "DepthwiseConv2dNativeBackpropInput": lambda operation: _depthwise_flop(
        operation.inputs[2], operation.inputs[1]
    ),
    "DepthwiseConv2dNativeBackpropFilter": lambda operation: _depthwise_flop(
        operation.inputs[2], operation.outputs[0]
    ),
    "MatMul": _matmul_flop,
}
"""Operations of the operators that multiply and add; as in the other programs, all others count as none."""


def _count(tensor: Tensor) -> int:
    return int(tensor.shape.num_elements())


def _bytes(tensor: Tensor) -> int:
    values = tensor.shape.num_elements()
    return 0 if values is None else int(values) * int(tensor.dtype.size)


def measure_peak(dtype: str, seconds: float) -> Peak:
    """Return the peak in a data type (a key of DTYPES), in about twice `seconds`, as the process is set up.

    The better of a product of matrices and of a convolution by 1x1, which other kernels compute.
    """
    rates = [
        best_product(partial(form, dtype=DTYPES[dtype]), seconds / 2) for form in (_product, _convolution)
    ]
    return Peak(dtype=dtype, flop_per_s=max(rates), bytes_per_s=_measure_bandwidth(seconds / 2))


def _product(size: int, dtype: Any) -> Callable[[], object]:  # noqa: ANN401 - TensorFlow's own
    left, right = (tf.cast(tf.random.uniform((size, size), -1, 1), dtype) for _ in range(2))
    return _run(lambda: tf.matmul(left, right))


def _convolution(size: int, dtype: Any) -> Callable[[], object]:  # noqa: ANN401 - TensorFlow's own
    images = tf.cast(tf.random.uniform((1, size // WIDTH, WIDTH, size), -1, 1), dtype)
    weights = tf.cast(tf.random.uniform((1, 1, size, size), -1, 1), dtype)
    return _run(lambda: tf.nn.conv2d(images, weights, 1, "VALID"))


def _run(compute: Callable[[], Any]) -> Callable[[], object]:
    # The smallest part of the result comes back, so that a GPU has ended.
    step = tf.function(lambda: tf.reshape(compute(), [-1])[0])
    return lambda: float(step())


def _measure_bandwidth(seconds: float) -> float:
    """Return the bytes a second of `a -= 3 b`, in place: two arrays read, one written."""
    values = tf.Variable(tf.ones([array_values()]))
    steps = tf.ones([array_values()])

    @tf.function  # type: ignore[untyped-decorator]
    def run() -> Graph:
        tf.raw_ops.ResourceApplyGradientDescent(var=values.handle, alpha=3e-9, delta=steps)
        return values[0]

    return best_rate(lambda: float(run()), 3 * ELEMENT_BYTES["fp32"] * array_values(), seconds)


WORKING = ("convolution", "matmul", "inner_product", "gemm_api")
"""The primitives that do the arithmetic, as oneDNN names them; the last is the product that Eigen uses."""

TYPES = re.compile(r"(?:src|wei|dst|diff_src|diff_wei|diff_dst)[_:](bf16|f16|f32|s8|u8)")

SHOWN = 4


def prove(**arguments: Any) -> UntimedWorkload:  # noqa: ANN401 - those of train
    """Train one step and return which kernels ran; takes the arguments of training.train."""
    training = train(**arguments)
    facts = _gpu_facts(training) if arguments.get("device") == "gpu" else _cpu_facts(training)
    return UntimedWorkload(facts={**facts, "openmp_runtime": openmp_runtime()})


def onednn_facts(lines: Iterable[str]) -> dict[str, Any]:
    """Return facts from oneDNN's log.

    `onednn_isa` is the newest instruction set it may use, `onednn_threads` its thread pool; `computed_in`
    counts the working primitives by the narrowest type of their operands, `kernels` by primitive, type and
    implementation, the commonest first.
    """
    isa = threads = None
    kernels = Counter[tuple[str, str, str]]()
    for line in lines:
        fields = line.strip().split(",")
        if not fields[0].startswith("onednn_verbose"):
            continue
        if "info" in fields and "cpu" in fields:
            isa = next((field[4:] for field in fields if field.startswith("isa:")), isa)
            threads = next((field[8:] for field in fields if field.startswith("runtime:")), threads)
        if "exec" in fields:
            at = fields.index("exec")
            kind, implementation = fields[at + 2 : at + 4]
            kernels[kind, _narrowest(line), implementation] += 1
    working = Counter({key: count for key, count in kernels.items() if key[0] in WORKING})
    types = Counter(narrow for (_, narrow, _), count in working.items() for _ in range(count))
    return {
        "onednn_isa": isa,
        "onednn_threads": threads,
        "onednn_primitives": kernels.total(),
        "computed_in": ", ".join(f"{count} {name}" for name, count in types.most_common())
        or "none of oneDNN's kernels",
        "kernels": ", ".join(f"{count} {' '.join(key)}" for key, count in working.most_common(SHOWN)),
    }


def kernel_facts(names: Iterable[str]) -> dict[str, Any]:
    counted = Counter(names)
    on_tensor_cores = Counter({name: count for name, count in counted.items() if uses_tensor_cores(name)})
    shown = ", ".join(f"{count} {name[:80]}" for name, count in on_tensor_cores.most_common(SHOWN))
    return {
        "gpu_kernels": counted.total(),
        "tensor_core_kernels": on_tensor_cores.total(),
        "kernels": shown,
    }


def _narrowest(line: str) -> str:
    types = set(TYPES.findall(line))
    return next((name for name in ("u8", "s8", "bf16", "f16") if name in types), "f32")


def _cpu_facts(training: Training) -> dict[str, Any]:
    with capture_output() as log:
        training.step()
    return onednn_facts(log)


def _gpu_facts(training: Training) -> dict[str, Any]:
    # The first step compiles and tries algorithms, whose kernels prove nothing.
    training.step()
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        training.step()
        tf.profiler.experimental.stop()
        return kernel_facts(name for path in Path(folder).rglob("*.xplane.pb") for name in _gpu_events(path))


def _gpu_events(path: Path) -> Iterable[str]:
    from tensorflow.tsl.profiler.protobuf import (  # noqa: PLC0415 - GPUs only
        xplane_pb2,
    )

    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    for plane in space.planes:
        if plane.name.startswith("/device:GPU"):
            for line in plane.lines:
                # One line a CUDA stream holds the kernels; others repeat them by operation.
                if line.name.startswith("Stream"):
                    yield from (plane.event_metadata[event.metadata_id].name for event in line.events)
