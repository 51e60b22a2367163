"""The engines that run language models, and what each needs; imports none of them."""

from collections.abc import Collection
from dataclasses import dataclass

from ..harness import hardware

PRECISIONS = ("fp32", "bf16", "int8", "int4", "fp8")
"""What weights are stored in, by each engine's own quantizer; sums are of more bits."""

TASKS = ("inference", "training", "serving")

PROMPT, GENERATE = "prompt", "generate"
"""The phases of inference, which are measured apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageEngine:
    """An engine that runs language models."""

    name: str  # as typed after `--engine`
    modules: tuple[str, ...]  # the modules without which it cannot run
    packages: tuple[str, ...]  # distributions whose versions belong to the figures
    module: str  # module of `benchmarks` that its workers load; has `build` and `run`
    precisions: tuple[str, ...] = ("fp32", "bf16", "int8", "int4")  # the baseline first
    gpu_precisions: tuple[str, ...] = ()  # in which it runs on an NVIDIA GPU, the baseline first
    encodes: bool = True  # runs encoders, such as BERT
    server: tuple[str, ...] = ()  # its server's command; {model}, {port} and {threads} are filled in

    def precisions_on(self, device: str) -> tuple[str, ...]:
        return self.gpu_precisions if device == "cuda" else self.precisions

    def explain_unsupported(self, precision: str, device: str, flags: Collection[str]) -> str | None:
        """Return why it cannot run a precision on a processor with these flags; None if it can."""
        if precision not in self.precisions_on(device):
            return f"{self.name} has no {precision} on {'a GPU' if device == 'cuda' else 'CPUs'} here"
        lacks_bf16 = device == "cpu" and precision == "bf16" and not hardware.BF16_FLAGS & set(flags)
        return hardware.NO_BF16 if lacks_bf16 else None


ENGINES = {
    engine.name: engine
    for engine in (
        LanguageEngine(
            name="llamacpp",
            modules=("llama_cpp", "gguf", "torch", "transformers"),
            packages=("llama-cpp-python", "gguf"),
            module="language.llamacpp_engine",
            gpu_precisions=("bf16", "int8", "int4"),
            encodes=False,
            server=(
                "{python}", "-m", "llama_cpp.server", "--model", "{model}", "--host", "127.0.0.1",
                "--port", "{port}", "--n_threads", "{threads}", "--n_ctx", "{context}",
            ),
        ),
        LanguageEngine(
            name="openvino",
            modules=("openvino_genai", "openvino_tokenizers", "optimum", "nncf", "torch", "transformers"),
            packages=("openvino", "openvino-genai", "optimum-intel", "nncf"),
            module="language.openvino_engine",
        ),
        LanguageEngine(
            name="pytorch",
            modules=("torch", "transformers", "torchao"),
            packages=("torch", "transformers", "torchao"),
            module="language.pytorch_engine",
            gpu_precisions=("fp32", "bf16", "int8", "int4"),
        ),
        LanguageEngine(
            name="vllm",
            modules=("vllm",),
            packages=("vllm", "torch"),
            module="language.vllm_engine",
            precisions=(),
            gpu_precisions=("bf16", "fp8", "int4", "fp32"),
            encodes=False,
            server=(
                "{python}", "-m", "vllm.entrypoints.openai.api_server", "--model", "{folder}",
                "--served-model-name", "model", "--host", "127.0.0.1", "--port", "{port}",
            ),
        ),
    )
}  # fmt: skip


def product_dtype(precision: str, device: str) -> str:
    """Return the data type whose peak a precision is compared with: bf16 where that is to be had."""
    has_bf16 = device == "cuda" or bool(hardware.BF16_FLAGS & set(hardware.cpu_flags()))
    return "bf16" if has_bf16 and precision != "fp32" else "fp32"
