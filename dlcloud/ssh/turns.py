"""Let the connections to many instances take turns where they compute or send.

Python runs one thread at a time, and each that waits to run wakes 200 times a second: many threads
that all start a command at once take more processor time for that than for the commands.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

STARTS, LONGEST_START_S = 16, 5.0
UPLOADS, LONGEST_UPLOAD_S = 16, 60.0


class Gate:
    """Lets a number of threads through at once, and more in place of those that stay too long.

    Args:
        limit: The number of threads.
        longest_s: A thread that stays longer waits for an instance that may be gone, and does not count.
    """

    def __init__(self, limit: int, longest_s: float) -> None:
        self._limit = limit
        self._longest_s = longest_s
        self._changed = threading.Condition()
        self._entered: dict[object, float] = {}

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, and end it with the block."""
        visitor = object()
        with self._changed:
            while (wait_s := self._wait_s()) > 0:
                self._changed.wait(wait_s)
            self._entered[visitor] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._entered[visitor]
                self._changed.notify()

    def _wait_s(self) -> float:
        """Return for how long there is no turn if no thread leaves; 0 where there is one."""
        since = time.monotonic() - self._longest_s
        counted = [entered for entered in self._entered.values() if entered > since]
        return min(counted) - since if len(counted) >= self._limit else 0.0


class Turns:
    """What the connections to one cluster share: turns to start a command, and to send its input."""

    def __init__(self) -> None:
        self.start = Gate(STARTS, LONGEST_START_S)
        self.upload = Gate(UPLOADS, LONGEST_UPLOAD_S)
