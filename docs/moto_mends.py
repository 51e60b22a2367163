"""The table of what moto answers otherwise than EC2, from the code that mends it."""

from collections.abc import Callable, Iterator

from moto.ec2.responses import EC2Response
from tables import table

from dlcloud.local.ec2.differences import COMPUTED, MEMBERS, REFUSALS
from dlcloud.local.ec2.fleets import LocalFleetResponses

OURS = "dlcloud.local.ec2."


def mends() -> Iterator[str]:
    """Yield a row for each refusal, member and action, with what moto would have to do."""
    refusals = [
        (action, f"{_first(check)} EC2 refuses it.", "refusals")
        for action, checks in REFUSALS.items()
        for check in checks
    ]
    members = [(path, _shown(change), "members") for path, change in MEMBERS.items()]
    computed = [(f"{kind.__name__}.{name}", "Compute it.", "members") for kind, name, _ in COMPUTED]
    rows = [*refusals, *sorted([*members, *computed]), *sorted(_actions())]
    yield from table(("action or member", "what moto would have to do", "module"), rows)


def _actions() -> Iterator[tuple[str, str, str]]:
    """Yield the actions that a class of ours answers in place of moto's, or that moto lacks."""
    for kind in LocalFleetResponses.__mro__:
        if not kind.__module__.startswith(OURS):
            continue
        for name, method in vars(kind).items():
            is_action = callable(method) and not name.startswith("_") and "_" in name
            is_answer = hasattr(EC2Response, name) or "ActionResult" in str(
                getattr(method, "__annotations__", "")
            )
            if is_action and is_answer and name != "call_action":
                action = "".join(word.capitalize() for word in name.split("_"))
                yield action, _first(method), kind.__module__.removeprefix(OURS)


def _shown(change: Callable[[object], object]) -> str:
    """Return what a change of a member shows, as two values of moto tell."""
    if change("kept") != "kept":
        return f"Show {change(None)!r} in this answer."
    return (
        "Leave it out where it is empty."
        if change(None) is None
        else f"Show {change(None)!r} where it is missing."
    )


def _first(function: object) -> str:
    return (function.__doc__ or "").strip().partition("\n")[0]
