"""Read numbers in the forms in which programs print them: the one rule for throughputs, facts and metrics.

`1,234.5`, `1'234`, `1_000`, `1.262e+04`, `1.2k`, `1.2kimg`, `3.5MiB` and `93.5%` are numbers; a percentage
counts in percent. A form that may mean two things is no number: to some `12,5` is twelve and a half, to
others it is two figures.

A pattern is searched in time that grows with the length of a line, not with its square: a long line is read
in pieces that overlap. `repeats_in_repeats` finds the patterns that take forever even so.
"""

import math
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from typing import Any

parser = import_module("sre_parse" if sys.version_info < (3, 11) else "re._parser")
"""Python's own reader of regular expressions."""

PIECE = 1024
"""Characters of a long line that a pattern is given at a time."""

_OVERLAP = 256
"""Of two pieces: what a pattern matches in a long line may be as long as this."""

_LONGEST = 60
"""Characters around a match that are looked at; what is longer is no figure."""

_PREFIXES = {
    "": 1.0,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_FIGURES = ".0123456789"
_GROUP = "'\u2019\u00a0\u2009\u202f"
"""What separates thousands in addition to a comma: apostrophes, and blanks at which no line is broken."""
_DIGITS = (
    rf"[0-9]{{1,3}}(?:,[0-9]{{3}})+|[0-9]{{1,3}}(?:[{_GROUP}][0-9]{{3}})+|[0-9]+(?:_[0-9]+)*|(?=\.[0-9])"
)
_NUMBER = re.compile(rf"([+-]?(?:{_DIGITS})(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s?((?:[kKMGT]i?)?)%?")
_BEFORE = re.compile(rf"[+-]?[0-9](?:[0-9]|[,._{_GROUP}](?=[0-9]|\Z))*(?:[eE][+-]?[0-9]*)?\Z")
_AFTER = re.compile(
    rf"(?:[0-9]|[._](?=[0-9])|[{_GROUP}](?=[0-9]{{3}}(?![0-9])))*(?P<rest>(?:,[0-9]+)*(?:\.[0-9]+)?)"
)
_THOUSANDS_BEFORE = re.compile(r"(?<![\w.,:/-])[1-9][0-9]{0,2}(?: [0-9]{3})* \Z")
_THOUSANDS_AFTER = re.compile(r"(?: [0-9]{3}(?![0-9/:]))+(?:\.[0-9]+)?(?P<rest>)")
"""Thousands that a blank separates, or two figures: the line does not show which of both."""
_COUNTER = re.compile(r"(?:step|epoch|batch|iter|iteration)[ :=#]*\Z", re.IGNORECASE)
"""What stands before a counter, which is no part of the next figure: `step 7 234.5 images/s`."""
_EXPONENT = re.compile(r"[eE][+-]?[0-9]+")
_DECIMALS = re.compile(r"\.(?!([0-9]{3})\Z)")
"""A point that cannot separate thousands, as that of `1.234` can: a comma after it separates two figures."""

_SCALED = re.compile(
    rf"(?P<blank>[ {_GROUP[2:]}]?)(?P<prefix>[kKMGT](?:i(?=[Bb]))?)(?P<unit>[A-Za-z]*)"
    r"(?P<more> [A-Za-z]+)?(?P<rate>\s?/\s?s(?:ec(?:onds?)?)?\b|\s?per\s?s(?:ec(?:onds?)?)?\b)?"
)
_UNITS = frozenset(
    unit + plural
    for unit in (
        *("img", "im", "image", "sample", "samp", "smp", "tok", "token", "it", "iter", "iteration", "step"),
        *("seq", "sequence", "sentence", "ex", "example", "item", "row", "rec", "record", "word", "char"),
        *(
            "frame",
            "req",
            "request",
            "op",
            "flop",
            "b",
            "bit",
            "byte",
            "px",
            "pixel",
            "patch",
            "event",
            "msg",
        ),
        *("message", "transition", "game", "env", "hz", "fp", "bp", "tp", "rp", "qp", "ip", "task", "trial"),
    )
    for plural in ("", "s")
)
"""Units that programs count in, without their prefix."""


def find_all(expression: "re.Pattern[str]", line: str) -> "Iterator[re.Match[str]]":
    """Yield the matches of an expression in a line, of a long one in each of its pieces."""
    start, needed = 0, _needed(expression)
    for begin in range(0, max(1, len(line) - _OVERLAP), PIECE - _OVERLAP):
        end = begin + PIECE
        if line.find(needed, begin, end) < 0:
            continue
        for match in expression.finditer(line, max(begin, start), end):
            if end < len(line) and match.end() == end and match.start() > begin:
                break  # it may continue: the next piece has it whole
            start = max(start, match.end())
            yield match


@lru_cache(maxsize=64)
def _needed(expression: "re.Pattern[str]") -> str:
    """Return the longest text that every match has, as far as the expression says it outside of repeats."""
    if expression.flags & (re.IGNORECASE | re.VERBOSE):
        return ""
    texts, items = [""], list(parser.parse(expression.pattern))
    while items:
        operation, argument = items.pop(0)
        if operation is parser.LITERAL:
            texts[-1] += chr(argument)
        elif operation is parser.SUBPATTERN and not argument[1] and not argument[2]:
            items = [*argument[3], *items]
        else:
            texts.append("")
    return max(texts, key=len)


def repeats_in_repeats(pattern: str) -> bool:
    """True if a regular expression may take forever: it can divide one text in many ways, as `([0-9]+,?)+`.

    Raises:
        re.error: It is none.
    """
    todo = [list(parser.parse(pattern))]
    while todo:
        for operation, argument in todo.pop():
            inner = _parts(operation, argument)
            todo += inner
            if _is_repeat(operation) and argument[1] > _MANY and _is_ambiguous(inner[0]):
                return True
    return False


_MANY = 16
"""Repeats that count as unlimited."""
_ASCII = frozenset(map(chr, range(128)))
_CATEGORIES = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}


