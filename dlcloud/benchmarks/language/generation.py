"""Prompts and generation as workloads: what a worker does with an engine's model; imports no engine."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..harness.roofline import Peak, Work
from .networks import HELD_OUT_FILE, NetworkSize, read_configuration
from .settings import GENERATE, PROMPT, product_dtype

COMPARED_TOKENS = 32
COMPARED_LOGITS = 1024
"""Logits of a position that are compared, evenly taken; the largest of all is compared, too."""

JUDGED_TOKENS = 256
JUDGED_PIECES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationJob:
    """What a worker runs."""

    folder: str  # the model in Hugging Face's format, in bf16
    model: str  # the engine's own form of it, a file or a folder; `folder` if it has none
    precision: str
    phase: str  # PROMPT or GENERATE
    prompt: int  # tokens of each prompt
    generate: int  # tokens generated after it
    streams: int  # sequences in parallel
    threads: int
    seed: int
    device: str = "cpu"
    compiled: bool = False
    weights: str = "random"

    @property
    def configuration(self) -> dict[str, Any]:
        return read_configuration(Path(self.folder))

    def prompts(self) -> np.ndarray:
        """Return random prompts (streams, prompt) int64: speed does not depend on what they say."""
        return self.draw(self.streams, self.prompt)

    def draw(self, rows: int, columns: int) -> np.ndarray:
        vocabulary = self.configuration["vocab_size"]
        return np.random.default_rng(self.seed).integers(0, vocabulary, (rows, columns), dtype=np.int64)

    def work(self, model_bytes: float) -> Work:
        """Return the work of a token in this phase, with weights of this many bytes."""
        size = NetworkSize.of(Path(self.folder), self.configuration)
        if not size.stored:
            return Work(flop=0.0)  # not of safetensors: unknown
        if self.phase == PROMPT:
            return size.reading(self.prompt, self.streams, model_bytes)
        return size.generating(self.prompt + self.generate / 2, self.streams, model_bytes)

    def facts(self, engine: str, model_bytes: int, *, read_bytes: float | None = None) -> dict[str, Any]:
        """Return what is known of an engine's model; `read_bytes` where it runs in fewer than are stored."""
        return {
            "engine": engine,
            "weights": self.weights,
            "model_bytes": model_bytes,
            "threads": self.threads,
            "device": self.device,
            "prompt_tokens": self.prompt,
            "streams": self.streams,
            **({"generated_tokens": self.generate} if self.phase == GENERATE else {}),
            **self.work(read_bytes or model_bytes).facts(),
        }

    def measure_peak(self, seconds: float) -> Peak:
        """Measure PyTorch's peak, whatever the engine: PyTorch is installed next to each of them."""
        import torch  # noqa: PLC0415 - not before the engine was measured

        from ..harness import torch_roofline  # noqa: PLC0415 - as above

        torch.set_num_threads(self.threads)
        dtype = product_dtype(self.precision, self.device)
        return torch_roofline.measure_peak(dtype, device=self.device, seconds=seconds)


class LanguageModel(Protocol):
    """An engine with a model loaded. The next tokens are any: speed does not depend on them."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Return what is known before it is timed."""

    def read_prompts(self) -> None:
        """Forget all, then process every prompt up to the logits of its last token."""

    def rewind(self) -> None:
        """Make ready to generate the first token after the prompts."""

    def generate(self) -> None:
        """Process one more token of every sequence and wait for its logits."""

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """Return the logits (n, vocabulary) float32 after each of n tokens of one sequence."""


class PromptReading:
    """Steps that read prompts: a step's time is that to the first token."""

    def __init__(self, job: GenerationJob, model: LanguageModel) -> None:
        self._job, self._model = job, model
        self.items_per_step = job.prompt * job.streams
        self.facts = model.facts

    def step(self) -> None:
        self._model.read_prompts()

    def outputs(self) -> list[list[float]]:
        return compared_outputs(self._job, self._model)

    def measure_peak(self, seconds: float) -> Peak:
        return self._job.measure_peak(seconds)


class Generation:
    """Steps of one token for every sequence: a step's time is that between tokens.

    After the last token it goes back to the prompt's end; `untimed_s` counts the seconds of that.
    """

    def __init__(self, job: GenerationJob, model: LanguageModel) -> None:
        self._job, self._model = job, model
        self._left = 0
        self.items_per_step = job.streams
        self.facts = model.facts
        self.untimed_s = 0.0

    def step(self) -> None:
        if not self._left:
            began = time.perf_counter()
            self._model.rewind()
            self._left = self._job.generate
            self.untimed_s += time.perf_counter() - began
        self._model.generate()
        self._left -= 1

    def outputs(self) -> list[list[float]]:
        return compared_outputs(self._job, self._model)

    def measure_peak(self, seconds: float) -> Peak:
        return self._job.measure_peak(seconds)


def make_workload(job: GenerationJob, model: LanguageModel) -> PromptReading | Generation:
    return PromptReading(job, model) if job.phase == PROMPT else Generation(job, model)


def compared_outputs(job: GenerationJob, model: LanguageModel) -> list[list[float]]:
    """Return a row a position: its best token, then some logits; of a trained network its loss alone.

    A row of that is the mean loss, in nats a token, on a piece of the text that it was not trained on.
    """
    held_out = Path(job.folder) / HELD_OUT_FILE
    if held_out.exists():
        tokens = np.array(json.loads(held_out.read_text(encoding="utf-8")), dtype=np.int64)
        pieces = [tokens[start * JUDGED_TOKENS :][:JUDGED_TOKENS] for start in range(JUDGED_PIECES)]
        return [[_loss(model.logits(piece), piece)] for piece in pieces if len(piece) == JUDGED_TOKENS]
    count = min(COMPARED_TOKENS, job.prompt)
    logits = model.logits(job.draw(1, count)[0])
    chosen = np.linspace(0, logits.shape[1] - 1, min(COMPARED_LOGITS, logits.shape[1])).astype(int)
    return [[float(row.argmax()), *map(float, row[chosen])] for row in logits]


def _loss(logits: np.ndarray, tokens: np.ndarray) -> float:
    shifted = logits[:-1] - logits[:-1].max(axis=1, keepdims=True)
    log_sums = np.log(np.exp(shifted).sum(axis=1))
    return float(np.mean(log_sums - shifted[np.arange(len(tokens) - 1), tokens[1:]]))


class RequestModel:
    """What such engines share; each defines how requests are added and a step is computed."""

    def __init__(self, job: GenerationJob) -> None:
        self.job = job
        self.handles: list[Any] = []  # what keeps the requests alive
        self._number = 0

    def read_prompts(self) -> None:
        self._finish()
        self.add_requests(1)
        self._finish()

    def rewind(self) -> None:
        """End all requests, then read the prompts again up to the first token."""
        self._finish()
        self.add_requests(self.job.generate + 1)
        self.advance()

    def generate(self) -> None:
        self.advance()

    def take_number(self) -> int:
        self._number += 1
        return self._number

    def add_requests(self, tokens: int) -> None:
        """Add a request for every prompt, with this number of new tokens."""
        raise NotImplementedError

    def advance(self) -> None:
        """Compute one step: a token for every request."""
        raise NotImplementedError

    def is_busy(self) -> bool:
        """Return whether a request is unfinished."""
        raise NotImplementedError

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """Return the logits (n, vocabulary) after each of n tokens."""
        raise NotImplementedError

    def _finish(self) -> None:
        while self.is_busy():
            self.advance()
        self.handles.clear()
