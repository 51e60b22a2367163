"""What is measured: a variant is one setting of an experiment, a case the same work in several settings.

A program makes its cases; `protocol.measure` starts each variant, most of them as its own process
(`WorkerProcess`, driven by `worker.py`), warms it up, measures slices of it in turn with the others, and asks
it at the end for what is known only then. A worker is frozen between its slices so that it cannot disturb the
others, and no process of a variant may be left when its case ends. A `Session` has what the cases of one
program share: limits, records, clocks, and the cases that an earlier run measured. A `Workload` is what a
worker runs: a framework made ready, or facts alone.
"""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol, runtime_checkable

from . import statistics, usage
from .records import MeasuredCase, Recorder
from .roofline import Peak, Peaks
from .schema import Measurement, MetricName
from .usage import CpuTimes, Disturbance, Energy, MemoryUser, read_energy

PIECE_BYTES = 1 << 16

PREPARE_TIMEOUT_S = 3600.0

STEP_TIMEOUT_S = 600.0
"""How long one step may take beyond the requested time."""

PROCESS_SPREAD = 0.02
"""How far two processes of one program may differ for their whole life, as a share.

The cause is where their memory lies. Two equal workers on an otherwise quiet machine differed by up to 3 %,
mostly by less than 2, in every slice; no number of slices shows that, so intervals are widened by it.
"""


class VariantError(Exception):
    """A setting cannot be measured; the message says why, `missing` names a module not installed."""

    def __init__(self, message: str, missing: str | None = None) -> None:
        super().__init__(message)
        self.missing = missing


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """How a warm-up went; `settled` is False if it was cut off before the times agreed."""

    steps: int
    seconds: float
    settled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What a variant did in one slice of time."""

    value: float  # the main metric over the slice
    items: float  # number of images, or of runs
    seconds: float  # length of the slice
    latencies_ms: tuple[float, ...] = ()  # single steps, if they are recorded
    # Values within the slice, if the variant reports several; `value` is their median.
    parts: tuple[float, ...] = ()
    settled: bool = True  # False if the parts never agreed with each other

    @classmethod
    def of_parts(cls, parts: tuple[float, ...], *, seconds: float, settled: bool) -> "Slice":
        return cls(value=median(parts), items=1, seconds=seconds, parts=parts, settled=settled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """What is known of a variant only after it was measured."""

    metrics: Mapping[str, Measurement]
    outputs: list[list[float]]
    facts: Mapping[str, Any] = field(default_factory=dict)


class Variant(MemoryUser, Protocol):
    """One setting of an experiment. Every method may raise VariantError: the setting cannot be measured."""

    @property
    def name(self) -> str:
        """Return the name of the setting."""

    @property
    def metric(self) -> MetricName:
        """Return the main metric, by which settings are compared."""

    @property
    def unit(self) -> str:
        """Return the unit of the main metric."""

    @property
    def process_spread(self) -> float:
        """Return how far one process of the setting may be from another, as a share (0 to 1)."""

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


class Workload(Protocol):
    """A framework made ready to run one setting.

    It may have `untimed_s`: the seconds of its steps so far that do not count, as of going back to a
    beginning.
    """

    items_per_step: int  # how many images one step takes; 0 where there is nothing to time
    facts: Mapping[str, Any]  # what is known of the setting before it runs

    def step(self) -> None:
        """Run once and wait for the result."""

    def outputs(self) -> list[list[float]]:
        """Return what the setting computes, a row an input, for comparison between settings."""


@runtime_checkable
class PeakMeasuring(Protocol):
    """A workload that can say what its engine reaches at best in the data type that it computes in."""

    def measure_peak(self, seconds: float) -> Peak | None:
        """Measure the peak in a few times `seconds`; None if the engine has no product of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UntimedWorkload:
    """A workload that only reports facts, such as those of a model that it built."""

    facts: Mapping[str, Any]
    items_per_step: int = 0

    def step(self) -> None:
        """Do nothing."""

    def outputs(self) -> list[list[float]]:
        return []


