"""Run a network with vLLM on a GPU; runs inside workers."""

from pathlib import Path
from typing import Any

import numpy as np
import vllm  # type: ignore[import-not-found]  # only in the benchmark's own environment

from ..harness.case import UntimedWorkload
from ..harness.preparation import size_of
from .generation import Generation, GenerationJob, PromptReading, RequestModel, make_workload

OPTIONS: dict[str, dict[str, Any]] = {
    "fp32": {"dtype": "float32"},
    "bf16": {"dtype": "bfloat16"},
    "fp8": {"dtype": "bfloat16", "quantization": "fp8"},
    "int4": {"dtype": "bfloat16", "quantization": "bitsandbytes"},
}
"""By precision. Source: vLLM's documentation, "Quantization": fp8 and bitsandbytes quantize while loading."""

OF_BF16 = {"fp32": 2.0, "bf16": 1.0, "fp8": 0.5, "int4": 0.25}
"""Bytes of a weight that is read, over those of one in bf16."""


def build(*, folder: str, **_others: Any) -> UntimedWorkload:  # noqa: ANN401 - those of the other engines
    """Report the model as it is: vLLM quantizes it as it is loaded."""
    return UntimedWorkload(facts={"model": folder, "model_bytes": size_of(Path(folder))})


def run(**arguments: Any) -> PromptReading | Generation:  # noqa: ANN401 - those of GenerationJob
    job = GenerationJob(**arguments)
    return make_workload(job, VllmModel(job))


class VllmModel(RequestModel):
    """vLLM's engine in this process: a call is one step of all sequences."""

    def __init__(self, job: GenerationJob) -> None:
        super().__init__(job)
        options = vllm.EngineArgs(
            model=job.folder,
            max_model_len=job.prompt + job.generate + 1,
            max_num_seqs=job.streams,
            max_num_batched_tokens=max(job.prompt * job.streams, 2048),
            enable_prefix_caching=False,
            seed=job.seed,
            **OPTIONS[job.precision],
        )
        self._engine = vllm.LLMEngine.from_engine_args(options)
        self._prompts = job.prompts().tolist()
        size = size_of(Path(job.folder))
        self.facts = job.facts(f"vLLM {vllm.__version__}", size, read_bytes=size * OF_BF16[job.precision])

    def add_requests(self, tokens: int) -> None:
        sampling = vllm.SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0)
        for prompt in self._prompts:
            self._engine.add_request(str(self.take_number()), {"prompt_token_ids": prompt}, sampling)

    def advance(self) -> None:
        self._engine.step()

    def is_busy(self) -> bool:
        return bool(self._engine.has_unfinished_requests())

    def logits(self, tokens: np.ndarray) -> np.ndarray:  # noqa: ARG002 - the protocol's
        """Return nothing: vLLM gives probabilities of a few tokens only."""
        return np.zeros((0, 1), dtype=np.float32)
