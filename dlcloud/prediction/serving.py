"""What a language model does on GPU and CPU types, of measurements that others published.

Data-center GPUs: the time to the first token and between tokens are sums of what bounds them (bytes read,
operations, layers, exchanges between GPUs). `tests/performance/serving.py` fits their factors to published
results of servers; departures of near results of the same model are added. Other types: llama.cpp's recorded
speed with one request at a time, interpolated over the size of the model. A type without such ground is
refused.
"""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import product
from math import dist, exp, log, sqrt
from operator import mul
from typing import Any

from dlcloud.model.errors import RecipeError
from dlcloud.prediction.measured_types import Kind, Reference

BYTES = {"bf16": 2.0, "fp8": 1.0, "int4": 0.55}
"""Of one parameter; four bits have scales."""
WIDE = 0.2
"""The share of what each token uses that stays in 16 bits next to four: attention, the last layer.

Source: least error of the five models of development by `tests/performance/serving.py`.
"""
LLAMA_CPP = "llama.cpp"
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SERVERS = ("sglang", "trtllm", "vllm")
USED_MEMORY = 0.9
SHRINK = 0.3
"""What draws departures to 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model, in billions of parameters: all, and those that one token uses; bytes of cache of a token.

    Over `cache_heads` GPUs at most the cache is divided; more have copies. A latent cache is one head.
    """

    name: str
    parameters: float
    active: float
    layers: int
    cache_bytes: int
    cache_heads: int = 8

    @property
    def hidden(self) -> float:
        """The width of its layers, if they were dense."""
        return sqrt(self.active * 1e9 / 12 / self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Bandwidth of memory and to other GPUs in GB/s, dense 16-bit TFLOPS, GB, factors of fp8 and 4 bits."""

    bandwidth: float
    tflops: float
    memory: float
    link: float = 450
    fp8: float = 2.0
    four_bits: float = 2.0


MODELS = (
    ServedModel(name="DeepSeek-R1", parameters=671, active=37, layers=61, cache_bytes=70272, cache_heads=1),
    ServedModel(name="MiniMax-M2.5", parameters=230, active=10, layers=62, cache_bytes=253952),
    ServedModel(name="gpt-oss-120b", parameters=117, active=5.1, layers=36, cache_bytes=73728),
    ServedModel(name="Llama-3.1-70B", parameters=70.6, active=70.6, layers=80, cache_bytes=327680),
    ServedModel(name="Llama-3.1-8B", parameters=8.03, active=8.03, layers=32, cache_bytes=131072),
    ServedModel(name="Qwen3-32B", parameters=32.8, active=32.8, layers=64, cache_bytes=262144),
    ServedModel(
        name="Qwen3-235B-A22B", parameters=235, active=22, layers=94, cache_bytes=192512, cache_heads=4
    ),
    ServedModel(
        name="Qwen3.5-397B-A17B", parameters=397, active=17, layers=60, cache_bytes=30720, cache_heads=2
    ),
    ServedModel(name="Kimi-K2.5", parameters=1027, active=32, layers=61, cache_bytes=70272, cache_heads=1),
    ServedModel(name="GLM-5", parameters=744, active=40, layers=78, cache_bytes=89856, cache_heads=1),
)
"""By their published configurations."""
GPUS = {
    "A100": Gpu(bandwidth=1555, tflops=312, memory=40, link=300, fp8=0.0, four_bits=1.0),
    "H100": Gpu(bandwidth=3350, tflops=989, memory=80),
    "H200": Gpu(bandwidth=4800, tflops=989, memory=141),
    "B200": Gpu(bandwidth=8000, tflops=2250, memory=180, link=900, four_bits=4.0),
    "B300": Gpu(bandwidth=8000, tflops=2250, memory=270, link=900, four_bits=4.0),
}
"""By data sheets, unverified."""


def read_model(text: str) -> ServedModel:
    """Return the model that a name, or a number of parameters such as 8B or 235B-A22B, states.

    Raises:
        RecipeError: It is neither.
    """
    plain = text.strip().rpartition("/")[2].lower()
    for one in MODELS:
        if plain and (plain == one.name.lower() or plain.startswith(one.name.lower() + "-")):
            return one
    match = re.fullmatch(r"(\d{1,5}(?:\.\d{1,3})?)b(?:-a(\d{1,5}(?:\.\d{1,3})?)b)?", plain)
    parameters = float(match[1]) if match else 0.0
    active = float(match[2]) if match and match[2] else parameters
    if not 0 < active <= parameters:
        names = ", ".join(one.name for one in MODELS)
        hint = f"state 8B or 235B-A22B, the path of its config.json, or one of {names}"
        raise RecipeError(f"--model {text}: unknown", hint)
    layers = max(4, round(32 * (active / 8) ** 0.42))
    return ServedModel(
        name=text, parameters=parameters, active=active, layers=layers, cache_bytes=layers * 4096
    )


ALIKE = 0.03
"""Of parameters: a model fine-tuned from a listed one is as fast."""


def parse_config(text: str, name: str) -> ServedModel:
    """Return the model that a config.json in Hugging Face's format describes; a listed one if of its sizes.

    Raises:
        RecipeError: It is none.
    """
    try:
        return _described(json.loads(text), name)
    except (ValueError, TypeError, AttributeError, KeyError, ArithmeticError) as e:
        raise RecipeError(
            f"--model {name}: not the configuration of a language model ({type(e).__name__}: {e})",
            "it needs num_hidden_layers, hidden_size, num_attention_heads, intermediate_size, vocab_size",
        ) from e


def _described(config: Mapping[str, Any], name: str) -> ServedModel:
    config = config.get("text_config", config)
    number = {key: int(value) for key, value in config.items() if isinstance(value, int | float)}
    layers, hidden = number["num_hidden_layers"], number["hidden_size"]
    heads, expert = number["num_attention_heads"], number.get("moe_intermediate_size")
    dense = number["intermediate_size"] if expert is None else number.get("intermediate_size", expert)
    vocabulary = number["vocab_size"] * hidden * (1 if config.get("tie_word_embeddings") else 2)
    head, key_heads = number.get("head_dim") or hidden // heads, number.get("num_key_value_heads", heads)
    attention, cached = 2 * hidden * head * (heads + key_heads), 2 * key_heads * head
    if latent := number.get("kv_lora_rank"):
        rope, plain, value = (number[f"{part}_head_dim"] for part in ("qk_rope", "qk_nope", "v"))
        query, cached = number.get("q_lora_rank") or hidden, latent + rope
        attention = hidden * (query + cached + heads * value)
        attention += heads * (query * (plain + rope) + latent * (plain + value))
    cache_heads = 1 if latent else key_heads
    experts = max(number.get(key, 0) for key in ("n_routed_experts", "num_experts", "num_local_experts"))
    plain_layers = number.get("first_k_dense_replace", 0) if experts else layers
    shared = number.get("shared_expert_intermediate_size", number.get("n_shared_experts", 0) * (expert or 0))
    common = layers * attention + plain_layers * 3 * hidden * dense + vocabulary
    common += (layers - plain_layers) * 3 * hidden * shared
    one = (layers - plain_layers) * 3 * hidden * (expert or dense)
    used = number.get("num_experts_per_tok", number.get("experts_per_token", 1)) if experts else 0
    parameters = (common + experts * one) / 1e9
    cache_bytes = 2 * cached * layers // number.get("full_attention_interval", 1)
    for listed in MODELS:
        alike = abs(parameters / listed.parameters - 1) < ALIKE
        if alike and (layers, cache_bytes) == (listed.layers, listed.cache_bytes):
            return listed
    active = (common + used * one) / 1e9
    return ServedModel(
        name=name,
        parameters=parameters,
        active=active,
        layers=layers,
        cache_bytes=cache_bytes,
        cache_heads=cache_heads,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is asked: a model in a precision, tokens of a request and its answer, goals in seconds."""

    model: ServedModel
    precision: str
    prompt: int
    answer: int
    first_token_s: float
    token_s: float


DEFAULT_TOKENS = "1000/200"
MOST_TOKENS = 1 << 20


def read_demand(model: ServedModel, precision: str, first_token: str, token: str, tokens: str) -> Demand:
    """Return what is asked by the words of a command line.

    Raises:
        RecipeError: One is none of its kind.
    """
    match = re.fullmatch(r"(\d{1,7})/(\d{1,7})", tokens or DEFAULT_TOKENS)
    prompt, answer = (int(match[1]), int(match[2])) if match else (0, 0)
    if not (0 < prompt <= MOST_TOKENS and 0 < answer <= MOST_TOKENS):
        raise RecipeError(f"--tokens {tokens}: not tokens read and written", f"such as {DEFAULT_TOKENS}")
    return Demand(
        model=model,
        precision=precision,
        prompt=prompt,
        answer=answer,
        first_token_s=_seconds("--ttft", first_token),
        token_s=_seconds("--tpot", token),
    )


def _seconds(option: str, text: str) -> float:
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?) ?(ms|s)", text.strip())
    seconds = float(match[1]) / (1000 if match[2] == "ms" else 1) if match else 0.0
    if seconds <= 0:
        raise RecipeError(f"{option} {text}: not a time", "such as 200ms, or 1.5s")
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One way to serve: server, the GPUs that one copy of the model uses, and its requests at a time."""

    gpu: str
    gpus: int
    concurrency: int
    server: str


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """One published result of a server; times in seconds."""

    model: str
    gpu: str
    precision: str
    gpus: int
    concurrency: int
    server: str
    prompt: int
    answer: int
    first_token_s: float
    token_s: float

    @cached_property
    def place(self) -> tuple[float, ...]:
        return place_of(self.concurrency, self.prompt, self.answer, self.gpus)


def place_of(concurrency: int, prompt: int, answer: int, gpus: int) -> tuple[float, ...]:
    """Return where a result lies: logarithms, in units in which distance matters alike."""
    return log(concurrency) / 1.2, log(prompt), log(answer), log(gpus) / 0.8


def parts_of(demand: Demand, setup: Setup) -> tuple[list[float], list[float]]:
    """Return the seconds, up to factors, that make up a token, and the first token but for others' steps."""
    model, gpu = demand.model, GPUS[setup.gpu]
    flops = {"bf16": 1.0, "fp8": gpu.fp8, "int4": gpu.four_bits}[demand.precision] * gpu.tflops * 1e12
    flops *= setup.gpus
    bandwidth, many = gpu.bandwidth * 1e9 * setup.gpus, setup.concurrency
    is_sparse, is_shared = float(model.active < model.parameters), float(setup.gpus > 1)
    untouched = (1 - model.active / model.parameters) ** (many - 1) if is_sparse else 0.0
    narrow = BYTES[demand.precision]
    mixed = narrow + (WIDE * (BYTES["bf16"] - narrow) if demand.precision == "int4" else 0.0)
    weights = model.active * 1e9 * mixed / bandwidth
    others = (model.parameters - model.active) * (1 - untouched) * 1e9 * narrow / bandwidth
    layers = model.layers * 1e-6
    cache = many * (demand.prompt + demand.answer / 2) * model.cache_bytes / 2
    exchange = is_shared * model.layers * model.hidden * 4e-9 / gpu.link
    prompt_s = 2e9 * model.active * demand.prompt / flops
    turn = many / demand.answer  # prompts that are read while one token of each request is written
    token = [
        *(weights, others, cache / (gpu.bandwidth * 1e9 * min(setup.gpus, model.cache_heads))),
        *(layers, layers * is_shared, layers * many**0.5, layers * is_sparse),
        *(turn * prompt_s, turn * prompt_s * is_sparse, turn * layers * 10, turn * exchange * demand.prompt),
        many * exchange,
    ]
    first = [
        *(prompt_s, prompt_s * is_sparse, prompt_s * many, prompt_s * many * is_sparse),
        *(layers, layers * is_shared, demand.prompt * layers * 1e-3),
        *(1e-2, many * 1e-3),
    ]
    return token, first


