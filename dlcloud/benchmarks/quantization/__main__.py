"""Compare fp32 with int8 inference: `python3 -m benchmarks.quantization`.

`main` checks that the engines are installed, then `make_cases` goes through networks and engines:
`build_engine_models` finds which precisions run here, builds the models that are not cached, and has the
kernels of each proven. Models are built in separate processes, two at the same time if there is memory for
both, and a failure or an interruption ends the processes of the others. What could be built becomes a case
for each batch, and the protocol times its settings in turn.
"""

import argparse
import math
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from threading import Lock
from typing import Any, TypeVar

from ..harness import hardware, preparation, program, usage
from ..harness.case import Case, VariantError, WorkerVariant
from ..harness.preparation import FactReader
from ..harness.protocol import measure
from ..harness.records import Recorder
from ..harness.roofline import Work
from .settings import (
    DEFAULT,
    ENGINES,
    ENTRY,
    Engine,
    InferencePrecision,
    Isa,
    detect_format,
    explain_missing,
    explain_missing_model,
    is_user_model,
    parse,
    read_description,
    read_title,
)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    reasons = [explain_missing_model(arguments.model)] if arguments.model else []
    reasons += [explain_missing(arguments.data)] if arguments.data else []
    engines = [ENGINES[name] for name in arguments.engine]
    options = ["--engine", *arguments.engine, "--network", *arguments.network]
    options += ["--model", str(arguments.model)] if arguments.model else []
    modules = [module for engine in engines for module in engine.modules]
    if (reason := next(filter(None, reasons), None)) is not None:
        sys.stderr.write(f"{reason}\n")
        return program.FAILED
    return program.run(
        ENTRY,
        arguments,
        modules=modules,
        requirements=ENTRY.requirements_for(options),
        packages=dict.fromkeys(package for engine in engines for package in engine.packages),
        work=lambda session: measure(make_cases(arguments, session.recorder), session),
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
    """Return the Python that runs an engine's workers; its own environment is built if missing."""
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


@dataclass(slots=True, kw_only=True, eq=False)
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
    """Return how many builders may run in parallel: one where memory is short or the model is the user's."""
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


BYTES_PER_MODEL_BYTE = 2.5
ENGINE_BYTES = 256 << 20
"""Most memory of a worker: its model, which engines rewrite as they load it, and the engine itself.

Measured: 1.9 to 2.4 bytes for each of the model's, engine included, of VGG16 and VGG19 in fp32; 4.3 of
ResNet-50. What an engine takes beyond that is learned from the first of the case.
"""


def make_cases(arguments: argparse.Namespace, recorder: Recorder) -> list[Case]:
    """Build the models and make a case of each network and batch; record what cannot be built."""
    cases: list[Case] = []
    networks, batches = list(dict.fromkeys(arguments.network)), list(dict.fromkeys(arguments.batch))
    isas = [Isa(name) for name in dict.fromkeys(arguments.isa)]
    total = (len(networks) + bool(arguments.model)) * len(isas) * len(batches)
    if arguments.model is not None:
        networks.append(_describe_model(arguments))
    for network, isa in product(networks, isas):
        message = f"{read_title(network)}: building the models that are not cached"
        recorder.progress(message, done=0, total=total)
        models: list[EngineModel] = []
        for engine in (ENGINES[name] for name in arguments.engine):
            try:
                models += build_engine_models(network, engine, isa, arguments, recorder)
            except VariantError as error:
                case = f"{read_title(network)} {engine.name}"
                recorder.failure(case, None, str(error))
        if models:
            possible = _select_batches(network, batches, recorder)
            cases.extend(_make_case(models, batch, arguments) for batch in possible)
    return cases


def _describe_model(arguments: argparse.Namespace) -> str:
    """Return the path of the description of the user's model; VariantError if it cannot be used."""
    arguments.cache.mkdir(parents=True, exist_ok=True)
    job = {
        "file": str(arguments.model),
        "data": str(arguments.data) if arguments.data else None,
        "shape": arguments.input_shape,
        "cache": str(arguments.cache),
    }
    description: str = FactReader().read("quantization.models:describe", job, {})["description"]
    return description


def _select_batches(network: str, batches: Sequence[int], recorder: Recorder) -> list[int]:
    """Return the batches that a network takes, and record the others as skipped."""
    only = (read_description(network) or {}).get("batch")
    for batch in batches:
        if only not in {None, batch}:
            reason = f"the model takes batches of {only} only"
            recorder.skip(read_title(network), f"batch {batch}", reason)
    return [batch for batch in batches if only in {None, batch}]


def _make_case(models: Sequence[EngineModel], batch: int, arguments: argparse.Namespace) -> Case:
    """Make a case of all engines, each with its own baseline."""
    # The engine is named only where it is not the default alone.
    is_default = arguments.engine == [DEFAULT]
    by_name = {
        model.precision.value if is_default else f"{model.engine.name} {model.precision.value}": model
        for model in models
    }
    first = {model.engine.name: name for name, model in reversed(by_name.items())}
    baselines = {name: first[model.engine.name] for name, model in by_name.items()}
    isa, labels = models[0].isa, models[0].labels
    suffix = "" if isa is Isa.NATIVE else f" {isa.value}"
    return Case(
        name=f"{read_title(models[0].network)} batch {batch}{suffix}",
        variants=[
            _make_variant(name, model, by_name[baselines[name]], batch, arguments)
            for name, model in by_name.items()
        ],
        compare=compare_logits if labels is None else partial(compare_accuracy, labels),
        baselines=baselines,
        contenders=[name for name, model in by_name.items() if model.precision.is_fp32],
    )


def _make_variant(
    name: str, model: EngineModel, baseline: EngineModel, batch: int, arguments: argparse.Namespace
) -> WorkerVariant:
    threads = {"OMP_NUM_THREADS": str(arguments.threads)}
    precision = model.precision.value.removesuffix("-eager")
    facts = {**baseline.work, **work_of_batch(baseline.work, batch, precision), **model.proof}
    if arguments.device == "cpu":
        facts["isa_cap"] = model.isa.value
        if model is not baseline:
            facts["times_smaller"] = round(baseline.size_bytes / model.size_bytes, 4)
    return WorkerVariant(
        name=name,
        unit="images/s",
        factory=f"{model.engine.module}:infer",
        arguments={
            "model": model.model,
            "network": model.network,
            "precision": model.precision.value,
            "batch": batch,
            "threads": arguments.threads,
            "seed": arguments.seed,
            "device": arguments.device,
        },
        environment=program.environment({**model.engine.environment_for(model.isa), **threads}),
        latencies=batch == 1,
        python=model.python,
        expected_bytes=round(BYTES_PER_MODEL_BYTE * model.size_bytes) + ENGINE_BYTES,
        facts=facts,
        peak_name=f"{model.engine.name} {precision} {model.isa.value}",
    )


def work_of_batch(work: Mapping[str, Any], batch: int, precision: str) -> dict[str, Any]:
    """Return the work of an image in a batch, which reads the weights once, from that of one image in fp32.

    In other precisions the operations are the same, and values are smaller.
    """
    counted = Work.of_facts(work)
    if counted is None:
        return {}
    shared = work.get("weight_bytes", 0) * (1 - 1 / batch)
    return replace(counted, bytes=counted.bytes - shared).computed_in(precision).facts()


def compare_logits(reference: list[list[float]], other: list[list[float]]) -> dict[str, Any]:
    """Return how similar two settings' logits are, over images.

    `cosine_similarity` compares them as they are. `cosine_similarity_centred` takes away each setting's mean
    over the images first: random weights answer nearly the same to every image, and only the differences
    count. Both are means over the images, next to the value of the worst image.
    """
    plain, centred = _cosines(reference, other), _cosines(_centre(reference), _centre(other))
    return {
        "cosine_similarity": round(fmean(plain), 6),
        "cosine_similarity_worst": round(min(plain), 6),
        "cosine_similarity_centred": round(fmean(centred), 6),
        "cosine_similarity_centred_worst": round(min(centred), 6),
    }


def compare_accuracy(
    labels: Sequence[int], reference: list[list[float]], other: list[list[float]]
) -> dict[str, Any]:
    """Return the share of images that two settings answer correctly, in percent, and how similar they are.

    `accuracy_drop_points` is the loss of the other against the reference, in percentage points.
    """
    correct, other_correct = _count_correct(labels, reference), _count_correct(labels, other)
    same = sum(_answer(ours) == _answer(theirs) for ours, theirs in zip(reference, other, strict=True))
    share = 100 / len(labels)
    return {
        **compare_logits(reference, other),
        "images_judged": len(labels),
        "accuracy_percent": round(share * other_correct, 4),
        "baseline_accuracy_percent": round(share * correct, 4),
        "accuracy_drop_points": round(share * (correct - other_correct), 4),
        "same_answer_percent": round(share * same, 4),
    }


def _count_correct(labels: Sequence[int], rows: list[list[float]]) -> int:
    return sum(_answer(row) == label for label, row in zip(labels, rows, strict=True))


def _answer(row: list[float]) -> int:
    return max(range(len(row)), key=row.__getitem__)


def _cosines(reference: list[list[float]], other: list[list[float]]) -> list[float]:
    return [_cosine(ours, theirs) for ours, theirs in zip(reference, other, strict=True)]


def _cosine(ours: list[float], theirs: list[float]) -> float:
    inner = math.fsum(one * other for one, other in zip(ours, theirs, strict=True))
    return inner / (math.hypot(*ours) * math.hypot(*theirs) or 1.0)


def _centre(rows: list[list[float]]) -> list[list[float]]:
    means = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    return [[value - mean for value, mean in zip(row, means, strict=True)] for row in rows]


if __name__ == "__main__":
    sys.exit(main())
