"""Measure what int8 is worth: the same network in fp32 and quantized, on the same engine, side by side."""

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from .. import catalog
from ..harness import environment, hardware, program
from ..harness.arm import WorkerArm
from ..harness.process import ArmFailedError
from ..harness.protocol import Case, Limits
from ..harness.records import Failure, Recorder, Skip
from .agreement import accuracy, agreement
from .engines import DEFAULT, ENGINES, Engine, Isa, Precision
from .formats import absent, fault_of, format_described, format_of, only_batch, title_of

ENTRY = catalog.BENCHMARKS["quantization"]

CREATED = "profile_create"
"""Has oneDNN tell what it makes, but not each run: OpenVINO 2026.4 then fails at times."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit status."""
    arguments = parse(argv)
    faults = [fault_of(arguments.model)] if arguments.model else []
    faults += [absent(arguments.data)] if arguments.data else []
    for fault in filter(None, faults):
        sys.stderr.write(f"{fault}\n")
        return program.FAILED
    engines = [ENGINES[name] for name in arguments.engine]
    for missing in filter(None, (engine.missing() for engine in engines)):
        asked = ["--engine", *arguments.engine, "--network", *arguments.network]
        asked += ["--model", str(arguments.model)] if arguments.model else []
        requirements = ENTRY.requirements_for(asked)
        sys.stderr.write(f"{missing} is not installed: pip install -r {requirements}\n")
        return program.FAILED
    limits = program.limits_of(arguments)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """An engine in a precision, with the model that it runs and what is known of it ahead."""

    network: str
    engine: Engine
    precision: Precision
    isa: Isa
    model: str
    size_bytes: int
    labels: list[int] | None
    proof: Mapping[str, Any]
    python: str


def _cases(arguments: argparse.Namespace, recorder: Recorder) -> list[Case]:
    """Build the models and make a case of each network and batch; record what cannot be built."""
    cases: list[Case] = []
    networks, batches = list(dict.fromkeys(arguments.network)), list(dict.fromkeys(arguments.batch))
    sets = [Isa(name) for name in dict.fromkeys(arguments.isa)]
    total = (len(networks) + bool(arguments.model)) * len(sets) * len(batches)
    if arguments.model is not None:
        networks.append(_description(arguments))
    for network, isa in product(networks, sets):
        what = f"{title_of(network)}: building the models that are not cached"
        recorder.progress(what, done=0, total=total)
        settings: list[_Setting] = []
        for engine in (ENGINES[name] for name in arguments.engine):
            try:
                settings += _settings(network, engine, isa, arguments, recorder)
            except ArmFailedError as error:
                case = f"{title_of(network)} {engine.name}"
                recorder.failure(Failure(case=case, setting=None, message=str(error)))
        if settings:
            taken = _taken(network, batches, recorder)
            cases.extend(_case(network, batch, settings, arguments) for batch in taken)
    return cases


def _description(arguments: argparse.Namespace) -> str:
    """Return the path of the file that describes the user's model.

    Raises:
        ArmFailedError: The model or its data cannot be used.
    """
    arguments.cache.mkdir(parents=True, exist_ok=True)
    asked = {
        "file": str(arguments.model),
        "data": str(arguments.data) if arguments.data else None,
        "shape": arguments.input_shape,
        "cache": str(arguments.cache),
    }
    description: str = _asked("quantization.user_model:describe", asked, {})["description"]
    return description


def _taken(network: str, batches: Sequence[int], recorder: Recorder) -> list[int]:
    """Return the batches that a network takes, and record those that it does not."""
    only = only_batch(network)
    for batch in batches:
        if only not in {None, batch}:
            reason = f"the model takes batches of {only} only"
            recorder.skip(Skip(case=title_of(network), setting=f"batch {batch}", reason=reason))
    return [batch for batch in batches if only in {None, batch}]


def _settings(
    network: str, engine: Engine, isa: Isa, arguments: argparse.Namespace, recorder: Recorder
) -> list[_Setting]:
    """Build an engine's models in every precision that it can run in here.

    Raises:
        ArmFailedError: One cannot be built.
    """
    if (own := format_described(network)) is not None and own not in engine.reads:
        reason = f"{engine.name} does not read {own.value} files here"
        recorder.skip(Skip(case=title_of(network), setting=engine.name, reason=reason))
        return []
    if network in engine.unable:
        recorder.skip(Skip(case=network, setting=engine.name, reason=f"{engine.name} has no form of it"))
        return []
    if arguments.device == "cuda":
        precisions = _possible_on_gpu(network, engine, recorder, hardware.gpus())
    else:
        precisions = _possible(network, engine, isa, recorder, hardware.cpu_flags())
    if not precisions:
        return []
    python = _interpreter(engine, recorder)
    return [_setting(network, engine, precision, isa, arguments, python) for precision in precisions]


def _interpreter(engine: Engine, recorder: Recorder) -> str:
    """Return the Python that runs an engine's workers, its environment built where it has one of its own.

    Raises:
        ArmFailedError: It cannot be built, or a program is missing.
    """
    if (absent := engine.absent()) is not None:
        raise ArmFailedError(absent)
    if not engine.own:
        return sys.executable
    requirements = ENTRY.requirements_path.with_name(engine.own)
    tell = partial(recorder.progress, done=0, total=1)
    return environment.python_of(requirements, version=engine.own_python, tell=tell)