@dataclass(frozen=True, kw_only=True)
class ServingTable:
    """Published results, with the factors of the parts of a token and, by server, of the first token."""

    rows: Sequence[PublishedRow]
    token: Sequence[float]
    first: Mapping[str, Sequence[float]]

    @cached_property
    def departures(self) -> Mapping[str, list[tuple[PublishedRow, float, float]]]:
        """How far each result is from the sum of its parts, as logarithms, by model."""
        result: dict[str, list[tuple[PublishedRow, float, float]]] = {}
        for row in self.rows:
            token, first = self.sums(demand_of(row), setup_of(row))
            departure = (row, log(row.token_s / token), log(row.first_token_s / first))
            result.setdefault(row.model, []).append(departure)
        return result

    def sums(self, demand: Demand, setup: Setup) -> tuple[float, float]:
        parts, first = parts_of(demand, setup)
        token = sum(map(mul, self.token, parts))
        # A request also waits for steps of the others.
        return token, sum(map(mul, self.first[setup.server], (*first, token)))

    def estimate(self, demand: Demand, setup: Setup) -> tuple[float, float, bool]:
        """Return the seconds of a token and of the first token, and whether they were published as such."""
        token, first = self.sums(demand, setup)
        place = place_of(setup.concurrency, demand.prompt, demand.answer, setup.gpus)
        weights, token_part, first_part = SHRINK, 0.0, 0.0
        for row, of_token, of_first in self.departures.get(demand.model.name, ()):
            distance = dist(row.place, place) ** 2
            differs = (row.gpu != setup.gpu) + (row.precision != demand.precision)
            differs += 2 * (row.server != setup.server)
            if not distance and not differs:
                return row.token_s, row.first_token_s, True
            weight = exp(-distance - differs)
            weights += weight
            token_part += weight * of_token
            first_part += weight * of_first
        return token * exp(token_part / weights), first * exp(first_part / weights), False