def _is_repeat(operation: Any) -> bool:  # noqa: ANN401  an operation of `parser`
    return operation in (parser.MAX_REPEAT, parser.MIN_REPEAT)


def _parts(operation: Any, argument: Any) -> list[list[Any]]:  # noqa: ANN401  of `parser`
    """Return the sequences inside of a group, a repeat or alternatives."""
    if _is_repeat(operation):
        return [list(argument[2])]
    if operation is parser.SUBPATTERN:
        return [list(argument[3])]
    return [list(branch) for branch in argument[1]] if operation is parser.BRANCH else []


def _is_ambiguous(body: list[Any]) -> bool:
    """True if what a repeat repeats can match a text as one or as several: a repeat of characters alone."""
    while len(body) == 1 and body[0][0] is parser.SUBPATTERN:
        body = list(body[0][1][3])
    branches = _parts(*body[0]) if len(body) == 1 and body[0][0] is parser.BRANCH else [body]
    for branch in branches:
        for at, (operation, argument) in enumerate(branch):
            if _is_repeat(operation) and argument[1] > _MANY:
                own = _characters((operation, argument))
                others = branch[:at] + branch[at + 1 :]
                if own and all(_may_be_empty(other) or _characters(other) & own for other in others):
                    return True
    return False


def _may_be_empty(item: Any) -> bool:  # noqa: ANN401  of `parser`
    operation, argument = item
    if _is_repeat(operation):
        return argument[0] == 0 or all(map(_may_be_empty, argument[2]))
    if operation is parser.AT:
        return True
    parts = _parts(operation, argument)
    return bool(parts) and any(all(map(_may_be_empty, part)) for part in parts)


def _characters(item: Any) -> frozenset[str]:  # noqa: ANN401  of `parser`
    """Return the ASCII characters that an item of an expression can match, each alone or among others."""
    operation, argument = item
    if operation is parser.LITERAL:
        return frozenset(chr(argument))
    if operation is parser.NOT_LITERAL:
        return _ASCII - {chr(argument)}
    if operation is parser.ANY:
        return _ASCII - {"\n"}
    if operation is parser.RANGE:
        return frozenset(map(chr, range(argument[0], min(argument[1], 127) + 1)))
    if operation is parser.CATEGORY:
        name = str(argument).rpartition("CATEGORY_")[2]
        category = re.compile(_CATEGORIES.get(name.removeprefix("NOT_"), "."), re.ASCII)
        members = frozenset(filter(category.match, _ASCII))
        return _ASCII - members if name.startswith("NOT_") else members
    if operation is parser.IN:
        negated = argument[0][0] is parser.NEGATE
        inside = frozenset().union(*map(_characters, argument[negated:]))
        return _ASCII - inside if negated else inside
    return frozenset().union(*(_characters(one) for part in _parts(operation, argument) for one in part))


