"""Refuse, slow down and count API calls on demand."""

import threading
from collections import Counter
from dataclasses import dataclass, field

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
