"""Run a network with OpenVINO GenAI, weights compressed by NNCF; runs inside workers."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]  # only in the benchmark's own environment

from ..harness import hardware
from ..harness.case import UntimedWorkload
from ..harness.preparation import ModelCache, size_of
from .generation import Generation, GenerationJob, PromptReading, RequestModel, make_workload
from .networks import is_encoder

VERSION = openvino.__version__.partition("-")[0]
GRAPH = "openvino_model.xml"
INT4_GROUP = 32
"""Weights that share a scale, as many as in llama.cpp's Q4_0."""

CACHE_GB = 2


def build(*, folder: str, precision: str, cache: str, title: str, **_others: Any) -> UntimedWorkload:  # noqa: ANN401
    """Make sure that the exported model of a precision is there; fp32 and bf16 share one."""
    models = ModelCache(Path(cache).expanduser())
    name = f"{title}-ov{VERSION}"
    model = models.get(f"{name}-exported", lambda target: _export(Path(folder), target))
    if precision in {"int8", "int4"}:
        source = model
        model = models.get(f"{name}-{precision}", lambda target: _compress(source, target, precision))
    return UntimedWorkload(facts={"model": str(model), "model_bytes": size_of(model)})


def run(**arguments: Any) -> PromptReading | Generation:  # noqa: ANN401 - those of GenerationJob
    job = GenerationJob(**arguments)
    model = EncoderModel(job) if is_encoder(job.configuration) else GenAiModel(job)
    return make_workload(job, model)


def _export(folder: Path, target: Path) -> None:
    """Export a network with its state for keys and values, and its tokenizer, which the pipeline wants."""
    import openvino_tokenizers  # type: ignore[import-not-found]  # noqa: PLC0415 - only builders need them
    import transformers  # noqa: PLC0415
    from optimum.exporters.openvino import export_from_model  # type: ignore[import-not-found]  # noqa: PLC0415

    configuration = transformers.AutoConfig.from_pretrained(folder)
    encodes = is_encoder(configuration.to_dict())
    maker = transformers.AutoModel if encodes else transformers.AutoModelForCausalLM
    # Exported in fp32, so that NNCF reads what fp32 computes with.
    model = maker.from_pretrained(folder, dtype="float32")
    task = "feature-extraction" if encodes else "text-generation-with-past"
    export_from_model(model, target, task=task, stateful=not encodes)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    parts = openvino_tokenizers.convert_tokenizer(tokenizer, with_detokenizer=True)
    for part, name in zip(parts, ("tokenizer", "detokenizer"), strict=True):
        openvino.save_model(part, target / f"openvino_{name}.xml")


def _compress(source: Path, target: Path, precision: str) -> None:
    import nncf  # type: ignore[import-not-found]  # noqa: PLC0415 - as above

    mode = nncf.CompressWeightsMode
    kind = {"mode": mode.INT4_SYM, "group_size": INT4_GROUP, "ratio": 1.0} if precision == "int4" else {}
    graph = openvino.Core().read_model(source / GRAPH)
    compressed = nncf.compress_weights(graph, **(kind or {"mode": mode.INT8_SYM}))
    graphs = ("openvino_model.xml", "openvino_model.bin")
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*graphs))
    openvino.save_model(compressed, target / GRAPH, compress_to_fp16=False)


def _properties(job: GenerationJob) -> dict[str, Any]:
    has_bf16 = bool(hardware.BF16_FLAGS & set(hardware.cpu_flags()))
    exact = job.precision == "fp32" or not has_bf16
    properties: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": "f32" if exact else "bf16",
        "INFERENCE_NUM_THREADS": job.threads,
    }
    # The default is a cache of 8 bits.
    cache = {"fp32": {"KV_CACHE_PRECISION": "f32"}, "bf16": {"KV_CACHE_PRECISION": "bf16"}}
    return {**properties, **cache.get(job.precision, {})}


def _facts(job: GenerationJob, engine: str) -> dict[str, Any]:
    """Return the facts of a job's model; the graph is of fp32, turned into bf16 as it is loaded."""
    size = size_of(Path(job.model))
    return job.facts(engine, size, read_bytes=size / 2 if job.precision == "bf16" else None)


def _compiled(job: GenerationJob) -> Any:  # noqa: ANN401 - no types
    return openvino.Core().compile_model(Path(job.model) / GRAPH, "CPU", _properties(job))


class GenAiModel(RequestModel):
    """A pipeline of continuous batching: a call is one step of all sequences."""

    def __init__(self, job: GenerationJob) -> None:
        import openvino_genai  # type: ignore[import-not-found]  # noqa: PLC0415 - not for encoders

        super().__init__(job)
        self._genai = openvino_genai
        scheduling = openvino_genai.SchedulerConfig()
        scheduling.enable_prefix_caching = False
        scheduling.dynamic_split_fuse = False
        scheduling.max_num_batched_tokens = job.prompt * job.streams + job.streams
        scheduling.max_num_seqs = job.streams
        scheduling.cache_size = CACHE_GB
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            job.model, scheduling, "CPU", _properties(job)
        )
        self._prompts = [openvino.Tensor(row[None]) for row in job.prompts()]
        self.facts = _facts(job, f"OpenVINO GenAI {VERSION}")

    def add_requests(self, tokens: int) -> None:
        options = self._genai.GenerationConfig()
        options.max_new_tokens, options.ignore_eos, options.do_sample = tokens, True, False
        for prompt in self._prompts:
            self.handles.append(self._pipeline.add_request(self.take_number(), prompt, options))

    def advance(self) -> None:
        self._pipeline.step()

    def is_busy(self) -> bool:
        return bool(self._pipeline.has_non_finished_requests())

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        count = len(tokens)
        request = _compiled(self.job).create_infer_request()
        inputs = {
            "input_ids": tokens[None],
            "attention_mask": np.ones((1, count), dtype=np.int64),
            "position_ids": np.arange(count, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, dtype=np.int32),
        }
        taken = {name for port in request.model_inputs for name in port.get_names()}
        answer = request.infer({name: value for name, value in inputs.items() if name in taken})
        return np.asarray(answer["logits"][0], dtype=np.float32)


class EncoderModel:
    """A network that reads whole texts."""

    def __init__(self, job: GenerationJob) -> None:
        self._request = _compiled(job).create_infer_request()
        self._prompts = job.prompts()
        self.facts = _facts(job, f"OpenVINO {VERSION}")

    def read_prompts(self) -> None:
        self._infer(self._prompts)

    def rewind(self) -> None:
        raise ValueError("it generates nothing")

    generate = rewind

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        return np.asarray(self._infer(tokens[None])[0], dtype=np.float32)

    def _infer(self, tokens: np.ndarray) -> Any:  # noqa: ANN401 - no types
        inputs = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
        inputs["token_type_ids"] = np.zeros_like(tokens)
        taken = {name for port in self._request.model_inputs for name in port.get_names()}
        answer = self._request.infer({name: value for name, value in inputs.items() if name in taken})
        return next(iter(answer.values()))
