"""Refuse, slow down and count API calls on demand."""

import threading
from collections import Counter
from dataclasses import dataclass, field

ANY_ACTION = "*"


@dataclass(slots=True, kw_only=True)
class Fault:
    """A refusal that calls of an action meet: every one, so many times, or at a rate."""

    action: str
    code: str
    status: int = 400
    times: int | None = None
    rate: float | None = None
    _owed: float = field(default=0.0, repr=False)

    def strikes(self, action: str) -> bool:
        """Tell whether this call is refused; a rate is spread evenly, so that runs repeat exactly."""
        if self.action not in (ANY_ACTION, action):
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


class Disturbances:
    """What calls meet: faults, latency, and a counter by action."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._calls: Counter[str] = Counter()
        self.latency_s = 0.0

    def add(self, fault: Fault) -> None:
        """Refuse calls from now on."""
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """Refuse nothing any more."""
        with self._lock:
            self._faults.clear()

    def meet(self, action: str) -> Fault | None:
        """Count a call and return what refuses it, if anything."""
        with self._lock:
            self._calls[action] += 1
            struck = next((fault for fault in self._faults if fault.strikes(action)), None)
            self._faults = [fault for fault in self._faults if fault.times is None or fault.times > 0]
            return struck

    def calls(self) -> dict[str, int]:
        """Return how often each action was called."""
        with self._lock:
            return dict(sorted(self._calls.items()))

    def reset_calls(self) -> None:
        """Count from zero again."""
        with self._lock:
            self._calls.clear()

    def report(self) -> list[dict[str, object]]:
        """Return the faults as plain values, for the status page."""
        with self._lock:
            names = ("action", "code", "status", "times", "rate")
            return [{name: getattr(fault, name) for name in names} for fault in self._faults]
