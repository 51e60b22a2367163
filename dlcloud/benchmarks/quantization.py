"""Measure what int8 is worth: the same network in fp32 and quantized, on the same engine, side by side."""

import argparse
import importlib.util
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import catalog, hardware, program
from .arm import WorkerArm
from .harness import Case, Limits
from .process import ArmFailedError
from .records import Failure, Recorder

ENTRY = catalog.BENCHMARKS["quantization"]
FACTORY = "quantization_onnxruntime"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit status."""
    arguments = parse(argv)
    if importlib.util.find_spec("onnxruntime") is None:
        sys.stderr.write(f"onnxruntime is not installed: pip install -r {ENTRY.requirements_path}\n")
        return program.FAILED
    limits = Limits(
        width=arguments.width,
        max_s=arguments.max_seconds,
        rounds=arguments.rounds,
        slice_s=arguments.slice_seconds,
        warm_up_s=arguments.warm_up_seconds,
    )
    packages = ("onnxruntime", "onnx", "numpy")
    return program.run(
        ENTRY.name,
        arguments,
        limits=limits,
        packages=packages,
        cases=lambda recorder: _cases(arguments, recorder),
    )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments; a faulty one ends the program with status 2, as argparse does."""
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.quantization", description=ENTRY.summary)
    networks = ("vgg16", "resnet50", "tiny")
    parser.add_argument(
        "--network", nargs="+", choices=networks, default=["vgg16"], help="what to run (default: vgg16)"
    )
    parser.add_argument(
        "--batch", nargs="+", type=program.positive, default=[1, 8], metavar="N",
        help="images a step; latency is measured at 1 (default: 1 8)",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=program.positive, default=None, metavar="N",
        help="threads of the engine (default: one per physical core)",
    )  # fmt: skip
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
    arguments.threads = arguments.threads or hardware.physical_cores()
    arguments.cache = arguments.cache.expanduser()
    return arguments


def _cases(arguments: argparse.Namespace, recorder: Recorder) -> list[Case]:
    """Build the models and make a case of each network and batch; what cannot be built is recorded."""
    cases: list[Case] = []
    networks, batches = dict.fromkeys(arguments.network), dict.fromkeys(arguments.batch)
    total = len(networks) * len(batches)
    for network in networks:
        recorder.progress(f"{network}: building the models that are not cached", done=0, total=total)
        try:
            models = _build(network, arguments)
        except ArmFailedError as error:
            recorder.failure(Failure(case=network, setting=None, message=str(error)))
            continue
        cases.extend(_case(network, batch, models, arguments) for batch in batches)
    return cases


def _build(network: str, arguments: argparse.Namespace) -> dict[str, str]:
    """Build both models, each in a process that gives its memory back, and return their paths."""
    shared = {"network": network, "seed": arguments.seed, "cache": str(arguments.cache)}
    calibration = {"calibration_images": arguments.calibration_images}
    paths = {}
    for setting, extra in (("fp32", {}), ("int8", calibration)):
        arm = WorkerArm(
            name=setting,
            unit="",
            factory=f"{FACTORY}:build_{setting}",
            arguments={**shared, **extra},
            environment=program.environment(),
        )
        try:
            paths[setting] = arm.start()["model"]
        finally:
            arm.close()
    return paths


def _case(network: str, batch: int, models: Mapping[str, str], arguments: argparse.Namespace) -> Case:
    shared = {"network": network, "batch": batch, "threads": arguments.threads, "seed": arguments.seed}
    sizes = {setting: Path(path).stat().st_size for setting, path in models.items()}
    arms = [
        WorkerArm(
            name=setting,
            unit="images/s",
            factory=f"{FACTORY}:infer",
            arguments={**shared, "model": path},
            environment=program.environment({"OMP_NUM_THREADS": str(arguments.threads)}),
            latencies=batch == 1,
        )
        for setting, path in models.items()
    ]
    shrinkage = {"times_smaller": round(sizes["fp32"] / sizes["int8"], 4)}
    return Case(
        name=f"{network} batch {batch}",
        arms=arms,
        compare=lambda ours, theirs: {**agreement(ours, theirs), **shrinkage},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cosines:
    mean: float
    worst: float


def agreement(reference: list[list[float]], other: list[list[float]]) -> dict[str, Any]:
    """Return how alike two settings' logits are, over images.

    `cosine_similarity` compares them as they are. `cosine_similarity_centred` takes away each setting's mean
    over the images first: random weights answer nearly the same to every image, and what counts is how the
    answers differ. Each is the mean over the images, with the worst image beside it.
    """
    plain = _cosines(reference, other)
    centred = _cosines(_centred(reference), _centred(other))
    return {
        "cosine_similarity": round(plain.mean, 6),
        "cosine_similarity_worst": round(plain.worst, 6),
        "cosine_similarity_centred": round(centred.mean, 6),
        "cosine_similarity_centred_worst": round(centred.worst, 6),
    }


def _cosines(reference: list[list[float]], other: list[list[float]]) -> _Cosines:
    values = [_cosine(ours, theirs) for ours, theirs in zip(reference, other, strict=True)]
    return _Cosines(mean=math.fsum(values) / len(values), worst=min(values))


def _cosine(ours: list[float], theirs: list[float]) -> float:
    product = math.sumprod(ours, theirs) if hasattr(math, "sumprod") else _sum_of_products(ours, theirs)
    return product / (math.hypot(*ours) * math.hypot(*theirs) or 1.0)


def _sum_of_products(ours: list[float], theirs: list[float]) -> float:
    return math.fsum(one * other for one, other in zip(ours, theirs, strict=True))


def _centred(rows: list[list[float]]) -> list[list[float]]:
    means = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    return [[value - mean for value, mean in zip(row, means, strict=True)] for row in rows]


if __name__ == "__main__":
    sys.exit(main())
