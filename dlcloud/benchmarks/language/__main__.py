"""Measure language models: `python3 -m benchmarks.language`.

`main` checks that the engines are installed; `LanguageCases` makes the cases of the task: prompts and
generation, training, or load on a server (`serving.py`), each network in every setting that runs here.
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean
from typing import Any

from ..harness import hardware, program
from ..harness.case import Case, Session, Variant, VariantError, WorkerVariant
from ..harness.preparation import FactReader
from ..harness.protocol import measure
from ..harness.records import Recorder
from .networks import NETWORKS, title_of
from .serving import ServingVariant
from .settings import ENGINES, ENTRY, GENERATE, PROMPT, LanguageEngine, parse, product_dtype


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    has_gpu = bool(hardware.gpus())
    if arguments.device == "cuda" and not has_gpu:
        sys.stderr.write("--device cuda: nvidia-smi shows no GPU on this machine\n")
        return program.FAILED
    arguments.device = "cuda" if has_gpu and arguments.device != "cpu" else "cpu"
    engines = [ENGINES[name] for name in arguments.engine]
    modules = [module for engine in engines for module in engine.modules]
    if arguments.task == "training":
        modules = ["torch", "transformers", "peft"]
    if arguments.endpoint is not None:
        modules = []
    requirements = ENTRY.requirements_for(["--engine", *arguments.engine])
    return program.run(
        ENTRY,
        arguments,
        modules=modules,
        requirements=requirements,
        packages=dict.fromkeys(("torch", "peft", *(name for engine in engines for name in engine.packages))),
        work=LanguageCases(arguments=arguments).run,
    )


BYTES_PER_MODEL_BYTE = 1.5
ENGINE_BYTES = 1 << 30
"""Most memory that a worker is expected to hold; more is learned from the first of a case."""

NO_BARS = {"TQDM_DISABLE": "1"}
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "NNCF_CI": "1",
    "TOKENIZERS_PARALLELISM": "false",
    **NO_BARS,
}
"""Nothing is downloaded while it is measured, and NNCF does not report its use to its maker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A network in an engine's form of a precision."""

    engine: LanguageEngine
    precision: str
    source: Mapping[str, Any]  # facts of weights.build
    model: str
    model_bytes: int

    @property
    def name(self) -> str:
        return f"{self.engine.name} {self.precision}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageCases:
    """One run of the program."""

    arguments: argparse.Namespace
    reader: FactReader = field(default_factory=FactReader)

    def run(self, session: Session) -> None:
        networks = self.arguments.network
        makers = {"inference": self._inference, "training": self._training, "serving": self._serving}
        if self.arguments.endpoint is not None:
            measure([self._served_elsewhere()], session)
            return
        for done, network in enumerate(networks):
            after = len(networks) - done - 1
            recorder = session.recorder
            message = f"{title_of(network)}: building the models that are not cached"
            recorder.progress(message, done=done, total=len(networks))
            try:
                cases = makers[self.arguments.task](network, recorder)
            except VariantError as error:
                recorder.failure(title_of(network), None, str(error))
                continue
            measure(cases, session, before=done, after=after)

    def _source(self, network: str) -> Mapping[str, Any]:
        arguments = {"network": network, "seed": self.arguments.seed, "cache": str(self.arguments.cache)}
        return self.reader.read("language.weights:build", arguments, {"OMP_NUM_THREADS": "1", **NO_BARS})

    def _inference(self, network: str, recorder: Recorder) -> list[Case]:
        models = self._models(network, recorder)
        if not models:
            return []
        arguments = self.arguments
        cases = []
        for prompt, streams in product(arguments.prompt, arguments.streams):
            cases.append(self._case(network, models, PROMPT, (prompt, arguments.generate[0], streams)))
            if not models[0].source["encoder"]:
                cases.extend(
                    self._case(network, models, GENERATE, (prompt, generate, streams))
                    for generate in arguments.generate
                )
        return cases

    def _models(self, network: str, recorder: Recorder) -> list[BuiltModel]:
        """Build a network for each engine and precision; record what cannot be built."""
        source = self._source(network)
        models = []
        for engine in (ENGINES[name] for name in self.arguments.engine):
            if source["encoder"] and not engine.encodes:
                recorder.skip(title_of(network), engine.name, "it generates text; this network reads only")
                continue
            for precision in self._precisions(network, engine, recorder):
                try:
                    models.append(self._build(network, source, engine, precision))
                except VariantError as error:
                    recorder.failure(title_of(network), f"{engine.name} {precision}", str(error))
        return models

    def _precisions(self, network: str, engine: LanguageEngine, recorder: Recorder) -> list[str]:
        device, flags = self.arguments.device, hardware.cpu_flags()
        offered = self.arguments.precision or engine.precisions_on(device)
        possible = []
        for precision in offered:
            reason = engine.explain_unsupported(precision, device, flags)
            if reason is None:
                possible.append(precision)
            else:
                recorder.skip(title_of(network), f"{engine.name} {precision}", reason)
        # The baseline comes first, in whatever order they were typed.
        return sorted(possible, key=engine.precisions_on(device).index)

    def _build(
        self, network: str, source: Mapping[str, Any], engine: LanguageEngine, precision: str
    ) -> BuiltModel:
        job = {
            "folder": source["folder"],
            "precision": precision,
            "cache": str(self.arguments.cache),
            "title": f"{title_of(network)}-seed{self.arguments.seed}",
            "threads": self.arguments.threads,
        }
        facts = self.reader.read(f"{engine.module}:build", job, OFFLINE)
        return BuiltModel(
            engine=engine,
            precision=precision,
            source=source,
            model=facts["model"],
            model_bytes=facts["model_bytes"],
        )

    def _case(
        self, network: str, models: Sequence[BuiltModel], phase: str, sizes: tuple[int, int, int]
    ) -> Case:
        prompt, generate, streams = sizes
        name = f"{title_of(network)} prompt {prompt}"
        if phase == GENERATE:
            name = f"{title_of(network)} generate {generate} after {prompt}"
        first = {model.engine.name: model.name for model in reversed(models)}
        judged = network in NETWORKS and models[0].source["weights"].startswith("trained")
        return Case(
            name=name + (f" streams {streams}" if streams > 1 else ""),
            variants=[self._variant(model, phase, sizes) for model in models],
            compare=compare_perplexity if judged else compare_logits,
            baselines={model.name: first[model.engine.name] for model in models},
            contenders=[model.name for model in models],
        )

    def _variant(self, model: BuiltModel, phase: str, sizes: tuple[int, int, int]) -> WorkerVariant:
        prompt, generate, streams = sizes
        arguments = self.arguments
        return WorkerVariant(
            name=model.name,
            unit="tokens/s",
            factory=f"{model.engine.module}:run",
            arguments={
                "folder": model.source["folder"],
                "model": model.model,
                "precision": model.precision,
                "phase": phase,
                "prompt": prompt,
                "generate": generate,
                "streams": streams,
                "threads": arguments.threads,
                "seed": arguments.seed,
                "device": arguments.device,
                "compiled": arguments.compile,
                "weights": model.source["weights"],
            },
            environment=program.environment({**OFFLINE, "OMP_NUM_THREADS": str(arguments.threads)}),
            latencies=True,
            expected_bytes=round(BYTES_PER_MODEL_BYTE * model.model_bytes) + ENGINE_BYTES,
            peak_name=f"pytorch {product_dtype(model.precision, arguments.device)}",
        )

    def _training(self, network: str, recorder: Recorder) -> list[Case]:
        source = self._source(network)
        arguments = self.arguments
        settings = []
        for setting in arguments.setting:
            reason = None
            if setting.startswith("bf16") and arguments.device == "cpu":
                reason = None if hardware.BF16_FLAGS & set(hardware.cpu_flags()) else hardware.NO_BF16
            if reason is None:
                settings.append(setting)
            else:
                recorder.skip(title_of(network), setting, reason)
        name = f"{title_of(network)} training batch {arguments.batch} length {arguments.length}"
        return [Case(name=name, variants=[self._trained(source, setting) for setting in settings])]

    def _trained(self, source: Mapping[str, Any], setting: str) -> WorkerVariant:
        arguments = self.arguments
        job = {
            "folder": source["folder"],
            "setting": setting,
            "batch": arguments.batch,
            "length": arguments.length,
            "threads": arguments.threads,
            "seed": arguments.seed,
            "device": arguments.device,
        }
        return WorkerVariant(
            name=setting,
            unit="tokens/s",
            factory="language.training:train",
            arguments=job,
            environment=program.environment({**OFFLINE, "OMP_NUM_THREADS": str(arguments.threads)}),
            latencies=True,
            facts={"weights": source["weights"]},
            peak_name=f"pytorch {setting.partition('+')[0]}",
        )

    def _serving(self, network: str, recorder: Recorder) -> list[Case]:
        models = self._models(network, recorder)
        variants: list[Variant] = [
            ServingVariant.starting(
                name=model.name,
                command=model.engine.server,
                values={"model": model.model, "folder": model.source["folder"]},
                arguments=self.arguments,
            )
            for model in models
        ]
        return [self._served(title_of(network), variants)] if variants else []

    def _served_elsewhere(self) -> Case:
        variant = ServingVariant.at(self.arguments.endpoint, self.arguments)
        return self._served("endpoint", [variant])

    def _served(self, title: str, variants: Sequence[Variant]) -> Case:
        arguments = self.arguments
        prompt, generate = arguments.prompt[0], arguments.generate[0]
        goal = f"first token by {arguments.first_token_ms:g} ms"
        return Case(name=f"{title} serving {prompt}+{generate}, {goal}", variants=variants)


