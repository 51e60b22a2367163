"""What a test or a user decides in AWS's place for calls: refusals, delays, and resources that appear late.

Source: EC2 developer guide, "Eventual consistency in the Amazon EC2 API": a resource that a call has just
made may not exist yet for the calls that follow.
"""

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from dlcloud.local.api.call import Call, Refusal, Reply

ANY_ACTION = "*"


@dataclass(slots=True, kw_only=True)
class Fault:
    """A refusal of calls of an action: of every one, of a number of them, or at a rate.

    The first `skip` calls pass. A status of 0 closes the connection without an answer. With `carried_out`,
    the call takes effect, and only its answer is lost.
    """

    action: str
    code: str
    status: int = 400
    times: int | None = None
    rate: float | None = None
    skip: int = 0
    carried_out: bool = False
    _owed: float = field(default=0.0, repr=False)

    def strikes(self, action: str) -> bool:
        """Count a call; True if it is refused. A rate is spread evenly, so that runs repeat exactly."""
        if self.action not in (ANY_ACTION, action):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
            return self.times >= 0
        if self.rate is None:
            return True
        self._owed += self.rate
        # 1e-9: three times one third is a whole refusal, though not in binary.
        if self._owed < 1.0 - 1e-9:
            return False
        self._owed -= 1.0
        return True


class FaultInjector:
    """Faults, latency and a counter of API calls. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._calls: Counter[str] = Counter()
        self.latency_s = 0.0

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def count_call(self, action: str, *, dry_run: bool = False) -> Fault | None:
        """Count a call, a dry run apart from others, and return the fault that refuses it, if any."""
        with self._lock:
            self._calls[f"{action} (dry run)" if dry_run else action] += 1
            struck = next((fault for fault in self._faults if fault.strikes(action)), None)
            self._faults = [fault for fault in self._faults if fault.times is None or fault.times > 0]
            return struck

    def calls(self) -> dict[str, int]:
        """Return the number of calls by action."""
        with self._lock:
            return dict(sorted(self._calls.items()))

    def reset_calls(self) -> None:
        with self._lock:
            self._calls.clear()

    def report(self) -> list[dict[str, object]]:
        """Return the faults as plain values, for the status page."""
        with self._lock:
            names = ("action", "code", "status", "times", "rate", "skip", "carried_out")
            return [{name: getattr(fault, name) for name in names} for fault in self._faults]


# The code of a call that names a resource too early, and the words of its message, by the form of its id.
# Source: EC2 API reference, "Error codes".
_NOT_FOUND = {
    "i-": ("InvalidInstanceID.NotFound", "The instance ID '{}' does not exist"),
    "sg-": ("InvalidGroup.NotFound", "The security group '{}' does not exist"),
    "lt-": ("InvalidLaunchTemplateId.NotFound", "The specified launch template, with ID {}, does not exist."),
    "": (
        "InvalidLaunchTemplateName.NotFoundException",
        "The specified launch template, with template name {}, does not exist.",
    ),
}
_MADE_BY = {
    "CreateFleet": re.compile(rb"\bi-[0-9a-f]{8,17}\b"),
    "CreateLaunchTemplate": re.compile(rb"\blt-[0-9a-f]{8,17}\b"),
    "CreateSecurityGroup": re.compile(rb"\bsg-[0-9a-f]{8,17}\b"),
    "RunInstances": re.compile(rb"\bi-[0-9a-f]{8,17}\b"),
}
_ID_KEYS = ("id", "InstanceId", "LaunchTemplateId", "resource_id", "ResourceId")
_TEMPLATE_NAME = "LaunchTemplateName"
_UNCHECKED = ("ClientToken", "Filter.", "LaunchTemplateData.", "Tag", "UserData")


class Visibility:
    """When new instances, security groups and launch templates appear. Methods may be called from any thread.

    Attributes:
        longest_s: Each appears half of this to this long after the call that made it; 0: all appear
        immediately.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._random = random.Random(0)  # noqa: S311 - no secret
        self._lock = threading.Lock()
        self._visible_at: dict[str, float] = {}

    def delay(self, longest_s: float, seed: int) -> None:
        """Show what is made from now on late, by delays that a seed repeats."""
        with self._lock:
            self.longest_s = longest_s
            self._random.seed(seed)

    def record(self, call: Call, reply: Reply) -> None:
        """Hide what a call has made for a while."""
        pattern = _MADE_BY.get(call.action)
        if not self.longest_s or pattern is None or reply.status != HTTPStatus.OK:
            return
        names = {match.decode() for match in pattern.findall(reply.body)}
        if call.action == "CreateLaunchTemplate":
            names.add(call.parameter(_TEMPLATE_NAME))
        with self._lock:
            late_s = self._random.uniform(self.longest_s / 2, self.longest_s)
            for name in names:
                self._visible_at.setdefault(name, time.monotonic() + late_s)

    def is_hidden(self, name: object) -> bool:
        """True if calls do not find a resource yet, by its id or a launch template's name."""
        return self.longest_s > 0 and self._visible_at.get(str(name), 0.0) > time.monotonic()

    def refusal(self, call: Call) -> Refusal | None:
        """Return the refusal of a call that names a resource too early."""
        if call.service != "ec2" or not self._visible_at:
            return None
        if call.action == "CreateLaunchTemplate":
            return None
        names = (value for key, value in call.parameters if not key.startswith(_UNCHECKED))
        return next(self.not_found(names), None)

    def not_found(self, names: Iterable[str]) -> Iterator[Refusal]:
        """Yield a refusal for each of these resources that is hidden."""
        for name in names:
            if self.is_hidden(name):
                code, text = _NOT_FOUND[_prefix(name)]
                yield Refusal(code=code, message=text.format(name))

    def shown(self, items: Iterable[Any]) -> list[Any]:
        """Return the items of an answer without those that are hidden."""
        return [item for item in items if not self.is_hidden(_id(item))]


def _prefix(name: str) -> str:
    prefix = name.partition("-")[0] + "-"
    return prefix if prefix in _NOT_FOUND else ""


def _id(item: Any) -> object:  # noqa: ANN401 - moto's object, or a member of its answer
    for key in _ID_KEYS:
        value = item.get(key) if isinstance(item, dict) else getattr(item, key, None)
        if value:
            return value
    return ""
