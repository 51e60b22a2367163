"""A clock that tests set: sleeping moves it on without a wait."""

import threading
from datetime import UTC, datetime, timedelta

START = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)


class FakeClock:
    """Time that passes only in `sleep` and `advance`."""

    def __init__(self, start=START):
        self._start = start
        self._elapsed = 0.0
        self._lock = threading.Lock()
        self.slept = []

    def now(self):
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self):
        return self._elapsed

    def sleep(self, seconds):
        if not seconds:  # between polls that wait themselves
            return
        assert seconds > 0
        with self._lock:
            self.slept.append(seconds)
            self._elapsed += seconds

    def advance(self, seconds):
        """Let time pass without a sleep."""
        with self._lock:
            self._elapsed += seconds