def read_number(text: str) -> float | None:
    """Return the finite number that a text states; None if it states none, or may mean two things."""
    match = _NUMBER.fullmatch(text.strip().rstrip("."))
    if match is None:
        return None
    prefix = match[2] if match[2] in _PREFIXES else match[2].lower()
    number = float(re.sub(rf"[,_{_GROUP}]", "", match[1])) * _PREFIXES.get(prefix, 1024.0)
    return number if math.isfinite(number) else None


def matched_number(match: "re.Match[str]", unit: str = "") -> str:
    """Return what a match's group states, with what continues its number in the line.

    `([0-9.]+)` matches `12` of `12,622.33`, and `.*([0-9.]+)` its last figure: the whole is returned. It is
    not if the expression itself names what continues the number, as `([0-9]+)[.][0-9]+` and `([0-9.]+)kimg`
    do: then it does not match the line without that.

    Args:
        match: Of an expression with one group.
        unit: What is counted; a prefix that is part of it, as of `kimg`, does not multiply the number.
    """
    text, (start, end), line = match[1] or "", match.span(1), match.string
    if not text or text[0] not in _FIGURES or text[-1] not in _FIGURES:
        return text
    preceding, following = line[max(0, start - _LONGEST) : start], line[end : end + _LONGEST]
    before, after = _BEFORE.search(preceding), _AFTER.match(following)
    if re.fullmatch(r"[0-9]{3}(?:\.[0-9]*)?", text) and not before:
        before = _THOUSANDS_BEFORE.search(preceding)
        before = before if before and not _COUNTER.search(preceding[: before.start()]) else None
    if re.fullmatch(r"[1-9][0-9]{0,2}", text) and not _COUNTER.search(preceding):
        after = _THOUSANDS_AFTER.match(following) or after
    taken = after[0] if after else ""
    head = before[0] if before else ""
    if after and _DECIMALS.search(head + text + taken[: after.start("rest")]):
        taken = taken[: after.start("rest")]
    if (exponent := _EXPONENT.match(following, len(taken))) is not None:
        taken += exponent[0]
    taken += _prefix(following[len(taken) :], unit)
    for added_before, added_after in ((head, taken), (head, ""), ("", taken)):
        whole = added_before + text + added_after
        if whole != text and _matches_without(match, len(added_before), len(added_after)):
            return whole
    return text


def _matches_without(match: "re.Match[str]", before: int, after: int) -> bool:
    """True if the expression matches the same text in the line without this many characters around it."""
    (start, end), line = match.span(1), match.string
    begin = max(0, start - before - PIECE)
    shortened = line[begin : start - before] + line[start:end] + line[end + after : end + after + PIECE]
    place = start - before - begin
    searched = match.re.finditer(shortened, max(0, min(match.start() - begin, place)))
    return any(other.span(1) == (place, place + end - start) for other in searched)


def _prefix(following: str, unit: str) -> str:
    """Return the prefix of a unit behind a number, as the k of `kimg/s`; with the unit if that is unknown."""
    match = _SCALED.match(following)
    if match is None:
        return ""
    prefix, counted = match["prefix"], match["unit"].lower()
    word = (prefix + match["unit"]).lower()
    own = unit.lower().partition("/")[0].replace(" ", "")
    if own and own == (word if counted else word + (match["more"] or "").strip().lower()):
        return ""
    if not counted:
        is_scaled = not match["blank"] or (match["more"] or " ")[1:].lower() in _UNITS
    elif word in _UNITS:
        return ""  # `12Tokens`
    elif counted in _UNITS:
        is_scaled = not match["blank"] or match["rate"] is not None
    else:
        return match["prefix"] + match["unit"] if match["rate"] and not match["blank"] else ""
    return match["blank"] + prefix if is_scaled else ""
