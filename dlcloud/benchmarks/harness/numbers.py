"""Read numbers in the forms in which programs print them: the one rule for throughputs, facts and metrics.

`1,234.5`, `1_000`, `1.262e+04`, `1.2k` and `93.5%` are numbers; a percentage counts in percent. A form that
may mean two things is no number: to some `12,5` is twelve and a half, to others it is two figures.
"""

import math
import re

_PREFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_FIGURES = ".0123456789"
_DIGITS = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*|(?=\.[0-9])"
_NUMBER = re.compile(rf"([+-]?(?:{_DIGITS})(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)([kKMGT]?)%?")
_BEFORE = re.compile(r"[+-]?[0-9](?:[0-9]|[,._](?=[0-9]|\Z))*(?:[eE][+-]?[0-9]*)?\Z")
_AFTER = re.compile(r"(?:[0-9]|[._](?=[0-9]))*(?P<rest>(?:,[0-9]+)*(?:\.[0-9]+)?)")
_END = re.compile(r"(?:[eE][+-]?[0-9]+)?(?:[kKMGT](?![A-Za-z]))?")
_DECIMALS = re.compile(r"\.(?!([0-9]{3})\Z)")
"""A point that cannot separate thousands, as that of `1.234` can: a comma after it separates two figures."""

_LONGEST = 60
"""Characters around a match that are looked at; what is longer is no figure."""


def read_number(text: str) -> float | None:
    """Return the finite number that a text states; None if it states none, or may mean two things."""
    match = _NUMBER.fullmatch(text.strip().rstrip("."))
    if match is None:
        return None
    number = float(match[1].replace(",", "").replace("_", "")) * _PREFIXES.get(match[2], 1)
    return number if math.isfinite(number) else None


def matched_number(match: "re.Match[str]") -> str:
    """Return what a match's group states, with what continues its number around the match.

    `([0-9.]+)` matches `12` of `12,622.33`, and `000.4` of `1,000.4`: the whole is returned. What is inside
    the match, but outside the group, is meant to be there and continues nothing.
    """
    text, (start, end), line = match[1] or "", match.span(1), match.string
    if not text or text[0] not in _FIGURES or text[-1] not in _FIGURES:
        return text
    if start == match.start():
        before = _BEFORE.search(line[max(0, start - _LONGEST) : start])
        text = (before[0] if before else "") + text
    if end == match.end():
        following = line[end : end + _LONGEST]
        after = _AFTER.match(following)
        taken = after[0] if after else ""
        if after and _DECIMALS.search(text + taken[: after.start("rest")]):
            taken = taken[: after.start("rest")]
        ending = _END.match(following, len(taken))
        text += taken + (ending[0] if ending else "")
    return text
