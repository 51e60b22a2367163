"""Keep secrets out of the records: values of what looks secret by its name, and passwords in addresses."""

import re
from collections.abc import Iterable, Mapping

HIDDEN = "(hidden)"

_WORD = r"(?:TOKEN|(?:KEY|SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIAL)S?)"
_NAME = re.compile(rf"{_WORD}(?=$|[_-])|API_?KEY", re.IGNORECASE)
_ASSIGNED = re.compile(rf"([\w-]*{_WORD}(?:[_-][\w-]*)?=)(\"[^\"]*\"|'[^']*'|\S+)", re.IGNORECASE)
_OPTION = re.compile(rf"(--?[\w-]*{_WORD}(?:[_-][\w-]*)?\s+)(\"[^\"]*\"|'[^']*'|[^\s-]\S*)", re.IGNORECASE)
_ADDRESS = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")


def looks_secret(name: str) -> bool:
    """Tell whether a variable or option of this name holds a secret: HF_TOKEN does, MAX_TOKENS does not."""
    return _NAME.search(name) is not None


def variables(environment: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return variables without the values that must not be recorded; None, one taken away, stays."""
    return {
        name: value if value is None else HIDDEN if looks_secret(name) else text(value)
        for name, value in environment.items()
    }


def text(given: str) -> str:
    """Return a command line or value without what `NAME=value`, `--name value` or an address tells."""
    for pattern in (_ASSIGNED, _OPTION):
        given = pattern.sub(rf"\1{HIDDEN}", given)
    return _ADDRESS.sub(rf"\1{HIDDEN}@", given)


def words(arguments: Iterable[str]) -> list[str]:
    """Return the words of a command line, the word after a secret option hidden."""
    shown: list[str] = []
    secret = False
    for word in arguments:
        shown.append(HIDDEN if secret and not word.startswith("-") else text(word))
        secret = word.startswith("-") and "=" not in word and looks_secret(word)
    return shown
