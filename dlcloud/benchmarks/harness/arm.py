"""An arm: one setting of an experiment, as the harness sees it, and the arm that is a worker process."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from . import memory, statistics
from .process import ArmFailedError, WorkerProcess
from .records import Measured, Metric

PREPARE_TIMEOUT_S = 3600.0
PROCESS_SPREAD = 0.02
"""How far two processes of one program may differ for as long as they live.

Where their memory comes to lie decides. Two equal workers on an otherwise quiet machine differed by up to
3 %, mostly by less than 2, in every slice; no number of slices shows that, so intervals are widened by it.
"""

STEP_TIMEOUT_S = 600.0
"""How long one step may take beyond what was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """How a warm-up went; `settled` is False where it was cut off before the times agreed."""

    steps: int
    seconds: float
    settled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What an arm did in one slice of time.

    Attributes:
        value: The main metric over the slice.
        items: How many images, or runs.
        seconds: How long the slice took.
        latencies_ms: Single steps, where they are asked for.
        parts: Values within the slice, where the arm reports several; `value` is their median.
        settled: False where the parts never agreed with each other.
    """

    value: float
    items: float
    seconds: float
    latencies_ms: tuple[float, ...] = ()
    parts: tuple[float, ...] = ()
    settled: bool = True

    @classmethod
    def of_parts(cls, parts: tuple[float, ...], *, seconds: float, settled: bool) -> Self:
        """Return the slice of an arm that reports several values of its own."""
        return cls(value=statistics.median(parts), items=1, seconds=seconds, parts=parts, settled=settled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """What an arm says at its end."""

    metrics: Mapping[Metric, Measured]
    outputs: list[list[float]]
    facts: Mapping[str, Any] = field(default_factory=dict)


class Arm(Protocol):
    """One setting of an experiment."""

    @property
    def name(self) -> str:
        """Return the setting's name."""

    @property
    def metric(self) -> Metric:
        """Return the main metric, the one that settings are compared by."""

    @property
    def unit(self) -> str:
        """Return the main metric's unit."""

    @property
    def process_spread(self) -> float:
        """Return how far one process of the setting may be from another, as a share (0 to 1)."""

    @property
    def expected_bytes(self) -> int:
        """Return how much memory it is expected to hold at most; 0 where nothing is known."""

    def peak_bytes(self) -> int:
        """Return the most memory that it has held so far while it waits; 0 where that is none, or unknown."""

    def start(self) -> Mapping[str, Any]:
        """Make everything ready and return the facts.

        Raises:
            ArmFailedError: It cannot be measured. So for every method below.
        """

    def warm_up(self, limit_s: float) -> WarmUp:
        """Run until the times no longer fall, at most about `limit_s`."""

    def measure(self, seconds: float) -> Slice:
        """Run for at least `seconds`."""

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far."""

    def finish(self) -> Finish:
        """Return what is known only after measuring."""

    def close(self) -> None:
        """End every process of it; also right where start failed or was never called."""


@dataclass(slots=True, kw_only=True)
class WorkerArm:
    """An arm in a fresh worker process with an environment of its own.

    Args:
        name: The setting's name.
        unit: What throughput counts, such as images/s.
        factory: `module:function` of `benchmarks` that makes the workload.
        arguments: Its keyword arguments; must survive JSON.
        environment: The whole environment of the process.
        latencies: Whether the time of every step is wanted.
        known: Facts known before it starts, added to those of the workload.
        python: The interpreter, where it is not the one that measures.
        expected_bytes: How much memory it may hold at most; 0 where nothing is known.
    """

    name: str
    unit: str
    factory: str
    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    latencies: bool = False
    known: Mapping[str, Any] = field(default_factory=dict)
    metric: Metric = Metric.THROUGHPUT
    process_spread: float = PROCESS_SPREAD
    python: str = sys.executable
    expected_bytes: int = 0
    _worker: WorkerProcess | None = field(init=False, default=None)

    def start(self) -> Mapping[str, Any]:
        """Start the process, make the workload and return its facts."""
        self._worker = WorkerProcess(self.environment, self.python)
        request = {"do": "prepare", "factory": self.factory, "arguments": self.arguments}
        facts: Mapping[str, Any] = self._worker.ask(request, timeout_s=PREPARE_TIMEOUT_S)["facts"]
        return {**facts, **self.known}

    def warm_up(self, limit_s: float) -> WarmUp:
        """Run until the times of steps no longer fall."""
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
        """Return the CPU seconds of the process."""
        return self._running.cpu_s()

    def peak_bytes(self) -> int:
        """Return the most memory that the process, with all that it started, has held."""
        return memory.peak_bytes(self._running.pid)

    def finish(self) -> Finish:
        """Return memory and outputs."""
        reply = self._running.ask({"do": "finish"}, timeout_s=STEP_TIMEOUT_S)
        metrics = {
            Metric.RESIDENT_MEMORY: _exact(reply["resident_mib"], "MiB"),
            Metric.PEAK_MEMORY: _exact(reply["peak_mib"], "MiB"),
        }
        return Finish(metrics=metrics, outputs=reply["outputs"], facts=reply["facts"])

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.close()

    @property
    def _running(self) -> WorkerProcess:
        if self._worker is None:
            raise ArmFailedError("not started")
        return self._worker


def _exact(value: float, unit: str) -> Measured:
    value = round(value, 2)
    return Measured(value=value, low=value, high=value, unit=unit, samples=1)
