"""What a job is like: what a user says of it, and the weights of reference jobs that follow.

The logarithm of a language model's throughput on all types is a Gaussian process over jobs, too: over whether
it generates, the size of its model and the number of its tokens, with trends beyond the references (kriging).
Of a job without a description much is possible: all points of a grid of language models, each other reference
itself, a mixture of those that use one thread, or of those that use all, and a simple rule. Its measurements
then say which.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import exp, log2
from typing import Any

from dlcloud.model.errors import RecipeError
from dlcloud.prediction.linear import factor, solve_lower, solve_upper
from dlcloud.prediction.measured_types import RULE, Kind, Reference

SIZES = tuple(2**power for power in range(26, 37))
"""Bytes of the models that a job without a description may have."""
TOKENS = (16, 128, 1024)
GIB = 2**30
DESCRIBED_FREEDOM = 12.0
"""How far a described job may depart from what it resembles: types that are chosen with it tell less.

Source: least error on types of two of the four parts of `tests/performance/prediction.py`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resemblance:
    """One thing that the job can be.

    Attributes:
        probability: That it is this one.
        kind: Which deviation of types it has.
        weights: Of the references' shapes; negative ones where a trend continues beyond them.
        variance: Scale of what types share in addition to these shapes.
        is_described: It was described; else it is one of many things that the job can be.
        scatter: How far it departs from the weighted mean in the directions in which the references do.
    """

    probability: float
    kind: Kind
    weights: tuple[float, ...]
    variance: float
    is_described: bool = False
    scatter: float = 0.0

    @property
    def free_variance(self) -> float:
        """Return the variance that measurements may show."""
        return self.variance * (DESCRIBED_FREEDOM if self.is_described else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKernel:
    """How two jobs vary together: lengths in doublings, variances of trends and of what is a reference's own.

    Sizes far above `overhead_bytes` are alike: there a step takes as long as its bytes or operations, below
    it mostly as long as its threads wait for each other.

    Source: least error on the data that `tests/performance/prediction.py` reads.
    """

    overhead_bytes: float
    kind: float
    size: float
    tokens: float
    smooth: float
    size_trend: float
    tokens_trend: float
    same_kind: float
    size_trend_of_kind: float
    own: float

    def covariance(self, one: Reference, other: Reference) -> float:
        alike = one.kind == other.kind
        sizes = [self._size(reference.file_bytes) for reference in (one, other)]
        tokens = [log2(reference.tokens) - 8 for reference in (one, other)]
        distance = (
            (not alike) / self.kind**2
            + ((sizes[0] - sizes[1]) / self.size) ** 2
            + ((tokens[0] - tokens[1]) / self.tokens) ** 2
        )
        trends = (self.size_trend + alike * self.size_trend_of_kind) * sizes[0] * sizes[1]
        trends += self.tokens_trend * tokens[0] * tokens[1]
        return 1 + self.smooth * exp(-distance / 2) + trends + alike * self.same_kind

    def _size(self, file_bytes: float) -> float:
        return log2(file_bytes / GIB * (GIB + self.overhead_bytes) / (file_bytes + self.overhead_bytes))


DESCRIBED = JobKernel(
    overhead_bytes=1e9,
    kind=0.7,
    size=1.5,
    tokens=4.0,
    smooth=0.3,
    size_trend=0.0007,
    tokens_trend=0.009,
    same_kind=0.9,
    size_trend_of_kind=0.0067,
    own=0.06,
)
UNKNOWN = JobKernel(
    overhead_bytes=1e15,
    kind=0.23,
    size=2.0,
    tokens=108.0,
    smooth=0.3,
    size_trend=0.0022,
    tokens_trend=0.0003,
    same_kind=8.1,
    size_trend_of_kind=0.02,
    own=0.06,
)


PROGRAMS = {Kind.ONE_THREAD: 0.11, Kind.ALL_THREADS: 0.28}
"""The chances of mixtures of references; the references themselves, rules and language models share the rest.

Source of these and of the next ones: least error by `tests/performance/prediction.py --programs`, each
program left out, on other families than those that are kept back.
"""
ONE_OF_PROGRAMS, RULES, LANGUAGE = 0.35, 0.17, 0.09
PROGRAM_VARIANCE, PROGRAM_SCATTER, RULE_VARIANCE = 0.1, 2.0, 0.03


def resemblances(references: Sequence[Reference], description: Reference | None) -> tuple[Resemblance, ...]:
    """Return what a job can be before any measurement: what is described, else all that there is.

    A language model of unknown size (0 bytes) is one of the grid.
    """
    models = [one for one in references if one.kind.is_language]
    is_described = description is not None and description.file_bytes > 0
    kernel = DESCRIBED if is_described else UNKNOWN
    jobs = [description] if description is not None and is_described else _grid()
    lower = factor(
        [
            [kernel.covariance(a, b) + (i == j) * kernel.own for j, b in enumerate(models)]
            for i, a in enumerate(models)
        ]
    )
    likened = [_resemblance(job, references, kernel, lower) for job in jobs]
    others = _programs(references) if description is None else ()
    share = (LANGUAGE if others else 1) / len(likened)
    return (*(replace(one, probability=share, is_described=is_described) for one in likened), *others)


def _programs(references: Sequence[Reference]) -> tuple[Resemblance, ...]:
    """Return what a job can be that is no language model; nothing if no reference is such a one."""
    programs = [j for j, one in enumerate(references) if not one.kind.is_language]
    rules = [j for j in programs if references[j].program == RULE]
    places = [j for j in programs if j not in rules]
    possible = []
    for kind, probability in PROGRAMS.items():
        mixed = [j for j in places if references[j].kind is kind]
        if mixed:
            weights = tuple((j in mixed) / len(mixed) for j in range(len(references)))
            possible.append(_program(kind, weights, probability, PROGRAM_SCATTER))
    for alone, chance, variance in (
        (places, ONE_OF_PROGRAMS, PROGRAM_VARIANCE),
        (rules, RULES, RULE_VARIANCE),
    ):
        for place in alone:
            weights = tuple(float(j == place) for j in range(len(references)))
            possible.append(_program(references[place].kind, weights, chance / len(alone), variance=variance))
    return tuple(possible)


def _program(
    kind: Kind,
    weights: tuple[float, ...],
    probability: float,
    scatter: float = 0.0,
    variance: float = PROGRAM_VARIANCE,
) -> Resemblance:
    return Resemblance(
        probability=probability, kind=kind, weights=weights, variance=variance, scatter=scatter
    )


def _grid() -> list[Reference]:
    return [
        Reference(name="a job", kind=kind, file_bytes=size, tokens=tokens)
        for kind, size, tokens in product((Kind.PROMPT, Kind.GENERATION), SIZES, TOKENS)
    ]


def _resemblance(
    job: Reference, references: Sequence[Reference], kernel: JobKernel, lower: Sequence[Sequence[float]]
) -> Resemblance:
    """Return what a language model resembles: other programs have no weight."""
    models = [one for one in references if one.kind.is_language]
    half = solve_lower(lower, [kernel.covariance(job, reference) for reference in models])
    weights = iter(solve_upper(lower, half))
    return Resemblance(
        probability=1.0,
        kind=job.kind,
        weights=tuple(next(weights) if one.kind.is_language else 0.0 for one in references),
        variance=max(kernel.covariance(job, job) - sum(x * x for x in half), 0.0),
    )


BYTES_PER_PARAMETER = 0.606
"""Of the reference models, quantized to four bits and some. Source: size and parameters of Llama 2 7B."""
DEFAULT_TOKENS = 512
MOST_TOKENS = 10**9
_NUMBER = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kKmMbBgG]?)")
_FACTORS = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
_LARGEST = 1e14


