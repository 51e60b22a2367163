"""Keep the launcher's secrets out of what a program writes: their lines and the forms that programs print.

The launcher sends this file next to `job.py`, which masks logs by it. `benchmarks/harness/masking.py` is the
same file: both packages are copied alone. It runs on Python 3.9 or newer.
"""

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, AnyStr
from urllib.parse import quote, quote_plus

MASK = "***"
MASKED_LENGTH = 8
"""Least length, in characters: a shorter secret would mask other words."""
NAMES = "DLCLOUD_SECRETS"
"""The variable with the names of the variables that are secrets."""


def secret_texts(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the forms of the secrets that the launcher gave, the longest first."""
    return masked_texts(environment.get(name, "") for name in environment.get(NAMES, "").split())


def masked_texts(secrets: Iterable[str]) -> tuple[str, ...]:
    """Return the secrets and their lines in all forms that are masked, the longest first."""
    pieces = {piece for secret in secrets for piece in (secret, *secret.splitlines())}
    texts = {form for piece in pieces if len(piece) >= MASKED_LENGTH for form in _forms(piece)}
    return tuple(sorted(texts, key=lambda text: (-len(text), text)))


def mask(value: Any, texts: Iterable[str]) -> Any:  # noqa: ANN401 - any JSON
    """Return a value with a mask in place of the texts, wherever in it they stand."""
    texts = tuple(texts)
    if isinstance(value, str):
        return mask_text(value, texts, MASK)
    if isinstance(value, Mapping):
        return {mask(key, texts): mask(inner, texts) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [mask(inner, texts) for inner in value]
    return value


def mask_text(given: AnyStr, texts: Iterable[AnyStr], replacement: AnyStr) -> AnyStr:
    """Return a text with one replacement for each run of texts that overlap."""
    shown, position = given[:0], 0
    for start, end in covered(given, texts):
        shown += given[position:start] + replacement
        position = end
    return shown + given[position:]


def covered(given: AnyStr, texts: Iterable[AnyStr]) -> list[tuple[int, int]]:
    """Return where texts stand in a text: start and end, those that overlap as one, in order."""
    spans: list[tuple[int, int]] = []
    for start, end in sorted(span for text in texts for span in _occurrences(given, text)):
        if spans and start < spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def complete_length(given: AnyStr, texts: Iterable[AnyStr]) -> int:
    """Return the length of the beginning of a text that no text can reach beyond once more follows."""
    texts = tuple(texts)
    end = len(given) - max((_begun_length(given, text) for text in texts), default=0)
    return next((start for start, stop in covered(given, texts) if start < end < stop), end)


def _occurrences(given: AnyStr, text: AnyStr) -> Iterator[tuple[int, int]]:
    start = given.find(text)
    while start >= 0:
        yield start, start + len(text)
        start = given.find(text, start + 1)


def _begun_length(given: AnyStr, text: AnyStr) -> int:
    """Return the length of the longest end of `given` with which `text` begins, but does not end."""
    start = given.find(text[:1], max(0, len(given) - len(text) + 1))
    while start >= 0 and not text.startswith(given[start:]):
        start = given.find(text[:1], start + 1)
    return len(given) - start if start >= 0 else 0


def _forms(secret: str) -> set[str]:
    """Return a secret as it is, as Python, JSON and shells quote it, and encoded for URLs and in base64."""
    quoted = repr('"' + secret)[2:-1]  # with both quotes in it, the single one is escaped
    addresses = {quote(secret, safe=""), quote(secret), quote_plus(secret)}
    raw = secret.encode(errors="surrogateescape")
    return {
        secret,
        quoted,
        quoted.replace("\\'", "'"),
        repr(raw)[2:-1],
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        secret.replace("'", "'\\''"),
        secret.replace("'", "'\"'\"'"),
        *addresses,
        *(re.sub(r"%[0-9A-F]{2}", lambda code: code[0].lower(), text) for text in addresses),
        *_base64_forms(raw),
    }


def _base64_forms(raw: bytes) -> set[str]:
    """Return the base64 of bytes, alone and inside other bytes, as in the header of basic authentication."""
    texts = {base64.b64encode(raw).decode()}
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + raw).decode()
        texts.add(encoded[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6])
    return texts | {text.translate(str.maketrans("+/", "-_")) for text in texts}