def _possible(
    network: str, engine: Engine, isa: Isa, recorder: Recorder, flags: Collection[str]
) -> list[Precision]:
    """Return what the processor can compute in, and record what it cannot."""
    reasons = {precision: engine.lacking(precision, isa, flags) for precision in engine.precisions}
    for precision, reason in reasons.items():
        if reason is not None:
            setting = f"{engine.name} {precision.value}"
            recorder.skip(Skip(case=title_of(network), setting=setting, reason=reason))
    return [precision for precision, reason in reasons.items() if reason is None]


def _possible_on_gpu(
    network: str, engine: Engine, recorder: Recorder, gpus: Sequence[Mapping[str, Any]]
) -> list[Precision]:
    """Return what the engine computes in on a GPU; record where there is none, or it knows none."""
    reason = None if gpus else "this machine has no NVIDIA GPU"
    if not engine.gpu_precisions:
        reason = f"{engine.name} runs on CPUs only here"
    if reason is None:
        return list(engine.gpu_precisions)
    recorder.skip(Skip(case=title_of(network), setting=engine.name, reason=reason))
    return []


def _setting(  # noqa: PLR0917 - what _settings passes on
    network: str,
    engine: Engine,
    precision: Precision,
    isa: Isa,
    arguments: argparse.Namespace,
    python: str,
) -> _Setting:
    """Make sure that a model is in the cache, and see what it is computed by."""
    shared = {"network": network, "seed": arguments.seed}
    quantized = precision is Precision.INT8
    # On a GPU weights are quantized as they are loaded, and activations as they come.
    quantized = quantized and arguments.device == "cpu"
    calibration = {"calibration_images": arguments.calibration_images} if quantized else {}
    # The training's products are too small to share among threads, and alone it sums in one order.
    variables = {**engine.environment_for(isa), "OPENBLAS_NUM_THREADS": "1"}
    facts = _asked(
        engine.build_factory(precision if quantized else Precision.FP32),
        {**shared, **calibration, "cache": str(arguments.cache)},
        variables,
    )
    if engine.own:
        made = {"source": facts["model"], "threads": arguments.threads}
        built = _asked(f"{engine.module}:build_{precision.value}", made, variables, python)
        facts = {**facts, **built}
    proof: Mapping[str, Any] = {}
    if engine.proves:
        proof = _asked(
            f"{engine.module}:prove",
            {**shared, "model": facts["model"], "precision": precision.value, "threads": arguments.threads},
            {**variables, "ONEDNN_VERBOSE": CREATED},
        )
    return _Setting(
        network=network,
        engine=engine,
        precision=precision,
        isa=isa,
        model=facts["model"],
        size_bytes=facts["model_bytes"],
        labels=facts["labels"],
        proof=proof,
        python=python,
    )


def _asked(
    factory: str, arguments: Mapping[str, Any], variables: Mapping[str, str], python: str = sys.executable
) -> Mapping[str, Any]:
    """Return the facts of what a factory makes, in a process that gives its memory back."""
    arm = WorkerArm(
        name=factory,
        unit="",
        factory=factory,
        arguments=arguments,
        environment=program.environment(dict(variables)),
        python=python,
    )
    try:
        return arm.start()
    finally:
        arm.close()


def _case(network: str, batch: int, settings: Sequence[_Setting], arguments: argparse.Namespace) -> Case:
    """Make a case of all engines, each with a baseline of its own."""
    names = {_name(setting, arguments): setting for setting in settings}
    first = {setting.engine.name: name for name, setting in reversed(names.items())}
    isa = settings[0].isa
    labels = settings[0].labels
    return Case(
        name=" ".join([f"{title_of(network)} batch {batch}", *([] if isa is Isa.NATIVE else [isa.value])]),
        arms=[
            _arm(name, setting, names[first[setting.engine.name]], batch=batch, arguments=arguments)
            for name, setting in names.items()
        ],
        compare=agreement if labels is None else partial(accuracy, labels),
        baselines={name: first[setting.engine.name] for name, setting in names.items()},
        contenders=[name for name, setting in names.items() if setting.precision.whole],
    )


def _name(setting: _Setting, arguments: argparse.Namespace) -> str:
    """Name the engine only where it is not the default alone."""
    prefix = "" if arguments.engine == [DEFAULT] else f"{setting.engine.name} "
    return prefix + setting.precision.value


def _arm(
    name: str, setting: _Setting, baseline: _Setting, *, batch: int, arguments: argparse.Namespace
) -> WorkerArm:
    engine = setting.engine
    threads = {"OMP_NUM_THREADS": str(arguments.threads)}
    smaller = {"times_smaller": round(baseline.size_bytes / setting.size_bytes, 4)}
    on_gpu = arguments.device == "cuda"
    return WorkerArm(
        name=name,
        unit="images/s",
        factory=engine.infer_factory(setting.precision),
        arguments={
            "network": setting.network,
            "batch": batch,
            "threads": arguments.threads,
            "seed": arguments.seed,
            "model": setting.model,
            **({"device": arguments.device} if engine.gpu_precisions else {}),
        },
        environment=program.environment({**engine.environment_for(setting.isa), **threads}),
        latencies=batch == 1,
        python=setting.python,
        known={
            **setting.proof,
            **({} if on_gpu else {"isa_cap": setting.isa.value}),
            **({} if setting is baseline or on_gpu else smaller),
        },
    )
