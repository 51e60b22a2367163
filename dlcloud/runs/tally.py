"""The trials of an experiment that is running, counted as they end."""

import threading
from collections import Counter
from collections.abc import Iterable

from dlcloud.results.trials import TrialState, TrialStatus, best_trial


class TrialTally:
    """What is known of each trial, and how many have ended; safe to use from several threads.

    Args:
        statuses: Of all trials that are known, as they are stored.
        maximize: Whether the largest metric is best.
    """

    def __init__(self, statuses: Iterable[TrialStatus], *, maximize: bool) -> None:
        self._by_number = {status.trial.number: status for status in statuses}
        self._counts = Counter(status.state for status in self._by_number.values())
        self._maximize = maximize
        self._best = best_trial(self._by_number.values(), maximize=maximize)
        self._seconds, self._ended = 0.0, 0
        self._lock = threading.Lock()

    def find(self, number: int) -> TrialStatus | None:
        with self._lock:
            return self._by_number.get(number)

    def put(self, status: TrialStatus, seconds: float) -> None:
        """Take note of a trial that has ended after some seconds."""
        with self._lock:
            before = self._by_number.get(status.trial.number)
            if before is not None:
                self._counts[before.state] -= 1
            self._by_number[status.trial.number] = status
            self._counts[status.state] += 1
            candidates = [self._best, status] if self._best is not None else [status]
            self._best = best_trial(candidates, maximize=self._maximize)
            self._seconds += seconds
            self._ended += 1

    def count(self, *states: TrialState) -> int:
        """Return how many trials are in one of these states."""
        with self._lock:
            return sum(self._counts[state] for state in states)

    @property
    def known(self) -> int:
        """How many trials are known."""
        return len(self._by_number)

    @property
    def best(self) -> TrialStatus | None:
        return self._best

    @property
    def mean_s(self) -> float | None:
        """The seconds of a trial, on average; None before the first."""
        with self._lock:
            return self._seconds / self._ended if self._ended else None

    def statuses(self) -> list[TrialStatus]:
        """Return the status of every trial, in order."""
        with self._lock:
            return [status for _, status in sorted(self._by_number.items())]
