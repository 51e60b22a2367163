"""Globs of relative names: `*` within one folder level, `**` over any number of them."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase


def matches(name: str, patterns: Iterable[str]) -> bool:
    """True if a relative name matches any glob."""
    parts = name.split("/")
    return any(_parts_match(parts, pattern.removeprefix("./").split("/")) for pattern in patterns)


def _parts_match(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_parts_match(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _parts_match(parts[1:], pattern[1:])
