"""Measure what int8 is worth: the same network in fp32 and quantized, on the same engine, side by side."""

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from .. import catalog
from ..harness import hardware, program
from ..harness.arm import WorkerArm
from ..harness.process import ArmFailedError
from ..harness.protocol import Case, Limits
from ..harness.records import Failure, Recorder, Skip
from .agreement import accuracy, agreement
from .engines import DEFAULT, ENGINES, Engine, Precision

ENTRY = catalog.BENCHMARKS["quantization"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit status."""
    arguments = parse(argv)
    engines = [ENGINES[name] for name in arguments.engine]
    for missing in filter(None, (engine.missing() for engine in engines)):
        asked = ["--engine", *arguments.engine, "--network", *arguments.network]
        requirements = ENTRY.requirements_for(asked)
        sys.stderr.write(f"{missing} is not installed: pip install -r {requirements}\n")
        return program.FAILED
    limits = Limits(
        width=arguments.width,
        max_s=arguments.max_seconds,
        rounds=arguments.rounds,
        slice_s=arguments.slice_seconds,
        warm_up_s=arguments.warm_up_seconds,
    )
    return program.run(
        ENTRY.name,
        arguments,
        limits=limits,
        packages=dict.fromkeys(package for engine in engines for package in engine.packages),
        cases=lambda recorder: _cases(arguments, recorder),
    )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments; a faulty one ends the program with status 2, as argparse does."""
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.quantization", description=ENTRY.summary)
    networks = ("vgg16", "resnet50", "tiny", "digits")
    parser.add_argument(
        "--network", nargs="+", choices=networks, default=["vgg16"], help="what to run (default: vgg16)"
    )
    parser.add_argument(
        "--engine", nargs="+", choices=tuple(ENGINES), default=[DEFAULT],
        help=f"what to run them on (default: {DEFAULT})",
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
    arguments.engine = list(dict.fromkeys(arguments.engine))
    arguments.threads = arguments.threads or hardware.physical_cores()
    arguments.cache = arguments.cache.expanduser()
    return arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    path: str
    size_bytes: int
    labels: list[int] | None


def _cases(arguments: argparse.Namespace, recorder: Recorder) -> list[Case]:
    """Build the models and make a case of each network, engine and batch; record what cannot be built."""
    cases: list[Case] = []
    networks, batches = dict.fromkeys(arguments.network), dict.fromkeys(arguments.batch)
    engines = [ENGINES[name] for name in arguments.engine]
    total = len(networks) * len(engines) * len(batches)
    for network, engine in product(networks, engines):
        recorder.progress(f"{network}: building the models that are not cached", done=0, total=total)
        precisions = _possible(network, engine, recorder, hardware.cpu_flags())
        try:
            models = {precision: _build(network, engine, precision, arguments) for precision in precisions}
        except ArmFailedError as error:
            recorder.failure(Failure(case=f"{network} {engine.name}", setting=None, message=str(error)))
            continue
        cases.extend(_case(network, engine, batch, models, arguments) for batch in batches)
    return cases


def _possible(network: str, engine: Engine, recorder: Recorder, flags: Collection[str]) -> list[Precision]:
    """Return what the processor can compute in, and record what it cannot."""
    reasons = {precision: precision.lacking(flags) for precision in engine.precisions}
    for precision, reason in reasons.items():
        if reason is not None:
            recorder.skip(Skip(case=network, setting=f"{engine.name} {precision.value}", reason=reason))
    return [precision for precision, reason in reasons.items() if reason is None]


def _build(network: str, engine: Engine, precision: Precision, arguments: argparse.Namespace) -> _Model:
    """Make sure that a model is in the cache, in a process that gives its memory back."""
    shared = {"network": network, "seed": arguments.seed, "cache": str(arguments.cache)}
    quantized = precision is Precision.INT8
    calibration = {"calibration_images": arguments.calibration_images} if quantized else {}
    arm = WorkerArm(
        name=precision.value,
        unit="",
        factory=engine.build_factory(precision),
        arguments={**shared, **calibration},
        # The training's products are too small to share among threads, and alone it sums in one order.
        environment=program.environment({**engine.environment, "OPENBLAS_NUM_THREADS": "1"}),
    )
    try:
        facts = arm.start()
    finally:
        arm.close()
    return _Model(path=facts["model"], size_bytes=facts["model_bytes"], labels=facts["labels"])


def _case(
    network: str,
    engine: Engine,
    batch: int,
    models: Mapping[Precision, _Model],
    arguments: argparse.Namespace,
) -> Case:
    """Make a case of one engine, whose fp32 is the baseline of its other settings."""
    threads = {"OMP_NUM_THREADS": str(arguments.threads)}
    shared = {"network": network, "batch": batch, "threads": arguments.threads, "seed": arguments.seed}
    prefix = "" if arguments.engine == [DEFAULT] else f"{engine.name} "
    fp32_bytes = models[Precision.FP32].size_bytes
    arms = [
        WorkerArm(
            name=prefix + precision.value,
            unit="images/s",
            factory=engine.infer_factory(precision),
            arguments={**shared, "model": model.path},
            environment=program.environment({**engine.environment, **threads}),
            latencies=batch == 1,
            known={"times_smaller": round(fp32_bytes / model.size_bytes, 4)}
            if precision is not Precision.FP32
            else {},
        )
        for precision, model in models.items()
    ]
    labels = models[Precision.FP32].labels
    compare = agreement if labels is None else partial(accuracy, labels)
    return Case(name=f"{network} batch {batch}", arms=arms, compare=compare)