def read_tokens(text: str) -> int | None:
    """Return the number of tokens of `--tokens`; None if none is stated.

    Raises:
        RecipeError: It is no number above 0.
    """
    if text and not (text.isascii() and text.isdigit() and 0 < int(text) <= MOST_TOKENS):
        raise RecipeError(f"--tokens {text}: not a number of tokens", "such as 512; 1000/200 needs --model")
    return int(text) if text else None


def read_description(parameters: str, tokens: int | None, *, generates: bool) -> Reference | None:
    """Return what a job resembles; None if nothing is said of it.

    Args:
        parameters: Of its model: `7B`; `unknown` for a language model of any size; empty if not stated.
        tokens: Items of one sequence that are computed together.
        generates: True if each token is computed alone, so that memory bounds.

    Raises:
        RecipeError: The number is none, or tokens are stated without parameters.
    """
    if not parameters:
        if tokens is not None or generates:
            raise RecipeError("--tokens and --generates describe a model", "state its --parameters, too")
        return None
    kind = Kind.GENERATION if generates else Kind.PROMPT
    if parameters.strip().lower() == "unknown":
        return Reference(name="the job", kind=kind, tokens=tokens or DEFAULT_TOKENS)
    match = _NUMBER.fullmatch(parameters.strip())
    count = float(match[1]) * _FACTORS[match[2].lower()] if match else 0.0
    if not 1 <= count <= _LARGEST:
        raise RecipeError(f"--parameters {parameters}: not a number of parameters", "such as 25.6M, or 7B")
    return Reference(
        name="the job",
        kind=kind,
        file_bytes=max(1, round(count * BYTES_PER_PARAMETER)),
        tokens=tokens or DEFAULT_TOKENS,
    )


def describe_by_facts(facts: Mapping[str, Any], items: str = "") -> Reference | None:
    """Return what a result resembles by its facts, those of the language benchmark.

    Another job that counts tokens (`items`) is a language model of any size; None of any other job.
    """
    names = ("prompt_tokens", "model_bytes", "generated_tokens", "streams")
    numbers = [facts.get(name, 1) for name in names]
    if not {"prompt_tokens", "model_bytes"} <= facts.keys() or not all(
        isinstance(n, int) and n > 0 for n in numbers
    ):
        return read_description("unknown", None, generates=False) if items == "tokens" else None
    prompt, size, generated, streams = numbers
    return Reference(
        name="the job",
        kind=Kind.GENERATION if "generated_tokens" in facts else Kind.PROMPT,
        file_bytes=size,
        tokens=generated if "generated_tokens" in facts else prompt * streams,
    )
