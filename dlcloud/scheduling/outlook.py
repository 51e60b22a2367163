"""What was expected of a training with a deadline at one moment: stored by its controller, shown by `status`.

It stands apart from `deadline_scaling.py`, which computes it: `status` and the store read it, and import no
planning for it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

LEAST_SHOWN = 0.01
"""A smaller probability, or one so near to 1, is shown as that: an estimate is never certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """One look at a training with a deadline.

    Attributes:
        at: When.
        time_left_s: Seconds to the deadline; below 0 after it.
        work_left_s: Work left, in seconds of one worker alone.
        probability: That the deadline holds, 0 to 1; see `deadline_scaling.probability_of_deadline`.
        is_measured: The speed of the workers is measured, not assumed.
        reason: The policy's.
        targets: Instances by market and pool.
        launch: What is requested: instances by market and pools; of a decision.
        drain: The instances whose workers leave; of a decision.
    """

    at: datetime
    deadline: datetime
    time_left_s: float
    work_left_s: float
    probability: float
    is_measured: bool
    reason: str
    targets: Mapping[str, int]
    launch: Mapping[str, int] = field(default_factory=dict)
    drain: Sequence[str] = ()

    def to_values(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            **values,
            "at": self.at.isoformat(),
            "deadline": self.deadline.isoformat(),
            "time_left_s": round(self.time_left_s, 3),
            "work_left_s": round(self.work_left_s, 3),
            "probability": round(self.probability, 4),
            "targets": dict(self.targets),
            "launch": dict(self.launch),
            "drain": list(self.drain),
        }

    def to_text(self) -> str:
        return json.dumps(self.to_values(), separators=(",", ":"))


def read_outlook(text: str | None) -> Outlook | None:
    """Return a stored outlook; None for a text that is none."""
    try:
        values = json.loads(text or "")
        numbers = {name: float(values[name]) for name in ("time_left_s", "work_left_s", "probability")}
        return Outlook(
            at=datetime.fromisoformat(values["at"]),
            deadline=datetime.fromisoformat(values["deadline"]),
            **numbers,
            is_measured=bool(values["is_measured"]),
            reason=str(values["reason"]),
            targets={str(name): int(count) for name, count in values["targets"].items()},
            launch={str(name): int(count) for name, count in values.get("launch", {}).items()},
            drain=tuple(str(name) for name in values.get("drain", ())),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def describe_outlook(outlook: Outlook, now: datetime) -> str:
    """Return one line for people: the time left now, the probability and the reason as of then."""
    left = (outlook.deadline - now).total_seconds()
    length = f"in {describe_seconds(left)}" if left > 0 else f"passed {describe_seconds(-left)} ago"
    chance = f"holds with probability {describe_probability(outlook.probability)}"
    basis = "" if outlook.is_measured else ", at an assumed speed"
    age = describe_seconds(max(0.0, (now - outlook.at).total_seconds()))
    return (
        f"deadline {outlook.deadline:%Y-%m-%d %H:%M} UTC, {length}: {chance}{basis}\n"
        f"{outlook.reason}; as of {age} ago"
    )


def describe_probability(probability: float) -> str:
    """Return it with two digits; never 0 or 1, which no estimate is."""
    if probability < LEAST_SHOWN:
        return f"below {LEAST_SHOWN}"
    return f"above {1 - LEAST_SHOWN}" if probability > 1 - LEAST_SHOWN else f"{probability:.2f}"


def describe_seconds(seconds: float) -> str:
    """Return a length of time in its two largest units."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
