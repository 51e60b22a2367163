"""Decide what IAM policies allow, for the conditions that bind a role to what carries a tag.

Source: IAM user guide, "Policy evaluation logic" and "IAM JSON policy elements: Condition operators". An
operator or an element that is not known here never allows anything.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Values = Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """May this be done to that? `context` has the values of condition keys, as of `aws:ResourceTag/Name`."""

    action: str
    resource: str
    context: Mapping[str, Values] = field(default_factory=dict)


def allows(documents: Iterable[str], question: Question) -> bool:
    """Tell whether some statement of the policies allows it and none denies it; a broken one says nothing."""
    effects = set()
    for document in documents:
        for statement in _statements(document):
            if _applies(statement, question):
                effects.add(statement.get("Effect"))
    return "Allow" in effects and "Deny" not in effects


def _statements(document: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(document)["Statement"]
    except (ValueError, KeyError, TypeError):
        return []
    return [each for each in (found if isinstance(found, list) else [found]) if isinstance(each, dict)]


def _applies(statement: Mapping[str, Any], question: Question) -> bool:
    if not {"Action", "Resource"} <= set(statement):
        return False
    return (
        any(_like(pattern.lower(), question.action.lower()) for pattern in _listed(statement["Action"]))
        and any(_like(pattern, question.resource) for pattern in _listed(statement["Resource"]))
        and _holds(statement, question.context)
    )


def _holds(statement: Mapping[str, Any], context: Mapping[str, Values]) -> bool:
    """Tell whether every condition holds; to a denial an unknown operator counts as met."""
    denies = statement.get("Effect") == "Deny"
    known = {key.lower(): values for key, values in context.items()}
    for operator, wanted in statement.get("Condition", {}).items():
        test = _OPERATORS.get(operator)
        if test is None:
            if not denies:
                return False
            continue
        if not all(test(known.get(key.lower(), ()), _listed(values)) for key, values in wanted.items()):
            return False
    return True


def _equals(given: Values, wanted: Values) -> bool:
    return any(value in wanted for value in given)


def _resembles(given: Values, wanted: Values) -> bool:
    return any(_like(pattern, value) for value in given for pattern in wanted)


def _all_equal(given: Values, wanted: Values) -> bool:
    return all(value in wanted for value in given)


_OPERATORS: Mapping[str, Callable[[Values, Values], bool]] = {
    "StringEquals": _equals,
    "StringLike": _resembles,
    "ArnLike": _resembles,
    "ForAnyValue:StringEquals": _equals,
    "ForAllValues:StringEquals": _all_equal,
}


def _like(pattern: str, text: str) -> bool:
    """Match `*` and `?`, nothing else."""
    expression = "".join({"*": ".*", "?": "."}.get(each, re.escape(each)) for each in pattern)
    return re.fullmatch(expression, text, re.DOTALL) is not None


def _listed(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]
