"""How many instances of a type, and of a type in a zone, may live at once."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

UNLIMITED = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What EC2 calls a capacity pool: an instance type in an Availability Zone."""

    instance_type: str
    zone: str


class Capacity:
    """The limits, held against the pools in which instances live right now.

    Args:
        occupied: Returns one pool per living instance.
    """

    def __init__(self, occupied: Callable[[], Iterable[Pool]]) -> None:
        self._occupied = occupied
        self._lock = threading.Lock()
        self._limits: dict[tuple[str, str | None], int] = {}

    def limit(self, instance_type: str, zone: str | None, count: int | None) -> None:
        """Set the limit of a type, in one zone or in all together; None removes it."""
        with self._lock:
            if count is None:
                self._limits.pop((instance_type, zone), None)
            else:
                self._limits[instance_type, zone] = count

    def left(self, pool: Pool) -> int:
        """Return how many more instances the pool can take; UNLIMITED where nothing limits it."""
        with self._lock:
            of_type = self._limits.get((pool.instance_type, None))
            of_zone = self._limits.get((pool.instance_type, pool.zone))
        if of_type is None and of_zone is None:
            return UNLIMITED
        living = [other for other in self._occupied() if other.instance_type == pool.instance_type]
        rooms = [
            UNLIMITED if of_type is None else of_type - len(living),
            UNLIMITED if of_zone is None else of_zone - sum(other.zone == pool.zone for other in living),
        ]
        return max(0, min(rooms))

    def left_of_type(self, instance_type: str) -> int:
        """Return how many more instances of a type there can be in all zones together."""
        with self._lock:
            limit = self._limits.get((instance_type, None))
        if limit is None:
            return UNLIMITED
        return max(0, limit - sum(other.instance_type == instance_type for other in self._occupied()))

    def report(self) -> list[dict[str, object]]:
        """Return the limits as plain values, for the status page."""
        with self._lock:
            limits = sorted(self._limits.items(), key=lambda item: (item[0][0], item[0][1] or ""))
        return [{"instance_type": kind, "zone": zone, "count": count} for (kind, zone), count in limits]
