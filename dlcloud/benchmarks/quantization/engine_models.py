"""Prepare an engine's models: which precisions run here, the interpreter, the files, the proof of kernels.

`cases.py` calls `build_engine_models` for each network and engine. Models are built in processes of their
own, two at the same time if there is memory for both, and a failure or an interruption ends the processes of
the others.
"""

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from ..harness import hardware, preparation, usage
from ..harness.case import VariantError
from ..harness.preparation import FactReader
from ..harness.records import Recorder
from .arguments import ENTRY
from .engines import (
    Engine,
    InferencePrecision,
    Isa,
    detect_format,
    is_user_model,
    read_description,
    read_title,
)

LOG_CREATION = "profile_create"
"""Makes oneDNN log the primitives that it creates, but not each run: OpenVINO 2026.4 then fails at times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """An engine in a precision, with the model that it runs and the facts known before it runs."""

    network: str
    engine: Engine
    precision: InferencePrecision
    isa: Isa
    model: str
    size_bytes: int
    labels: list[int] | None
    work: Mapping[str, Any]
    proof: Mapping[str, Any]
    python: str


def build_engine_models(
    network: str, engine: Engine, isa: Isa, arguments: argparse.Namespace, recorder: Recorder
) -> list[EngineModel]:
    """Build an engine's models in every precision that it can run in here; record the others as skipped.

    Raises:
        VariantError: A model cannot be built.
    """
    if (reason := _explain_unsupported_network(network, engine)) is not None:
        recorder.skip(read_title(network), engine.name, reason)
        return []
    if arguments.precision is not None:
        engine = restrict_precisions(engine, arguments.precision)
    if arguments.device == "cuda":
        precisions = select_gpu_precisions(network, engine, recorder, hardware.gpus())
    else:
        precisions = select_cpu_precisions(network, engine, isa, recorder, hardware.cpu_flags())
    if not precisions:
        return []
    builder = _Builder(
        network=network,
        engine=engine,
        isa=isa,
        arguments=arguments,
        python=_prepare_interpreter(engine, recorder),
        reader=FactReader(),
    )
    builds = [partial(builder.build, precision) for precision in precisions]
    return build_all(builds, count_at_once(network, usage.free_bytes()), builder.reader)


def _explain_unsupported_network(network: str, engine: Engine) -> str | None:
    if network in engine.unsupported_networks:
        return f"{engine.name} has no form of it"
    if (description := read_description(network)) is None:
        return None
    format_ = detect_format(Path(description["source"]))
    return None if format_ in engine.formats else f"{engine.name} does not read {format_.value} files here"


def restrict_precisions(engine: Engine, names: Collection[str]) -> Engine:
    """Return the engine with its baseline and the named precisions only."""

    def restrict(precisions: tuple[InferencePrecision, ...]) -> tuple[InferencePrecision, ...]:
        return (*precisions[:1], *(precision for precision in precisions[1:] if precision.value in names))

    return replace(
        engine, precisions=restrict(engine.precisions), gpu_precisions=restrict(engine.gpu_precisions)
    )


def _prepare_interpreter(engine: Engine, recorder: Recorder) -> str:
    """Return the Python that runs an engine's workers; an environment of its own is built if missing."""
    if (reason := engine.explain_missing_program()) is not None:
        raise VariantError(reason)
    if not engine.own_requirements:
        return sys.executable
    requirements = ENTRY.requirements_path.with_name(engine.own_requirements)
    report = partial(recorder.progress, done=0, total=1)
    return preparation.build_environment(requirements, version=engine.own_python, report=report)


def select_cpu_precisions(
    network: str, engine: Engine, isa: Isa, recorder: Recorder, flags: Collection[str]
) -> list[InferencePrecision]:
    """Return the precisions that the processor can compute in, and record the others as skipped."""
    precisions = []
    for precision in engine.precisions:
        reason = engine.explain_unsupported(precision, isa, flags)
        if reason is None:
            precisions.append(precision)
        else:
            setting = f"{engine.name} {precision.value}"
            recorder.skip(read_title(network), setting, reason)
    return precisions


