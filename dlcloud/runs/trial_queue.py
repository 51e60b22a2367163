"""The trials of an experiment, handed out one by one to whatever instance is free."""

import threading
from collections import deque
from collections.abc import Callable, Iterable

from dlcloud.results.trials import Trial

Ask = Callable[[], Trial | None]


def no_more() -> None:
    """Return None: there is no further trial."""


class TrialQueue:
    """Safe to use from several threads.

    Args:
        trials: Those that wait, in order.
        ask: Returns a further trial when none waits, as a search does; None when there is no more.
        running: The numbers of those that run already.
    """

    def __init__(self, trials: Iterable[Trial], ask: Ask = no_more, *, running: Iterable[int] = ()) -> None:
        self._waiting = deque(trials)
        self._ask = ask
        self._running = set(running)
        self._changed = threading.Condition()
        self._is_stopped = False

    @property
    def running(self) -> int:
        return len(self._running)

    def take(self) -> Trial | None:
        """Return the next trial, which is running from now on; None once none is left.

        It waits while others run: one whose instance is lost comes back.
        """
        with self._changed:
            while not self._is_stopped:
                trial = self._waiting.popleft() if self._waiting else self._ask()
                if trial is not None:
                    self._running.add(trial.number)
                    return trial
                if not self._running:
                    return None
                self._changed.wait()
            return None

    def take_early(self, *, leave: int) -> Trial | None:
        """Return the next trial, which counts as running from now on, if more than `leave` of them wait."""
        with self._changed:
            if self._is_stopped or len(self._waiting) <= leave:
                return None
            trial = self._waiting.popleft()
            self._running.add(trial.number)
            return trial

    def end(self, trial: Trial) -> None:
        """Take note that a trial runs no more."""
        with self._changed:
            self._running.discard(trial.number)
            self._changed.notify_all()

    def put_back(self, trial: Trial) -> None:
        """Put a trial that was running at the front of the line."""
        with self._changed:
            self._running.discard(trial.number)
            self._waiting.appendleft(trial)
            self._changed.notify_all()

    def again(self, trial: Trial) -> None:
        """Put a trial that has failed at the end of the line."""
        with self._changed:
            self._running.discard(trial.number)
            self._waiting.append(trial)
            self._changed.notify_all()

    def stop(self) -> None:
        """Hand out no further trial."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
