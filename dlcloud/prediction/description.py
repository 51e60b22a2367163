"""What a user can say of a job that makes its prediction better: its parameters and tokens."""

import re
from collections.abc import Mapping
from typing import Any

from dlcloud.model.errors import RecipeError
from dlcloud.prediction.measured_types import Reference

BYTES_PER_PARAMETER = 0.606
"""Of the reference models, quantized to four bits and some. Source: size and parameters of Llama 2 7B."""
DEFAULT_TOKENS = 512
_NUMBER = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kKmMbBgG]?)")
_FACTORS = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
_LARGEST = 1e14


def read_description(parameters: str, tokens: int | None, *, generates: bool) -> Reference | None:
    """Return what a job resembles; None if nothing is said of it.

    Args:
        parameters: Of its model: `7B`, `25.6M`; empty if not stated.
        tokens: Items of one sequence that are computed together.
        generates: True if each token is computed alone, so that memory bounds.

    Raises:
        RecipeError: The number is none, or tokens are stated without parameters.
    """
    if not parameters:
        if tokens is not None or generates:
            raise RecipeError("--tokens and --generates describe a model", "state its --parameters, too")
        return None
    match = _NUMBER.fullmatch(parameters.strip())
    count = float(match[1]) * _FACTORS[match[2].lower()] if match else 0.0
    if not 1 <= count <= _LARGEST:
        raise RecipeError(f"--parameters {parameters}: not a number of parameters", "such as 25.6M, or 7B")
    return Reference(
        name="the job",
        is_generation=generates,
        file_bytes=max(1, round(count * BYTES_PER_PARAMETER)),
        tokens=tokens or DEFAULT_TOKENS,
    )


def describe_by_facts(facts: Mapping[str, Any]) -> Reference | None:
    """Return what a result of the language benchmark resembles, by its own facts; None of any other job."""
    names = ("prompt_tokens", "model_bytes", "generated_tokens", "streams")
    numbers = [facts.get(name, 1) for name in names]
    if not {"prompt_tokens", "model_bytes"} <= facts.keys() or not all(
        isinstance(n, int) and n > 0 for n in numbers
    ):
        return None
    prompt, size, generated, streams = numbers
    return Reference(
        name="the job",
        is_generation="generated_tokens" in facts,
        file_bytes=size,
        tokens=generated if "generated_tokens" in facts else prompt * streams,
    )
