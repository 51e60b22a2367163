"""Spot capacity and prices that follow availability traces, compressed in time."""

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from time import monotonic
from typing import Any, Self

from dlcloud.local.capacity.pools import Capacity, Pool

_LONGEST_WAIT_S = 3600.0
_MOST_TICKS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotTrace:
    """The obtainable spot instances of a type, in a zone or in all, at each tick; the last value stays.

    `prices` are in USD an hour, by tick; empty: those of the local EC2.
    """

    instance_type: str
    zone: str | None
    gap_s: float
    counts: Sequence[int]
    prices: Sequence[Decimal] = ()

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Return the trace of `{instance_type, zone, metadata: {gap_seconds}, data, prices}`.

        Raises:
            ValueError: The values are not those of a trace.
        """
        try:
            trace = cls(
                instance_type=str(values["instance_type"]),
                zone=None if values.get("zone") is None else str(values["zone"]),
                gap_s=float(values["metadata"]["gap_seconds"]),
                counts=[int(count) for count in values["data"]],
                prices=[Decimal(str(price)) for price in values.get("prices") or ()],
            )
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a trace: {type(error).__name__}: {error}") from error
        if not 0 < trace.gap_s < math.inf or not 0 < len(trace.counts) <= _MOST_TICKS:
            raise ValueError("a trace has metadata.gap_seconds above 0, and data with a count for each tick")
        if min(trace.counts) < 0 or not all(price.is_finite() and price >= 0 for price in trace.prices):
            raise ValueError("counts and prices of a trace are 0 or more")
        return trace

    def count_at(self, seconds: float) -> int:
        return self.counts[self._tick(seconds, len(self.counts))]

    def price_at(self, seconds: float) -> Decimal | None:
        return self.prices[self._tick(seconds, len(self.prices))] if self.prices else None

    def _tick(self, seconds: float, ticks: int) -> int:
        return min(int(seconds // self.gap_s), ticks - 1)


class SpotMarket:
    """Plays traces: spot instances beyond what is obtainable are interrupted. Without one, all is obtainable.

    Args:
        occupied: Returns one pool per living spot instance.
        interrupt: Called with (instance type, zone, count, grace in seconds): spot instances of the pool
            beyond the count receive a notice.
    """

    def __init__(
        self,
        occupied: Callable[[], Iterable[Pool]],
        interrupt: Callable[[str, str | None, int, float], None],
    ) -> None:
        self._capacity = Capacity(occupied)
        self._interrupt = interrupt
        self._lock = threading.Lock()
        self._traces: dict[tuple[str, str | None], SpotTrace] = {}
        self._speed, self._grace_s = 0.0, 0.0
        self._began_at, self._offset_s = 0.0, 0.0
        self._changed = threading.Event()
        self._player: threading.Thread | None = None

    def play(self, traces: Sequence[SpotTrace], *, speed: float, grace_s: float) -> None:
        """Begin with traces at their first tick, in place of earlier ones.

        Args:
            traces: One for each pool; none ends the play.
            speed: Seconds of the traces in a second; at 0 only `move_to` moves them.
            grace_s: Seconds of this machine from an interruption notice to the end.
        """
        with self._lock:
            self._traces = {(trace.instance_type, trace.zone): trace for trace in traces}
            self._speed, self._grace_s = speed, grace_s
            self._began_at, self._offset_s = monotonic(), 0.0
            if self._traces and speed and self._player is None:
                self._player = threading.Thread(target=self._follow, name="spot market", daemon=True)
                self._player.start()
        self._changed.set()
        self._apply()

    def move_to(self, seconds: float) -> None:
        """Set the position in the traces."""
        with self._lock:
            self._began_at, self._offset_s = monotonic(), seconds
        self._changed.set()
        self._apply()

    @property
    def position_s(self) -> float:
        """Seconds from the beginning of the traces."""
        with self._lock:
            return self._position_s()

    def limit(self, instance_type: str, zone: str | None) -> int | None:
        """Return how many spot instances of a pool can live at the same time; None without a trace."""
        with self._lock:
            trace = self._traces.get((instance_type, zone))
            return None if trace is None else trace.count_at(self._position_s())

    def left(self, instance_type: str, zone: str | None) -> int:
        """Return how many more spot instances of a type fit, in one zone or in all together."""
        for place in dict.fromkeys((zone, None)):
            self._capacity.set_limit(instance_type, place, self.limit(instance_type, place))
        return self._capacity.left(instance_type, zone)

    def price(self, instance_type: str, zone: str) -> Decimal | None:
        """Return the price of a pool by its trace; None where that has none."""
        with self._lock:
            traces = [self._traces.get((instance_type, place)) for place in (zone, None)]
            position_s = self._position_s()
        return next((price for t in traces if t and (price := t.price_at(position_s)) is not None), None)

    def report(self) -> dict[str, object]:
        """Return the play as plain values, for the status page."""
        with self._lock:
            position_s = self._position_s()
            pools = [
                {"instance_type": t.instance_type, "zone": t.zone, "count": t.count_at(position_s)}
                for t in self._traces.values()
            ]
            return {"speed": self._speed, "position_s": position_s, "pools": pools}

    def _position_s(self) -> float:
        return self._offset_s + self._speed * (monotonic() - self._began_at)

    def _apply(self) -> None:
        with self._lock:
            position_s, grace_s = self._position_s(), self._grace_s
            counts = {key: trace.count_at(position_s) for key, trace in self._traces.items()}
        for (instance_type, zone), count in counts.items():
            self._interrupt(instance_type, zone, count, grace_s)

    def _follow(self) -> None:
        """Apply each tick when it begins, until no trace moves."""
        while True:
            with self._lock:
                if not self._traces or not self._speed:
                    self._player = None
                    return
                position_s = self._position_s()
                rest_s = min(t.gap_s - position_s % t.gap_s for t in self._traces.values()) / self._speed
            self._changed.clear()
            self._changed.wait(min(rest_s, _LONGEST_WAIT_S) + 0.001)
            self._apply()
