"""Keep secrets out of the records: values whose name looks secret, and passwords in addresses."""

import re
from collections.abc import Iterable, Mapping

HIDDEN = "(hidden)"

_WORD = r"(?:TOKEN|(?:KEY|SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIAL)S?)"
_NAME = re.compile(rf"{_WORD}(?=$|[_-])|API_?KEY", re.IGNORECASE)
_ASSIGNED = re.compile(rf"((?<![\w-])[\w-]*{_WORD}(?:[_-][\w-]*)?=)(\"[^\"]*\"|'[^']*'|\S+)", re.IGNORECASE)
_OPTION = re.compile(rf"(--?[\w-]*{_WORD}(?:[_-][\w-]*)?\s+)(\"[^\"]*\"|'[^']*'|[^\s-]\S*)", re.IGNORECASE)
_ADDRESS = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")


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
