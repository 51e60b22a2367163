"""Decide what IAM policies allow, for the conditions that bind callers to resources with a tag.

Source: IAM user guide, "Policy evaluation logic" and "IAM JSON policy elements: Condition operators". An
operator or an element that is not implemented here never allows anything.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

Values = Sequence[str]
_VARIABLE = re.compile(r"\$\{([\w:/-]+)\}")


class Decision(Enum):
    """The result of an evaluation."""

    ALLOWED = auto()
    NOT_ALLOWED = auto()
    DENIED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRequest:
    """An action on a resource; `context` has the values of condition keys, as of `aws:ResourceTag/Name`."""

    action: str
    resource: str
    context: Mapping[str, Values] = field(default_factory=dict)


def decide(documents: Iterable[str], request: AccessRequest) -> Decision:
    """Evaluate policies of one kind: a denial counts for all of them; broken ones neither allow nor deny."""
    effects = {
        statement.get("Effect")
        for document in documents
        for statement in _statements(document)
        if _applies(statement, request)
    }
    if "Deny" in effects:
        return Decision.DENIED
    return Decision.ALLOWED if "Allow" in effects else Decision.NOT_ALLOWED


def is_allowed(documents: Iterable[str], request: AccessRequest) -> bool:
    """True if a statement of the policies allows the request and none denies it."""
    return decide(documents, request) is Decision.ALLOWED


def _statements(document: str) -> list[dict[str, Any]]:
    try:
        content = json.loads(document)["Statement"]
    except (ValueError, KeyError, TypeError):
        return []
    statements = content if isinstance(content, list) else [content]
    return [statement for statement in statements if isinstance(statement, dict)]


def _applies(statement: Mapping[str, Any], request: AccessRequest) -> bool:
    if not {"Action", "Resource"} <= set(statement):
        return False
    action = request.action.lower()
    return (
        any(_matches(pattern.lower(), action) for pattern in _as_list(statement["Action"]))
        and any(_matches(pattern, request.resource) for pattern in _as_list(statement["Resource"]))
        and _conditions_hold(statement, request.context)
    )


def _conditions_hold(statement: Mapping[str, Any], context: Mapping[str, Values]) -> bool:
    """True if every condition holds; an unknown operator holds in a denial only."""
    denies = statement.get("Effect") == "Deny"
    values = {key.lower(): value for key, value in context.items()}

    def expected(want: object) -> list[str]:
        """Return the values of a condition, with variables such as ${aws:PrincipalAccount} filled in."""
        value_of = lambda match: next(iter(values.get(match[1].lower(), ())), "")  # noqa: E731
        return [_VARIABLE.sub(value_of, text) for text in _as_list(want)]

    for operator, conditions in statement.get("Condition", {}).items():
        test = _OPERATORS.get(operator)
        if test is None:
            if not denies:
                return False
            continue
        if not all(test(values.get(key.lower(), ()), expected(want)) for key, want in conditions.items()):
            return False
    return True


def _any_equals(values: Values, allowed: Values) -> bool:
    return any(value in allowed for value in values)


def _any_matches(values: Values, patterns: Values) -> bool:
    return any(_matches(pattern, value) for value in values for pattern in patterns)


_OPERATORS: Mapping[str, Callable[[Values, Values], bool]] = {
    "Bool": _any_equals,
    "Null": lambda values, want: ("true" in want) is not bool(values),
    "NumericEquals": _any_equals,
    "StringEquals": _any_equals,
    "StringLike": _any_matches,
    # Also true where the request has no such key.
    "StringNotEquals": lambda values, denied: not _any_equals(values, denied),
    "ArnLike": _any_matches,
    "ForAnyValue:StringEquals": _any_equals,
    "ForAllValues:StringEquals": lambda values, allowed: all(value in allowed for value in values),
}


def _matches(pattern: str, text: str) -> bool:
    """Match `*` and `?`, nothing else."""
    wildcards = {"*": ".*", "?": "."}
    expression = "".join(wildcards.get(character, re.escape(character)) for character in pattern)
    return re.fullmatch(expression, text, re.DOTALL) is not None


def _as_list(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
