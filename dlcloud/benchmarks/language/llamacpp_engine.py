"""Run a network with llama.cpp, in the types of its own quantizer; runs inside workers."""

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp  # type: ignore[import-not-found]  # only in the benchmark's own environment
import numpy as np

from ..harness.case import UntimedWorkload
from ..harness.preparation import ModelCache
from .generation import (
    COMPARED_TOKENS,
    JUDGED_TOKENS,
    Generation,
    GenerationJob,
    PromptReading,
    make_workload,
)

# Source: llama.h, enum llama_ftype.
FILE_TYPES = {"fp32": 0, "bf16": 32, "int8": 7, "int4": 2}
TYPE_NAMES = {"fp32": "F32", "bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}

BATCH_TOKENS = 2048
"""Most tokens of a call. Source: llama-bench's default."""


def build(*, folder: str, precision: str, cache: str, title: str, threads: int) -> UntimedWorkload:
    """Make sure that the model's GGUF file of a precision is there."""
    from . import gguf_file  # noqa: PLC0415 - needs PyTorch, which timing does not

    models = ModelCache(Path(cache).expanduser())
    name = f"{title}-llamacpp{llama_cpp.__version__}"
    source = models.get(f"{name}-BF16.gguf", lambda target: gguf_file.write(Path(folder), target))
    file = source
    if precision != "bf16":
        kind = TYPE_NAMES[precision]
        file = models.get(
            f"{name}-{kind}.gguf", lambda target: quantize(source, target, FILE_TYPES[precision], threads)
        )
    return UntimedWorkload(facts={"model": str(file), "model_bytes": file.stat().st_size})


def quantize(source: Path, target: Path, file_type: int, threads: int) -> None:
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread = file_type, threads
    with _quiet():
        failed = llama_cpp.llama_model_quantize(
            str(source).encode(), str(target).encode(), ctypes.byref(options)
        )
    if failed:
        raise RuntimeError(f"llama.cpp could not quantize {source.name} as type {file_type}")


def run(**arguments: Any) -> PromptReading | Generation:  # noqa: ANN401 - those of GenerationJob
    job = GenerationJob(**arguments)
    return make_workload(job, LlamaModel(job))


class LlamaModel:
    """A model and its context, by llama.cpp's own C interface."""

    def __init__(self, job: GenerationJob) -> None:
        self._job = job
        self._model = self._load()
        self._context = self._make_context()
        self._memory = llama_cpp.llama_get_memory(self._context)
        prompts = job.prompts()
        self._reading = self._batches(prompts)
        self._next = _Batch(prompts[:, :1], first=job.prompt)
        self._has_read = False
        facts = job.facts(
            f"llama.cpp of llama-cpp-python {llama_cpp.__version__}", Path(job.model).stat().st_size
        )
        self.facts = {**facts, "file_type": TYPE_NAMES[job.precision]}

    def read_prompts(self) -> None:
        llama_cpp.llama_memory_clear(self._memory, False)
        for batch in self._reading:
            self._decode(batch)
        self._has_read = True

    def rewind(self) -> None:
        if not self._has_read:
            self.read_prompts()
        for stream in range(self._job.streams):
            llama_cpp.llama_memory_seq_rm(self._memory, stream, self._job.prompt, -1)
        self._next.move(self._job.prompt)

    def generate(self) -> None:
        self._decode(self._next)
        self._next.move(1, further=True)

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        llama_cpp.llama_memory_clear(self._memory, True)
        self._has_read = False
        self._decode(_Batch(tokens[None], first=0, all_logits=True))
        size = self._job.configuration["vocab_size"]
        rows = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(rows, shape=(len(tokens) * size,)).reshape(len(tokens), size).copy()

    def _load(self) -> Any:  # noqa: ANN401 - a pointer
        with _quiet():
            options = llama_cpp.llama_model_default_params()
            options.n_gpu_layers = 999 if self._job.device == "cuda" else 0
            model = llama_cpp.llama_model_load_from_file(self._job.model.encode(), options)
        if not model:
            raise ValueError(f"llama.cpp cannot load {self._job.model}")
        return model

    def _make_context(self) -> Any:  # noqa: ANN401 - a pointer
        job = self._job
        options = llama_cpp.llama_context_default_params()
        length = max(job.prompt + job.generate, JUDGED_TOKENS, COMPARED_TOKENS)
        options.n_ctx = job.streams * (-(-length // 256) * 256)
        options.n_batch = BATCH_TOKENS
        options.n_seq_max = job.streams
        options.n_threads = options.n_threads_batch = job.threads
        with _quiet():
            context = llama_cpp.llama_init_from_model(self._model, options)
        if not context:
            raise ValueError("llama.cpp made no context: too little memory, perhaps")
        return context

    def _batches(self, prompts: np.ndarray) -> list["_Batch"]:
        width = max(1, BATCH_TOKENS // self._job.streams)
        starts = range(0, prompts.shape[1], width)
        last = starts[-1]
        return [
            _Batch(prompts[:, start : start + width], first=start, logits=start == last) for start in starts
        ]

    def _decode(self, batch: "_Batch") -> None:
        if (status := llama_cpp.llama_decode(self._context, batch.batch)) != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        llama_cpp.llama_synchronize(self._context)


class _Batch:
    """Tokens (streams, n) of several sequences, from position `first` of each; freed with the process."""

    def __init__(
        self, tokens: np.ndarray, *, first: int, logits: bool = True, all_logits: bool = False
    ) -> None:
        streams, length = tokens.shape
        self.batch = llama_cpp.llama_batch_init(streams * length, 0, 1)
        self.batch.n_tokens = streams * length
        for number, (stream, place) in enumerate(np.ndindex(streams, length)):
            self.batch.token[number] = int(tokens[stream, place])
            self.batch.pos[number] = first + place
            self.batch.n_seq_id[number] = 1
            self.batch.seq_id[number][0] = stream
            self.batch.logits[number] = all_logits or (logits and place == length - 1)

    def move(self, position: int, *, further: bool = False) -> None:
        """Set the position of every token, or move it on by a number."""
        for number in range(self.batch.n_tokens):
            self.batch.pos[number] = (self.batch.pos[number] if further else 0) + position


def _quiet() -> Any:  # noqa: ANN401 - llama-cpp-python's own
    from llama_cpp._utils import suppress_stdout_stderr  # type: ignore[import-not-found]  # noqa: PLC0415

    return suppress_stdout_stderr(disable=False)