def compare_logits(reference: list[list[float]], other: list[list[float]]) -> dict[str, Any]:
    """Return how similar two settings' logits are; a row, a position's, begins with its best token."""
    if not reference or not other:
        return {}
    cosines = [_cosine(ours[1:], theirs[1:]) for ours, theirs in zip(reference, other, strict=True)]
    same = sum(ours[0] == theirs[0] for ours, theirs in zip(reference, other, strict=True))
    return {
        "positions_compared": len(cosines),
        "cosine_similarity": round(fmean(cosines), 6),
        "cosine_similarity_worst": round(min(cosines), 6),
        "same_token_percent": round(100 * same / len(cosines), 4),
    }


def compare_perplexity(reference: list[list[float]], other: list[list[float]]) -> dict[str, Any]:
    """Return the perplexity of two settings a byte of text held out; a row is the loss on a piece."""
    ours, theirs = (math.exp(fmean(row[0] for row in rows)) for rows in (reference, other))
    return {
        "pieces_judged": len(other),
        "baseline_perplexity": round(ours, 5),
        "perplexity": round(theirs, 5),
        "perplexity_rise_percent": round(100 * (theirs / ours - 1), 4),
    }


def _cosine(ours: Sequence[float], theirs: Sequence[float]) -> float:
    product_sum = math.fsum(a * b for a, b in zip(ours, theirs, strict=True))
    lengths = math.hypot(*ours) * math.hypot(*theirs)
    return product_sum / lengths if lengths else float(ours == theirs)


if __name__ == "__main__":
    sys.exit(main())
