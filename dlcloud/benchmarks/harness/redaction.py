"""Keep secrets out of the records: the launcher's, values whose name looks secret, passwords in addresses."""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "(hidden)"
MASK = "***"
MASKED_LENGTH = 8
NAMES = "DLCLOUD_SECRETS"
"""The variable with the names of the variables that are secrets."""

_WORD = r"(?:TOKEN|(?:KEY|SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIAL)S?)"
_NAME = re.compile(rf"{_WORD}(?=$|[_-])|API_?KEY", re.IGNORECASE)
_ASSIGNED = re.compile(rf"([\w-]*{_WORD}(?:[_-][\w-]*)?=)(\"[^\"]*\"|'[^']*'|\S+)", re.IGNORECASE)
_OPTION = re.compile(rf"(--?[\w-]*{_WORD}(?:[_-][\w-]*)?\s+)(\"[^\"]*\"|'[^']*'|[^\s-]\S*)", re.IGNORECASE)
_ADDRESS = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")


def secret_texts(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the secrets that the launcher gave, and their lines, the longest first; not those too short."""
    values = [environment.get(name, "") for name in environment.get(NAMES, "").split()]
    texts = {text for value in values for text in (value, *value.splitlines())}
    return sorted((text for text in texts if len(text) >= MASKED_LENGTH), key=len, reverse=True)


def mask(value: Any, texts: Iterable[str]) -> Any:  # noqa: ANN401 - any JSON
    """Return a value with a mask in place of the texts, wherever in it they stand."""
    if isinstance(value, str):
        for text in texts:
            value = value.replace(text, MASK)
        return value
    if isinstance(value, Mapping):
        return {mask(key, texts): mask(inner, texts) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [mask(inner, texts) for inner in value]
    return value


def is_secret_name(name: str) -> bool:
    """True if the name is that of a secret: HF_TOKEN is, MAX_TOKENS is not."""
    return _NAME.search(name) is not None


def redact_variables(environment: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the variables without secret values; None, a removed variable, stays."""
    return {
        name: value if value is None else HIDDEN if is_secret_name(name) else redact_text(value)
        for name, value in environment.items()
    }


def redact_text(given: str) -> str:
    """Return a command line or value without the secrets of `NAME=value`, `--name value` and addresses."""
    for pattern in (_ASSIGNED, _OPTION):
        given = pattern.sub(rf"\1{HIDDEN}", given)
    return _ADDRESS.sub(rf"\1{HIDDEN}@", given)


def redact_words(arguments: Iterable[str]) -> list[str]:
    """Return the words of a command line without the secrets, also after a secret option."""
    shown: list[str] = []
    secret = False
    for word in arguments:
        shown.append(HIDDEN if secret and not word.startswith("-") else redact_text(word))
        secret = word.startswith("-") and "=" not in word and is_secret_name(word)
    return shown