def demand_of(row: PublishedRow) -> Demand:
    model = next(one for one in MODELS if one.name == row.model)
    return Demand(
        model=model,
        precision=row.precision,
        prompt=row.prompt,
        answer=row.answer,
        first_token_s=0.0,
        token_s=0.0,
    )


def setup_of(row: PublishedRow) -> Setup:
    return Setup(gpu=row.gpu, gpus=row.gpus, concurrency=row.concurrency, server=row.server)


def parse_serving(text: str) -> ServingTable:
    """Return the table of its text: a comment, lines of factors, a head, a line a result (in ms)."""
    lines = text.splitlines()
    head = 2 + len(SERVERS)
    factors = {line.split()[1]: [float(word) for word in line.split()[2:]] for line in lines[1:head]}
    rows = [
        PublishedRow(
            model=row["model"],
            gpu=row["gpu"],
            precision=row["precision"],
            gpus=int(row["gpus"]),
            concurrency=int(row["concurrency"]),
            server=row["server"],
            prompt=int(row["prompt"]),
            answer=int(row["answer"]),
            first_token_s=float(row["first_token_ms"]) / 1000,
            token_s=float(row["token_ms"]) / 1000,
        )
        for row in csv.DictReader(lines[head:])
    ]
    return ServingTable(rows=rows, token=factors.pop("token"), first=factors)


