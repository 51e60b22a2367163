"""A variant is one setting of an experiment, as the harness measures it; most are a worker process each."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from . import memory, statistics
from .process import VariantError, WorkerProcess
from .records import Measurement, Metric

PREPARE_TIMEOUT_S = 3600.0

STEP_TIMEOUT_S = 600.0
"""How long one step may take beyond the requested time."""

PROCESS_SPREAD = 0.02
"""How far two processes of one program may differ for their whole life, as a share.

The cause is where their memory lies. Two equal workers on an otherwise quiet machine differed by up to 3 %,
mostly by less than 2, in every slice; no number of slices shows that, so intervals are widened by it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """How a warm-up went; `settled` is False if it was cut off before the times agreed."""

    steps: int
    seconds: float
    settled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What a variant did in one slice of time.

    Attributes:
        value: The main metric over the slice.
        items: Number of images, or of runs.
        seconds: Length of the slice.
        latencies_ms: Single steps, if they are recorded.
        parts: Values within the slice, if the variant reports several; `value` is their median.
        settled: False if the parts never agreed with each other.
    """

    value: float
    items: float
    seconds: float
    latencies_ms: tuple[float, ...] = ()
    parts: tuple[float, ...] = ()
    settled: bool = True

    @classmethod
    def of_parts(cls, parts: tuple[float, ...], *, seconds: float, settled: bool) -> Self:
        """Return the slice of a variant that reports several values of its own."""
        return cls(value=statistics.median(parts), items=1, seconds=seconds, parts=parts, settled=settled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """What is known of a variant only after it was measured."""

    metrics: Mapping[Metric, Measurement]
    outputs: list[list[float]]
    facts: Mapping[str, Any] = field(default_factory=dict)


class Variant(Protocol):
    """One setting of an experiment. Every method may raise VariantError: the setting cannot be measured."""

    @property
    def name(self) -> str:
        """Return the name of the setting."""

    @property
    def metric(self) -> Metric:
        """Return the main metric, by which settings are compared."""

    @property
    def unit(self) -> str:
        """Return the unit of the main metric."""

    @property
    def process_spread(self) -> float:
        """Return how far one process of the setting may be from another, as a share (0 to 1)."""

    @property
    def expected_bytes(self) -> int:
        """Return the most memory it is expected to hold; 0 if unknown."""

    def peak_bytes(self) -> int:
        """Return the most memory it has held so far; 0 if unknown."""

    def start(self) -> Mapping[str, Any]:
        """Make everything ready and return the facts."""

    def warm_up(self, limit_s: float) -> WarmUp:
        """Run until the times no longer fall, for about `limit_s` at most."""

    def measure(self, seconds: float) -> Slice:
        """Run for at least `seconds`."""

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far."""

    def finish(self) -> Finish:
        """Return metrics, outputs and facts that are known only after measuring."""

    def close(self) -> None:
        """End all its processes; allowed even if `start` failed or was never called."""


@dataclass(slots=True, kw_only=True)
class WorkerVariant:
    """A variant in a fresh worker process with an environment of its own.

    Args:
        name: The setting's name.
        unit: Unit of the throughput, such as images/s.
        factory: `module:function` of `benchmarks` that makes the workload.
        arguments: Its keyword arguments; must survive JSON.
        environment: The whole environment of the process.
        latencies: Whether the time of every step is recorded.
        facts: Facts known before it starts, added to those of the workload.
        python: The interpreter, if it is not the one that measures.
        expected_bytes: The most memory it may hold; 0 if unknown.
    """

    name: str
    unit: str
    factory: str
    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    latencies: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    metric: Metric = Metric.THROUGHPUT
    process_spread: float = PROCESS_SPREAD
    python: str = sys.executable
    expected_bytes: int = 0
    _worker: WorkerProcess | None = field(init=False, default=None)

    def start(self) -> Mapping[str, Any]:
        self._worker = WorkerProcess(self.environment, self.python)
        request = {"do": "prepare", "factory": self.factory, "arguments": self.arguments}
        facts: Mapping[str, Any] = self._worker.ask(request, timeout_s=PREPARE_TIMEOUT_S)["facts"]
        return {**facts, **self.facts}

    def warm_up(self, limit_s: float) -> WarmUp:
        timeout_s = limit_s + STEP_TIMEOUT_S
        return WarmUp(**self._running.ask({"do": "warm_up", "seconds": limit_s}, timeout_s=timeout_s))

    def measure(self, seconds: float) -> Slice:
        """Run whole steps for at least `seconds`."""
        request = {"do": "measure", "seconds": seconds, "latencies": self.latencies}
        reply = self._running.ask(request, timeout_s=seconds + STEP_TIMEOUT_S)
        return Slice(
            value=reply["items"] / reply["seconds"],
            items=reply["items"],
            seconds=reply["seconds"],
            latencies_ms=tuple(reply["latencies_ms"]),
        )

    def cpu_s(self) -> float:
        return self._running.cpu_s()

    def peak_bytes(self) -> int:
        return memory.peak_bytes(self._running.pid)

    def finish(self) -> Finish:
        """Return memory, outputs and what threads ran."""
        reply = self._running.ask({"do": "finish"}, timeout_s=STEP_TIMEOUT_S)
        metrics = {
            Metric.RESIDENT_MEMORY: Measurement.exact(reply["resident_mib"], "MiB"),
            Metric.PEAK_MEMORY: Measurement.exact(reply["peak_mib"], "MiB"),
        }
        return Finish(metrics=metrics, outputs=reply["outputs"], facts=reply["facts"])

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()

    @property
    def _running(self) -> WorkerProcess:
        if self._worker is None:
            raise VariantError("not started")
        return self._worker
