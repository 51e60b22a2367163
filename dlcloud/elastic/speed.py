"""The speed of the workers, its scaling with their number, and the pause of a change, measured by steps."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from dlcloud.elastic.reports import StepCommitted
from dlcloud.scheduling.policies.situation import Scaling

STEPS_KEPT = 50
"""Of each world size; older ones may be of other instances."""

FEWEST_STEPS = 3
"""So many steps of a world size are measured before they count."""

ASSUMED_CHANGEOVER_S = 10.0
"""The pause of a change until one is measured: the longest that is promised (docs/elastic.md)."""


@dataclass(slots=True)
class SpeedMeter:
    """Measures steps; each counts once, however many workers record it."""

    _step: int = 0
    _size: int = 0
    _seconds: dict[int, deque[float]] = field(default_factory=dict)
    _changes: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))

    def observe(self, report: StepCommitted) -> None:
        """Take a step into account."""
        size, seconds = report.world_size or 0, report.seconds or 0.0
        if report.step <= self._step:
            return
        self._step = report.step
        if size < 1 or seconds <= 0:
            return
        if self._size and size != self._size:
            self._changes.append((size, seconds))
        elif self._size:
            # The first step of all includes the start of the program.
            self._seconds.setdefault(size, deque(maxlen=STEPS_KEPT)).append(seconds)
        self._size = size

    @property
    def scaling(self) -> Scaling:
        """The loss by further workers, of the smallest and the largest world size that were measured."""
        rates = self._rates()
        if len(rates) < 2:  # noqa: PLR2004  two points make a line
            return Scaling()
        a, b = min(rates), max(rates)
        ratio = rates[b] / rates[a]
        # Solved for the loss: ratio = speed(b) / speed(a), with speed(n) = n / (1 + loss (n - 1)).
        divisor = ratio * a * (b - 1) - b * (a - 1)
        loss = (b - ratio * a) / divisor if divisor > 0 else 1.0
        return Scaling(loss=min(1.0, max(0.0, loss)))

    @property
    def steps_per_second(self) -> float | None:
        """Of one worker alone, by the newest world size that was measured; None before."""
        rates = self._rates()
        if not rates:
            return None
        size = self._size if self._size in rates else min(rates, key=lambda n: abs(n - self._size))
        return rates[size] / self.scaling.speed(size)

    @property
    def changeover_s(self) -> float:
        """Seconds without progress after a change of the world size."""
        usual = {size: median(seconds) for size, seconds in self._seconds.items()}
        pauses = [max(0.0, seconds - usual[size]) for size, seconds in self._changes if size in usual]
        return median(pauses) if pauses else ASSUMED_CHANGEOVER_S

    def _rates(self) -> dict[int, float]:
        return {
            size: 1 / median(seconds)
            for size, seconds in self._seconds.items()
            if len(seconds) >= FEWEST_STEPS
        }
