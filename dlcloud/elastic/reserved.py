"""What the reservations of a run hold now: listed beside the training, never in its way."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from dlcloud.model.clock import Clock
from dlcloud.model.errors import DlcloudError
from dlcloud.model.events import Emit, Warned
from dlcloud.planning.reserved_capacity import CapacityReservation
from dlcloud.scheduling.reserved_workers import NO_RESERVED, ReservedState, assess_reserved
from dlcloud.scheduling.scaling import Worker

POLL_S = 10.0
RETURN_TIME = timedelta(minutes=2)
"""So long after its worker was asked to leave an instance counts as on its way back."""


def _start_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="list reservations", daemon=True).start()


@dataclass(slots=True, kw_only=True)
class ReservationWatch:
    """Lists reservations every few seconds, from a thread.

    Args:
        ask: Lists the recipe's reservations.
        keep_free: Returns how many instances stay idle: the recipe's number, or that of `dlcloud resize`.
        start: Starts the work of listing.
    """

    ask: Callable[[], Sequence[CapacityReservation]]
    keep_free: Callable[[], int]
    clock: Clock
    emit: Emit
    start: Callable[[Callable[[], None]], None] = _start_thread
    _listed: tuple[int, Sequence[CapacityReservation]] | None = field(init=False, default=None)
    _asked_at: float = field(init=False, default=float("-inf"))
    _is_asking: bool = field(init=False, default=False)
    _is_stale: bool = field(init=False, default=False)
    _generation: int = field(init=False, default=0)
    _given_back: dict[str, datetime] = field(init=False, default_factory=dict)
    _has_warned: bool = field(init=False, default=False)

    def assess(self, workers: Sequence[Worker]) -> ReservedState:
        """Return what they say about the workers; nothing until they are listed."""
        now = self.clock.monotonic()
        if not self._is_asking and now - self._asked_at >= POLL_S:
            self._is_asking, self._asked_at = True, now
            self.start(self._list)
        if self._listed is None:
            return NO_RESERVED
        keep_free, chosen = self._listed
        since = self.clock.now() - RETURN_TIME
        returning = sum(at > since for at in self._given_back.values())
        state = assess_reserved(
            workers, chosen, keep_free=keep_free, now=self.clock.now(), returning=returning
        )
        # What goes back still goes back: else those that were launched in its place were too many.
        return replace(state, idle=0) if self._is_stale else state

    def forget(self) -> None:
        """List them again before idle ones are requested: a launch has changed what is idle."""
        self._generation += 1
        self._is_stale, self._asked_at = True, float("-inf")

    def return_instance(self, instance_id: str) -> None:
        """Record that a worker was asked to leave its reservation."""
        self._given_back.setdefault(instance_id, self.clock.now())

    def _list(self) -> None:
        generation = self._generation
        try:
            listed = (self.keep_free(), self.ask())
        except DlcloudError as error:
            if not self._has_warned:
                self.emit(Warned(message=f"reservations are not looked at: {error.message}"))
            self._has_warned = True
        else:
            if generation == self._generation:
                self._listed, self._is_stale = listed, False
        finally:
            self._is_asking = False