@dataclass(slots=True)
class WorkerProcess:
    """A running worker; between requests it is frozen so that it cannot disturb the others.

    Processes that it starts itself, such as a Java machine, are ended with it, but not frozen: a frozen
    process would outlive a coordinator that is killed.
    """

    environment: Mapping[str, str]  # the whole environment of the process
    python: str = sys.executable
    _process: subprocess.Popen[bytes] = field(init=False)
    _unread: bytes = field(init=False, default=b"")

    def __post_init__(self) -> None:
        package = __package__ or "benchmarks.harness"
        root = Path(__file__).resolve().parents[package.count(".") + 1]
        path = os.pathsep.join(part for part in (str(root), self.environment.get("PYTHONPATH", "")) if part)
        self._process = subprocess.Popen(
            [self.python, "-m", f"{package}.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**self.environment, "PYTHONPATH": path},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Send a request, wait for its reply, and freeze the process again.

        Raises:
            VariantError: The worker refused, died, or did not answer in time.
        """
        try:
            # Not Popen.send_signal: it polls under a lock that an interruption could leave held for `close`.
            os.kill(self.pid, signal.SIGCONT)
            assert self._process.stdin is not None  # noqa: S101 - requested as a pipe above
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise VariantError(self._death()) from None
        reply: dict[str, Any] = json.loads(self._read_line(request["do"], timeout_s))
        if "error" in reply:
            raise VariantError(reply["error"], reply["missing"])
        os.kill(self.pid, signal.SIGSTOP)
        return reply

    def close(self) -> None:
        """Kill the process and its descendants, frozen or not, and wait until it is gone."""
        if self._process.poll() is None:
            for pid in usage.process_tree(self.pid):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):  # what is still buffered for a dead process
                assert pipe is not None  # noqa: S101 - requested as a pipe above
                pipe.close()

    def _read_line(self, request: str, timeout_s: float) -> bytes:
        assert self._process.stdout is not None  # noqa: S101 - requested as a pipe above
        stream = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            readable, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise VariantError(f"no answer to {request} within {timeout_s:.0f} s")
            piece = os.read(stream, PIECE_BYTES)
            if not piece:
                raise VariantError(self._death())
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _death(self) -> str:
        return f"the worker process {describe_exit(self._process.wait())}"


def describe_exit(status: int) -> str:
    """Return how a process ended, from its exit status as subprocess gives it."""
    if status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name
    return f"was ended by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")


@dataclass(slots=True, kw_only=True)
class WorkerVariant:
    """A variant in a fresh worker process with its own environment."""

    name: str
    unit: str  # unit of the throughput, such as images/s
    factory: str  # `module:function` of `benchmarks` that makes the workload
    arguments: Mapping[str, Any]  # its keyword arguments; must survive JSON
    environment: Mapping[str, str]  # the whole environment of the process
    latencies: bool = False  # record the time of every step
    # Facts known before it starts, added to those of the workload.
    facts: Mapping[str, Any] = field(default_factory=dict)
    metric: MetricName = MetricName.THROUGHPUT
    process_spread: float = PROCESS_SPREAD
    python: str = sys.executable  # the interpreter, if it is not the one that measures
    expected_bytes: int = 0  # the most memory it may hold; 0 if unknown
    peak_name: str = ""  # what the machine's peak is called, such as `openvino int8`; empty without one
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
        request = {"do": "measure", "seconds": seconds, "latencies": self.latencies}
        reply = self._running.ask(request, timeout_s=seconds + STEP_TIMEOUT_S)
        return Slice(
            value=reply["items"] / reply["seconds"],
            items=reply["items"],
            seconds=reply["seconds"],
            latencies_ms=tuple(reply["latencies_ms"]),
        )

    def cpu_s(self) -> float:
        return usage.process_cpu_s(self._running.pid)

    def peak_bytes(self) -> int:
        return usage.memory_of(self._running.pid, "VmHWM")

    def finish(self) -> Finish:
        reply = self._running.ask({"do": "finish"}, timeout_s=STEP_TIMEOUT_S)
        metrics: dict[str, Measurement] = {
            MetricName.RESIDENT_MEMORY: Measurement.exact(reply["resident_mib"], "MiB"),
            MetricName.PEAK_MEMORY: Measurement.exact(reply["peak_mib"], "MiB"),
        }
        return Finish(metrics=metrics, outputs=reply["outputs"], facts=reply["facts"])

    def measure_peak(self, peaks: Peaks, seconds: float) -> None:
        """Measure what the machine reaches at best, unless it was measured before."""
        if self.peak_name:
            environment = json.dumps([self.python, dict(self.environment)], sort_keys=True)
            peaks.keep(self.peak_name, environment, lambda: self._ask_peak(seconds))

    def _ask_peak(self, seconds: float) -> Peak | None:
        reply = self._running.ask({"do": "peak", "seconds": seconds}, timeout_s=seconds + STEP_TIMEOUT_S)
        return Peak(**reply) if reply else None

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()

    @property
    def _running(self) -> WorkerProcess:
        if self._worker is None:
            raise VariantError("not started")
        return self._worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to stop."""

    width: float = 0.05  # relative width of the speed-up's interval that is narrow enough
    # Seconds of measuring after which no further round of the settings that run side by side begins; `rounds`
    # are measured in any case.
    max_s: float = 60.0
    rounds: int = statistics.MINIMUM_PAIRS  # rounds before the first look at the width
    slice_s: float = 1.0  # least length of a slice
    warm_up_s: float = 30.0  # seconds after which a warm-up that has not ended is cut off
    fixed: bool = False  # stop after exactly `rounds`
    redo: bool = True  # measure a slice again that other work disturbed


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One comparison: the same work in several settings, the baseline first."""

    name: str  # such as `vgg16 batch 1`
    variants: Sequence[Variant]  # the settings, not yet started
    # Facts about a candidate from the baseline's outputs and its own.
    compare: Callable[[list[list[float]], list[list[float]]], Mapping[str, Any]] = lambda _ours, _theirs: {}
    # The baseline of a setting, by names, if it is not the first setting; a baseline is its own.
    baselines: Mapping[str, str] = field(default_factory=dict)
    contenders: Collection[str] = ()  # settings of which the best is a second baseline for all others

    @property
    def settings(self) -> tuple[str, ...]:
        return tuple(variant.name for variant in self.variants)

    def baseline_of(self, setting: str) -> str:
        return self.baselines.get(setting, self.variants[0].name)


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """What the cases of one program share."""

    limits: Limits
    recorder: Recorder
    generator: random.Random
    # Cases measured by an earlier run, by name and settings; they are not measured again.
    earlier: Mapping[tuple[str, tuple[str, ...]], MeasuredCase] = field(default_factory=dict)
    record_earlier: bool = True  # record them again; False if their records are in the same file
    read_cpu_times: Callable[[], CpuTimes] = usage.read_cpu_times
    read_energy: Callable[[], Energy] = read_energy
    own_cpu_s: Callable[[], float] = time.process_time  # CPU seconds of the coordinating process itself
    # Memory that more settings may take; None if unknown.
    free_bytes: Callable[[], int | None] = usage.free_bytes
    clock: Callable[[], float] = time.monotonic  # seconds from any start, monotonic
    is_finishing: Callable[[], bool] = lambda: False  # True once no further round is to begin
    peaks: Peaks = field(default_factory=Peaks)  # of this machine, as far as they were measured
    # Duration of each case so far; the remaining time is estimated from it.
    took_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedSlice:
    """A slice that counts, what other work took of it, and the number of its round."""

    round: int
    slice: Slice
    disturbance: Disturbance
    joules: float | None = None  # of all processor packages, this slice's and other work's

    @property
    def value(self) -> float:
        return self.slice.value


@dataclass(slots=True, kw_only=True)
class VariantResult:
    """A variant and everything measured of it so far."""

    variant: Variant
    facts: dict[str, Any] = field(default_factory=dict)
    warm_up: WarmUp | None = None
    slices: list[AcceptedSlice] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def name(self) -> str:
        return self.variant.name

    @property
    def values(self) -> list[float]:
        return [accepted.value for accepted in self.slices]
