"""Run a network with PyTorch: fp32, bf16, and int8 or int4 weights by torchao; runs inside workers."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from ..harness.case import UntimedWorkload
from ..harness.preparation import size_of
from .generation import Generation, GenerationJob, PromptReading, make_workload
from .networks import is_encoder

INT4_GROUP = 32
"""Weights that share a scale, as many as in llama.cpp's Q4_0."""


def build(*, folder: str, **_others: Any) -> UntimedWorkload:  # noqa: ANN401 - those of the other engines
    """Report the model as it is: torchao quantizes it as it is loaded."""
    return UntimedWorkload(facts={"model": folder, "model_bytes": size_of(Path(folder))})


def run(**arguments: Any) -> PromptReading | Generation:  # noqa: ANN401 - those of GenerationJob
    job = GenerationJob(**arguments)
    torch.set_num_threads(job.threads)
    return make_workload(job, TorchModel(job))


def load(folder: str, precision: str, device: str) -> Any:  # noqa: ANN401 - transformers' own
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    configuration = transformers.AutoConfig.from_pretrained(folder)
    maker = (
        transformers.AutoModel if is_encoder(configuration.to_dict()) else transformers.AutoModelForCausalLM
    )
    model = maker.from_pretrained(folder, dtype=dtype).to(device).eval()
    if precision in {"int8", "int4"}:
        _quantize(model, precision, device)
    return model


def _quantize(model: Any, precision: str, device: str) -> None:  # noqa: ANN401 - as above
    # Heavy, and only these precisions need it; the packing for CPUs is torchao's newest.
    from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig  # noqa: PLC0415
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_  # noqa: PLC0415

    if precision == "int8":
        quantize_(model, Int8WeightOnlyConfig())
    elif device == "cpu":
        quantize_(model, PrototypeInt4WeightOnlyConfig(group_size=INT4_GROUP))
    else:
        quantize_(model, Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d"))


class TorchModel:
    """A network of transformers with its cache of keys and values."""

    def __init__(self, job: GenerationJob) -> None:
        self._job = job
        self._model = load(job.folder, job.precision, job.device)
        self._encodes = is_encoder(job.configuration)
        self._call = torch.compile(self._model, dynamic=True) if job.compiled else self._model
        self._prompts = torch.from_numpy(job.prompts()).to(job.device)
        self._next = self._prompts[:, :1].contiguous()
        self._cache: Any = None
        facts = job.facts(f"PyTorch {torch.__version__}", weight_bytes(self._model))
        self.facts = {**facts, "compiled": job.compiled}

    def read_prompts(self) -> None:
        if not self._encodes:
            self._cache = transformers.DynamicCache(config=self._model.config)
        self._forward(self._prompts)

    def rewind(self) -> None:
        if self._cache is None:
            self.read_prompts()
        else:
            self._cache.crop(self._job.prompt)

    def generate(self) -> None:
        self._forward(self._next)

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            output = self._model(input_ids=torch.from_numpy(tokens)[None].to(self._job.device))
        values = output.last_hidden_state if self._encodes else output.logits
        answer: np.ndarray = values[0].float().cpu().numpy()
        return answer

    def _forward(self, tokens: torch.Tensor) -> None:
        cached = {"past_key_values": self._cache, "use_cache": True, "logits_to_keep": 1}
        with torch.inference_mode():
            self._call(input_ids=tokens, **({} if self._encodes else cached))
        if self._job.device == "cuda":
            torch.cuda.synchronize()


def weight_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of a network's weights as they are in memory; of quantized ones, scales included."""
    total = 0
    for parameter in {id(value): value for value in model.parameters()}.values():
        inner = getattr(parameter, "__tensor_flatten__", None)
        names = inner()[0] if inner else ()
        parts = [getattr(parameter, name) for name in names] or [parameter]
        total += sum(part.numel() * part.element_size() for part in parts if isinstance(part, torch.Tensor))
    return total