def select_gpu_precisions(
    network: str, engine: Engine, recorder: Recorder, gpus: Sequence[Mapping[str, Any]]
) -> list[InferencePrecision]:
    """Return the precisions that the engine computes in on a GPU; without one, record it as skipped."""
    if engine.gpu_precisions and gpus:
        return list(engine.gpu_precisions)
    runs_on_gpus = bool(engine.gpu_precisions)
    reason = "this machine has no NVIDIA GPU" if runs_on_gpus else f"{engine.name} runs on CPUs only here"
    recorder.skip(read_title(network), engine.name, reason)
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Builder:
    """Builds the models of one network for one engine."""

    network: str
    engine: Engine
    isa: Isa
    arguments: argparse.Namespace
    python: str
    reader: FactReader
    # Of the files that precisions share, by what builds them.
    facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    locks: dict[str, Lock] = field(default_factory=lambda: defaultdict(Lock))

    def build(self, precision: InferencePrecision) -> EngineModel:
        """Make sure that the model is in the cache, and prove which kernels compute it."""
        facts = self._build_files(precision)
        return EngineModel(
            network=self.network,
            engine=self.engine,
            precision=precision,
            isa=self.isa,
            model=facts["model"],
            size_bytes=facts["model_bytes"],
            labels=facts["labels"],
            work=facts.get("work", {}),
            proof=self._prove(facts["model"], precision) if self.engine.has_proof else {},
            python=self.python,
        )

    @property
    def _variables(self) -> dict[str, str]:
        return self.engine.environment_for(self.isa)

    def _build_files(self, precision: InferencePrecision) -> Mapping[str, Any]:
        arguments = self.arguments
        # On a GPU weights are quantized as they are loaded, and activations as they come.
        quantized = precision is InferencePrecision.INT8 and arguments.device == "cpu"
        job = {"network": self.network, "seed": arguments.seed, "cache": str(arguments.cache)}
        calibration = {"calibration_images": arguments.calibration_images} if quantized else {}
        factory = self.engine.build_factory(precision if quantized else InferencePrecision.FP32)
        with self.locks[factory]:
            if factory not in self.facts:
                self.facts[factory] = self.reader.read(factory, {**job, **calibration}, self._variables)
            facts = self.facts[factory]
        if not self.engine.own_requirements:
            return facts
        factory = f"{self.engine.module}:build"
        job = {"precision": precision.value, "source": facts["model"], "threads": arguments.threads}
        return {**facts, **self.reader.read(factory, job, self._variables, self.python)}

    def _prove(self, model: str, precision: InferencePrecision) -> Mapping[str, Any]:
        job = {
            "model": model,
            "network": self.network,
            "precision": precision.value,
            "threads": self.arguments.threads,
            "seed": self.arguments.seed,
        }
        variables = {**self._variables, "ONEDNN_VERBOSE": LOG_CREATION}
        return self.reader.read(f"{self.engine.module}:prove", job, variables)


AT_ONCE = 2
"""Most of the time a builder computes on one core; more of them would only wait for memory and the disk."""

BUILDER_BYTES = 5 * usage.GIB // 2
"""Most memory of a builder of the largest bundled network, VGG19: 1.8 GiB were measured."""

Built = TypeVar("Built")


def count_at_once(network: str, free_bytes: int | None, cores: int | None = None) -> int:
    """Return how many builders may run at once: one where memory is short or the model is the user's."""
    room = AT_ONCE if free_bytes is None else free_bytes // BUILDER_BYTES
    most = 1 if is_user_model(network) else min(AT_ONCE, cores or os.cpu_count() or 1)
    return max(1, min(most, room))


def build_all(builds: Sequence[Callable[[], Built]], at_once: int, reader: FactReader) -> list[Built]:
    """Return what the builds return, in their order; the last is begun first, for int8 takes longest.

    A failure or an interruption ends the processes of the others.

    Raises:
        VariantError: A build failed.
    """
    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(build) for build in reversed(builds)]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            reader.close()
            raise
    return [future.result() for future in reversed(futures)]
