"""Make the cases of the quantization benchmark: each network and batch, in every setting that runs here."""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

from ..harness import program
from ..harness.case import Case, VariantError, WorkerVariant
from ..harness.preparation import FactReader
from ..harness.records import Recorder
from ..harness.roofline import Work
from .engine_models import EngineModel, build_engine_models
from .engines import DEFAULT, ENGINES, Isa, read_description, read_title

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
    description: str = FactReader().read("quantization.user_model:describe", job, {})["description"]
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
    """Make a case of all engines, each with a baseline of its own."""
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
