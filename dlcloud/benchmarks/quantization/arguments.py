"""The arguments of the quantization benchmark."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from .. import catalog
from ..harness import hardware, program
from ..harness.case import Limits
from .engines import DEFAULT, ENGINES, Isa, Precision
from .formats import format_of

ENTRY = catalog.BENCHMARKS["quantization"]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments; a faulty one ends the program with status 2, as argparse does."""
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.quantization", description=ENTRY.summary)
    networks = ("vgg16", "vgg19", "resnet50", "ssd300", "tiny", "digits")
    parser.add_argument(
        "--network", nargs="+", choices=networks, default=None,
        help="what to run (default: vgg16, or the --model alone)",
    )  # fmt: skip
    parser.add_argument(
        "--model", type=_model_path, default=None, metavar="FILE",
        help="a model of your own, of one input: .onnx, .pt2, .keras, or the folder of a SavedModel",
    )  # fmt: skip
    parser.add_argument(
        "--input-shape", type=_shape, default=None, metavar="N,N,..",
        help="of the model's input without the batch, where the model leaves it open",
    )  # fmt: skip
    parser.add_argument(
        "--data", type=Path, default=None, metavar="FILE",
        help="what the model is calibrated (first half) and judged by (second half): .npz with inputs and "
        "perhaps labels, .npy, or a folder of .npy (default: synthetic images)",
    )  # fmt: skip
    parser.add_argument(
        "--engine", nargs="+", choices=tuple(ENGINES), default=[DEFAULT],
        help=f"what to run them on (default: {DEFAULT})",
    )  # fmt: skip
    parser.add_argument(
        "--precision", nargs="+", choices=[precision.value for precision in Precision], default=None,
        help="what to measure beside each engine's fp32 (default: all that it can be run in here)",
    )  # fmt: skip
    parser.add_argument(
        "--batch", nargs="+", type=program.positive, default=[1, 8], metavar="N",
        help="images a step; latency is measured at 1 (default: 1 8)",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=program.positive, default=None, metavar="N",
        help="threads of the engine (default: one per physical core)",
    )  # fmt: skip
    parser.add_argument(
        "--isa", nargs="+", choices=[isa.value for isa in Isa], default=[Isa.NATIVE.value],
        help="newest instructions an engine may use: avx512_core is Skylake's (c5), without VNNI "
        "(default: native, what the processor has)",
    )  # fmt: skip
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="what to run on (default: cpu)"
    )
    parser.add_argument(
        "--calibration-images", type=program.positive, default=16, metavar="N",
        help="synthetic images that the int8 scales are taken from (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--cache", type=Path, default=Path("~/.cache/dlcloud/models"), metavar="DIR",
        help="where built models are kept (default: %(default)s)",
    )  # fmt: skip
    program.add_arguments(parser, limits=Limits())
    program.add_round_arguments(parser, limits=Limits())
    arguments = parser.parse_args(argv)
    if arguments.model is None and (arguments.data or arguments.input_shape):
        parser.error("--data and --input-shape belong to a --model")
    arguments.network = arguments.network or ([] if arguments.model else ["vgg16"])
    arguments.engine = list(dict.fromkeys(arguments.engine))
    arguments.threads = arguments.threads or hardware.physical_cores()
    arguments.cache = arguments.cache.expanduser()
    return arguments


def _model_path(text: str) -> Path:
    """Read the path of a model; whether it is there is looked at where it is run."""
    try:
        format_of(Path(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Path(text)


def _shape(text: str) -> list[int]:
    """Read a shape, such as 224,224,3."""
    return [program.positive(size) for size in text.split(",")]