class Source(StrEnum):
    """What a figure rests on."""

    MEASURED = "measured"
    PUBLISHED = "published"
    PREDICTED = "predicted"


SERVER_ERROR, GPU_ERROR, CPU_ERROR = 0.40, 0.31, 0.80
"""90 % of the errors of a token, as logarithms: of a model or precision that was left out, and of a size of
model that llama-bench did not run, on GPU and CPU types.

Source: `tests/performance/serving.py`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedType:
    """How a type serves best within the goals; `error` is half of its 90 % interval, as a logarithm."""

    instance_type: str
    source: Source
    setup: str
    tokens_s: float
    first_token_s: float
    token_s: float
    error: float | None

    def on(self, name: str) -> "ServedType":
        """Return the same of another type with the same GPUs."""
        return replace(self, instance_type=name)


def serve_on_gpus(table: ServingTable, demand: Demand, name: str, gpu: str, count: int) -> ServedType | str:
    """Return how a type with these GPUs serves; else why it does not."""
    sheet = GPUS[gpu]
    if demand.precision == "fp8" and not sheet.fp8:
        return f"{gpu} has no fp8"
    size = demand.model.parameters * BYTES[demand.precision]
    cache = demand.model.cache_bytes * (demand.prompt + demand.answer) / 1e9
    best, fits = None, False
    for gpus, server in product((1, 2, 4, 8), SERVERS):
        for many in CONCURRENCIES if gpus <= count else ():
            if size / gpus + many * cache / min(gpus, demand.model.cache_heads) > sheet.memory * USED_MEMORY:
                break
            fits = True
            setup = Setup(gpu=gpu, gpus=gpus, concurrency=many, server=server)
            token, first, is_published = table.estimate(demand, setup)
            if token > demand.token_s or first > demand.first_token_s:
                break  # more requests at a time only take longer
            copies = count // gpus
            rate = copies * many * demand.answer / (first + demand.answer * token)
            if best is None or rate > best.tokens_s:
                best = ServedType(
                    instance_type=name,
                    source=Source.PUBLISHED if is_published else Source.PREDICTED,
                    setup=f"{copies} x {gpus} {gpu}, {many} each, {server}",
                    tokens_s=rate,
                    first_token_s=first,
                    token_s=token,
                    error=None if is_published else SERVER_ERROR,
                )
    return best or ("the goals are missed" if fits else "the model does not fit into its memory")


def speeds_of(
    references: Sequence[Reference], levels: Sequence[float | None], demand: Demand
) -> tuple[float, float] | None:
    """Return tokens/s that llama.cpp writes and reads for one request; None if too little was recorded.

    Args:
        references: Tests of language models.
        levels: The logarithm of each one's tokens/s on a type; None if it was not run.
        demand: What is asked.
    """
    size = demand.model.active * 1e9
    token = speed_of(references, levels, Kind.GENERATION, demand.answer, size * BYTES[demand.precision])
    prompt = speed_of(references, levels, Kind.PROMPT, demand.prompt, size * BYTES["int4"])
    return None if token is None or prompt is None else (exp(token), exp(prompt))


def serve_one_request(
    speeds: tuple[float, float] | None, demand: Demand, name: str, error: float
) -> ServedType | str:
    """Return how llama.cpp answers one request at a time with these speeds, else why it does not."""
    if speeds is None:
        return "too little was recorded on it"
    token_s, first_s = 1 / speeds[0], demand.prompt / speeds[1]
    if token_s > demand.token_s or first_s > demand.first_token_s:
        return "the goals are missed"
    return ServedType(
        instance_type=name,
        source=Source.PREDICTED,
        setup=LLAMA_CPP,
        tokens_s=demand.answer / (first_s + demand.answer * token_s),
        first_token_s=first_s,
        token_s=token_s,
        error=error,
    )


def speed_of(
    references: Sequence[Reference],
    levels: Sequence[float | None],
    kind: Kind,
    tokens: int,
    file_bytes: float,
) -> float | None:
    """Return the logarithm of tokens/s, interpolated over sizes; beyond the largest as bytes grow."""
    nearest: dict[int, tuple[float, float]] = {}
    for one, level in zip(references, levels, strict=True):
        if one.kind is kind and level is not None:
            apart = abs(log(one.tokens / tokens))
            if one.file_bytes not in nearest or apart < nearest[one.file_bytes][0]:
                nearest[one.file_bytes] = (apart, level)
    sizes = sorted(nearest)
    if len(sizes) < 2:  # noqa: PLR2004  a line needs two
        return None
    if file_bytes >= sizes[-1]:
        return nearest[sizes[-1]][1] - log(file_bytes / sizes[-1])
    above = next(i for i in range(1, len(sizes)) if file_bytes < sizes[i] or i == len(sizes) - 1)
    low, high = sizes[above - 1], sizes[above]
    share = max(0.0, log(file_bytes / low) / log(high / low))
    return nearest[low][1] + share * (nearest[high][1] - nearest[low][1])


def parse_gpu_levels(text: str) -> tuple[tuple[Reference, ...], Mapping[str, tuple[float | None, ...]]]:
    """Return the tests of llama.cpp on GPU types, and the levels by type."""
    lines = csv.reader(line for line in text.splitlines() if not line.startswith("#"))
    head = next(lines)[1:]
    references = []
    for column in head:
        name, kind, size, tokens = column.split(":")
        references.append(Reference(name=name, kind=Kind(kind), file_bytes=int(size), tokens=int(tokens)))
    return tuple(references), {
        name: tuple(float(cell) / 100 if cell else None for cell in cells) for name, *cells in lines
    }
