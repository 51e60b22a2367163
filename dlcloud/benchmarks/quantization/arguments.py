"""The options of the quantization benchmark."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..harness import hardware
from ..harness.benchmark import (
    BF16_FLAGS,
    BF16_NAME,
    THREADS,
    TINY,
    Benchmark,
    HardwareNeed,
    Option,
    RequirementsChoice,
    positive,
)
from .engines import DEFAULT, ENGINES, InferencePrecision, Isa, detect_format


def _model_path(text: str) -> Path:
    """Read the path of a model, which is looked for only on the machine that runs it."""
    try:
        detect_format(Path(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Path(text)


def _shape(text: str) -> list[int]:
    """Read a shape, such as 224,224,3."""
    return [positive(size) for size in text.split(",")]


ENTRY = Benchmark(
    name="quantization",
    module="benchmarks.quantization",
    requirements="quantization.txt",
    summary="Compare fp32 with int8 inference of image networks on OpenVINO, ONNX Runtime and "
    "PyTorch: speed, latency, size, memory, and accuracy or agreement.",
    options=(
        Option(
            "network",
            "random weights, or digits: a small VGG trained on real images, judged by its accuracy",
            choices=("vgg16", "vgg19", "resnet50", "ssd300", "tiny", "digits"),
            default_help="vgg16, or the --model alone",
            many=True,
            selects=True,
        ),
        Option(
            "model",
            "your own model, of one input: .onnx, .pt2, .keras, or the folder of a SavedModel",
            type=_model_path,
            metavar="FILE",
            file=True,
        ),
        Option(
            "input-shape",
            "shape of the model's input without the batch, if the model leaves it open",
            type=_shape,
            metavar="N,N,..",
        ),
        Option(
            "data",
            "images to calibrate (first half) and judge (second half): .npz with inputs and "
            "perhaps labels, .npy, or a folder of .npy",
            type=Path,
            default_help="synthetic images",
            metavar="FILE",
            file=True,
        ),
        Option(
            "engine",
            "engines to run in turn; bigdl runs on Spark and needs Java and Python 3.11",
            choices=tuple(ENGINES),
            default=(DEFAULT,),
            many=True,
        ),
        Option("device", "cuda is used by pytorch only", choices=("cpu", "cuda"), default="cpu"),
        Option(
            "precision",
            "precisions to measure in addition to each engine's fp32",
            choices=tuple(precision.value for precision in InferencePrecision),
            default_help="all that it can run in on the machine",
            many=True,
            selects=True,
        ),
        Option(
            "batch",
            "images a step; latency is measured at 1",
            type=positive,
            default=(1, 8),
            many=True,
            selects=True,
        ),
        THREADS,
        Option(
            "isa",
            "newest instructions an engine may use: avx512_core is Skylake's (c5), without VNNI, native what "
            "the processor has",
            choices=tuple(isa.value for isa in Isa),
            default=(Isa.NATIVE.value,),
            many=True,
            selects=True,
        ),
        Option(
            "calibration-images",
            "synthetic images that the int8 scales are computed from",
            type=positive,
            default=16,
        ),
        Option(
            "cache",
            "folder of built models",
            type=Path,
            default=Path("~/.cache/dlcloud/models"),
            metavar="DIR",
        ),
    ),
    needs=(
        HardwareNeed(memory_gib=4),
        HardwareNeed(given=("device", "cuda"), gpu=True),
        # Source: PyPI, bigdl-core 2.4.0.dev0: wheels for x86_64 only.
        HardwareNeed(given=("engine", "bigdl"), architecture="x86_64"),
        HardwareNeed(setting="bf16", flags=BF16_FLAGS, flags_name=BF16_NAME),
        HardwareNeed(
            setting="int8",
            flags=("avx512_vnni", "avx_vnni", "amx_int8"),
            flags_name="VNNI",
            advice="int8 gains about half as much there",
        ),
    ),
    sweep={"network": ["vgg16", "resnet50"], "engine": "openvino", "batch": ["1", "8"]},
    tiny={"network": "tiny", "engine": "onnxruntime", "batch": "1", **TINY},
    choices=(
        RequirementsChoice(parameter="engine", value="pytorch", requirements="quantization_pytorch.txt"),
        RequirementsChoice(parameter="model", value="*.pt2", requirements="quantization_pytorch.txt"),
        RequirementsChoice(parameter="model", value="*.keras", requirements="quantization_pytorch.txt"),
        RequirementsChoice(parameter="network", value="digits", requirements="quantization.txt"),
        *(
            # BigDL itself lies in its own environment; this one builds its models.
            RequirementsChoice(
                parameter="engine", value=engine, alone=True, requirements="quantization_onnxruntime.txt"
            )
            for engine in ("onnxruntime", "bigdl")
        ),
    ),
)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments; a faulty one ends the program with status 2, as argparse does."""
    parser = ENTRY.parser()
    arguments = parser.parse_args(argv)
    if arguments.model is None and (arguments.data or arguments.input_shape):
        parser.error("--data and --input-shape belong to a --model")
    arguments.network = arguments.network or ([] if arguments.model else ["vgg16"])
    arguments.engine = list(dict.fromkeys(arguments.engine))
    arguments.threads = arguments.threads or hardware.physical_cores()
    arguments.cache = arguments.cache.expanduser()
    return arguments
