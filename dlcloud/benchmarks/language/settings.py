"""The settings of language models: engines and precisions, what each needs, and the options that choose them.

The launcher's catalog, the program and its workers read it; it imports no engine.
"""

import argparse
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

from ..harness import hardware
from ..harness.benchmark import (
    BF16_FLAGS,
    BF16_NAME,
    CACHE,
    THREADS,
    TINY,
    Benchmark,
    HardwareNeed,
    Option,
    RequirementsChoice,
    positive,
    positive_float,
)
from .networks import NETWORKS

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


LORA, CHECKPOINTING, COMPILE = "lora", "checkpointing", "compile"
_NAMES = (LORA, CHECKPOINTING, COMPILE)
OPTIMIZATIONS = ", ".join(f"+{name}" for name in _NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageTraining:
    """A setting: bf16 by autocast, adapters by PEFT, activations computed again, torch.compile."""

    precision: str
    optimizations: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `bf16+lora`.

        Raises:
            ValueError: The precision or an optimization is unknown.
        """
        first, *names = text.split("+")
        if first not in {"fp32", "bf16"}:
            raise ValueError(f"a setting begins with fp32 or bf16; this is {text!r}")
        unknown = next((name for name in names if name not in _NAMES), None)
        if unknown is not None:
            raise ValueError(f"{unknown!r} in {text!r} is none of {', '.join(_NAMES)}")
        return cls(precision=first, optimizations=frozenset(names))

    @property
    def name(self) -> str:
        return "+".join([self.precision, *(name for name in _NAMES if name in self.optimizations)])


def _setting(text: str) -> str:
    """Read a training's setting and return its name, so that two spellings of one are one."""
    try:
        return LanguageTraining.parse(text).name
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


ENTRY = Benchmark(
    name="language",
    module="benchmarks.language",
    requirements="language.txt",
    summary="Compare language models on llama.cpp, OpenVINO GenAI, PyTorch and vLLM: inference in"
        " tokens/s, training (full or LoRA), or a server's load at a latency goal.",
    options=(
        Option(
            "task",
            "measurement; serving sends requests to the engine's server",
            choices=TASKS,
            default="inference",
        ),
        Option(
            "network",
            "published configurations with random weights, or text: a small network trained here, judged by "
            "its perplexity",
            choices=tuple(NETWORKS),
            default_help="qwen2.5-0.5b, or the --model alone",
            metavar="NAME",
            many=True,
            selects=True,
        ),
        Option(
            "model",
            "your own model: a folder in Hugging Face's format, or hub:OWNER/NAME (secret: HF_TOKEN)",
            metavar="FOLDER",
        ),
        Option(
            "engine",
            "engines to run in turn; vllm needs a GPU",
            choices=tuple(ENGINES),
            default=("pytorch",),
            many=True,
        ),
        Option(
            "precision",
            "data types of the weights, by each engine's own quantizer; each engine's first is "
        "its baseline",
            choices=PRECISIONS,
            default_help="all that it can run in on the machine",
            many=True,
        ),
        Option("prompt", "tokens of a prompt", type=positive, default=(512,), many=True, selects=True),
        Option(
            "generate", "tokens generated after it", type=positive, default=(64,), many=True, selects=True
        ),
        Option("streams", "sequences in parallel", type=positive, default=(1,), many=True, selects=True),
        Option(
            "device", "auto: the first GPU, if there is one", choices=("auto", "cpu", "cuda"), default="auto"
        ),
        THREADS,
        Option("compile", "run PyTorch through torch.compile", flag=True),
        Option(
            "setting",
            f"settings of training: fp32 or bf16, with any of {OPTIMIZATIONS}; the first is the baseline",
            type=_setting,
            default=("fp32", "bf16", "bf16+lora"),
            metavar="SETTING",
            many=True,
        ),
        Option("batch", "sequences a training step", type=positive, default=4),
        Option("length", "tokens of each of them", type=positive, default=256),
        Option(
            "rate",
            "requests a second that a server is sent, as a Poisson process; the highest that meets the goal "
            "counts",
            type=positive_float,
            default=(0.25, 0.5, 1.0, 2.0, 4.0),
            metavar="PER_S",
            many=True,
        ),
        Option("requests", "requests at each rate", type=positive, default=40),
        Option(
            "first-token-ms",
            "the goal: 95 % of requests have their first token by then",
            type=positive_float,
            default=200.0,
            metavar="MS",
        ),
        Option("endpoint", "an OpenAI-compatible server that runs already", metavar="URL"),
        CACHE,
    ),
    needs=(
        HardwareNeed(memory_gib=8),
        HardwareNeed(given=("device", "cuda"), gpu=True),
        HardwareNeed(given=("engine", "vllm"), gpu=True),
        HardwareNeed(setting="bf16", flags=BF16_FLAGS, flags_name=BF16_NAME),
    ),
    sweep={"network": "qwen2.5-0.5b", "engine": "pytorch", "prompt": "512", "generate": "64"},
    only_if_named=True,
    tiny={
        "network": "tiny", "prompt": "16", "generate": "8", "batch": "2", "length": "16", "rate": "4",
        "requests": "6", "first-token-ms": "60000", **TINY,
    },
    case_s=175.0,  # of a network's prompts and its generation together
    tiny_s=60.0,
    choices=(
        RequirementsChoice(parameter="engine", value="llamacpp", requirements="language_llamacpp.txt"),
        RequirementsChoice(parameter="engine", value="vllm", requirements="language_vllm.txt"),
    ),
)  # fmt: skip


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments; a faulty one ends the program with status 2, as argparse does."""
    parser = ENTRY.parser()
    arguments = parser.parse_args(argv)
    arguments.network = arguments.network or ([] if arguments.model else ["qwen2.5-0.5b"])
    arguments.network += [arguments.model] if arguments.model else []
    for repeated in ("network", "engine", "prompt", "generate", "streams", "setting"):
        setattr(arguments, repeated, list(dict.fromkeys(getattr(arguments, repeated))))
    arguments.rate = sorted(set(arguments.rate))
    if "vllm" in arguments.engine and len(arguments.engine) > 1:
        parser.error("argument --engine: vllm has its own packages; run it alone")
    if arguments.endpoint is not None and arguments.task != "serving":
        parser.error("--endpoint belongs to --task serving")
    if arguments.task == "serving" and arguments.endpoint is None:
        without = [name for name in arguments.engine if not ENGINES[name].server]
        if without:
            served = ", ".join(name for name, engine in ENGINES.items() if engine.server)
            parser.error(
                f"argument --engine: {', '.join(without)} has no server here; these have: {served}; "
                "of any other, give the --endpoint"
            )
    arguments.threads = arguments.threads or hardware.physical_cores()
    arguments.cache = arguments.cache.expanduser()
    return arguments
