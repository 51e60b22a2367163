"""Keep the secrets of the launcher out of what a training writes; `templates/job.py` masks its logs."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "***"
MASKED_LENGTH = 8
"""Least length, in characters: a shorter secret would mask other words."""
NAMES = "DLCLOUD_SECRETS"
"""The variable with the names of the variables that are secrets."""


def secret_texts(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the secrets and their lines, the longest first."""
    values = [environment.get(name, "") for name in environment.get(NAMES, "").split()]
    texts = {text for value in values for text in (value, repr(value)[1:-1], *value.splitlines())}
    return tuple(sorted((text for text in texts if len(text) >= MASKED_LENGTH), key=len, reverse=True))


def mask(value: Any, texts: Iterable[str]) -> Any:  # noqa: ANN401 - any JSON
    """Return a value with a mask in place of the texts, wherever in it they stand."""
    if isinstance(value, str):
        for text in texts:
            value = value.replace(text, MASK)
        return value
    if isinstance(value, Mapping):
        return {mask(key, texts): mask(inner, texts) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [mask(inner, texts) for inner in value]
    return value
