"""Make settings ready: what precisions run here, the interpreter, the model, and the proof of its kernels."""

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..harness import environment, hardware, program
from ..harness.process import VariantError
from ..harness.records import Recorder, Skip
from ..harness.variant import WorkerVariant
from .arguments import ENTRY
from .engines import Engine, Isa, Precision
from .formats import format_described, title_of

CREATED = "profile_create"
"""Has oneDNN tell what it makes, but not each run: OpenVINO 2026.4 then fails at times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
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


def settings_of(
    network: str, engine: Engine, isa: Isa, arguments: argparse.Namespace, recorder: Recorder
) -> list[Setting]:
    """Build an engine's models in every precision that it can run in here.

    Raises:
        VariantError: One cannot be built.
    """
    if (own := format_described(network)) is not None and own not in engine.reads:
        reason = f"{engine.name} does not read {own.value} files here"
        recorder.skip(Skip(case=title_of(network), setting=engine.name, reason=reason))
        return []
    if network in engine.unable:
        recorder.skip(Skip(case=network, setting=engine.name, reason=f"{engine.name} has no form of it"))
        return []
    if arguments.precision is not None:
        engine = _asked_for(engine, arguments.precision)
    if arguments.device == "cuda":
        precisions = possible_on_gpu(network, engine, recorder, hardware.gpus())
    else:
        precisions = possible(network, engine, isa, recorder, hardware.cpu_flags())
    if not precisions:
        return []
    python = _interpreter(engine, recorder)
    return [_setting(network, engine, precision, isa, arguments, python) for precision in precisions]


def _asked_for(engine: Engine, wanted: Collection[str]) -> Engine:
    """Return the engine as one that knows its baseline and the wanted precisions only."""

    def kept(known: tuple[Precision, ...]) -> tuple[Precision, ...]:
        return (*known[:1], *(each for each in known[1:] if each.value in wanted))

    return replace(engine, precisions=kept(engine.precisions), gpu_precisions=kept(engine.gpu_precisions))


def _interpreter(engine: Engine, recorder: Recorder) -> str:
    """Return the Python that runs an engine's workers, its environment built where it has one of its own.

    Raises:
        VariantError: It cannot be built, or a program is missing.
    """
    if (absent := engine.absent()) is not None:
        raise VariantError(absent)
    if not engine.own:
        return sys.executable
    requirements = ENTRY.requirements_path.with_name(engine.own)
    tell = partial(recorder.progress, done=0, total=1)
    return environment.build_environment(requirements, version=engine.own_python, tell=tell)


def possible(
    network: str, engine: Engine, isa: Isa, recorder: Recorder, flags: Collection[str]
) -> list[Precision]:
    """Return what the processor can compute in, and record what it cannot."""
    reasons = {precision: engine.lacking(precision, isa, flags) for precision in engine.precisions}
    for precision, reason in reasons.items():
        if reason is not None:
            setting = f"{engine.name} {precision.value}"
            recorder.skip(Skip(case=title_of(network), setting=setting, reason=reason))
    return [precision for precision, reason in reasons.items() if reason is None]


def possible_on_gpu(
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
) -> Setting:
    """Make sure that a model is in the cache, and see what it is computed by."""
    shared = {"network": network, "seed": arguments.seed}
    quantized = precision is Precision.INT8
    # On a GPU weights are quantized as they are loaded, and activations as they come.
    quantized = quantized and arguments.device == "cpu"
    calibration = {"calibration_images": arguments.calibration_images} if quantized else {}
    # The training's products are too small to share among threads, and alone it sums in one order.
    variables = {**engine.environment_for(isa), "OPENBLAS_NUM_THREADS": "1"}
    facts = asked(
        engine.build_factory(precision if quantized else Precision.FP32),
        {**shared, **calibration, "cache": str(arguments.cache)},
        variables,
    )
    if engine.own:
        made = {"source": facts["model"], "threads": arguments.threads}
        built = asked(f"{engine.module}:build_{precision.value}", made, variables, python)
        facts = {**facts, **built}
    proof: Mapping[str, Any] = {}
    if engine.proves:
        proof = asked(
            f"{engine.module}:prove",
            {**shared, "model": facts["model"], "precision": precision.value, "threads": arguments.threads},
            {**variables, "ONEDNN_VERBOSE": CREATED},
        )
    return Setting(
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


def asked(
    factory: str, arguments: Mapping[str, Any], variables: Mapping[str, str], python: str = sys.executable
) -> Mapping[str, Any]:
    """Return the facts of what a factory makes, in a process that gives its memory back."""
    variant = WorkerVariant(
        name=factory,
        unit="",
        factory=factory,
        arguments=arguments,
        environment=program.environment(dict(variables)),
        python=python,
    )
    try:
        return variant.start()
    finally:
        variant.close()
