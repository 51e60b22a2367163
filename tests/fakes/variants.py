"""Variants of known speed on a machine whose time passes only while they run."""

import random
from dataclasses import dataclass, field

from dlcloud.benchmarks.harness.case import Finish, Limits, Session, Slice, VariantError, WarmUp
from dlcloud.benchmarks.harness.schema import MetricName
from dlcloud.benchmarks.harness.usage import CpuTimes


@dataclass
class Machine:
    """A two-CPU machine whose time passes while a variant runs; `others` is what others take, by slice."""

    others: dict = field(default_factory=dict)
    now: float = 0.0
    busy: float = 0.0
    stolen: float = 0.0
    slices: int = 0
    memory: int | None = None
    taken: int = 0

    def free(self):
        return None if self.memory is None else self.memory - self.taken

    def run(self, seconds):
        self.now += seconds
        self.busy += seconds + self.others.get(self.slices, 0.0) * 2 * seconds
        self.slices += 1

    def read_cpu_times(self):
        return CpuTimes(busy=self.busy, stolen=self.stolen, total=2 * self.now)


@dataclass
class FakeVariant:
    """A variant of known speed on a Machine; it fails in the call `fails`, at the slice `fails_at`."""

    name: str
    speed: float
    machine: Machine
    log: list = field(default_factory=list)
    noise: float = 0.0
    settled: bool = True
    fails: str = ""
    fails_at: int = 0
    metric: MetricName = MetricName.THROUGHPUT
    unit: str = "images/s"
    process_spread: float = 0.0
    used: float = 0.0
    measured: int = 0
    closed: bool = False
    expected_bytes: int = 0
    peak: int = 0
    generator: random.Random = field(default_factory=lambda: random.Random(4))

    def start(self):
        self._maybe_fail("start")
        self.machine.taken += self.peak
        return {"model_bytes": 100}

    def peak_bytes(self):
        return self.peak

    def warm_up(self, limit_s):
        self._maybe_fail("warm_up")
        return WarmUp(steps=6, seconds=min(1.0, limit_s), settled=self.settled)

    def measure(self, seconds):
        if self.measured == self.fails_at:
            self._maybe_fail("measure")
        self.measured += 1
        self.log.append(self.name)
        self.machine.run(seconds)
        self.used += seconds
        speed = self.speed * (1 + self.generator.gauss(0, self.noise))
        return Slice(value=speed, items=speed * seconds, seconds=seconds, latencies_ms=(1000 / speed,) * 5)

    def cpu_s(self):
        return self.used

    def finish(self):
        self._maybe_fail("finish")
        return Finish(metrics={}, outputs=[[self.speed]])

    def close(self):
        if not self.closed:
            self.machine.taken -= self.peak
        self.closed = True

    def _maybe_fail(self, call):
        if self.fails == call:
            raise VariantError(f"no {call} today")


def session_of(machine, recorder, limits=None, **more):
    """Return a session on a machine, in its time."""
    return Session(
        limits=limits or Limits(),
        recorder=recorder,
        read_cpu_times=machine.read_cpu_times,
        generator=random.Random(0),
        own_cpu_s=lambda: 0.0,
        free_bytes=machine.free,
        clock=lambda: machine.now,
        **more,
    )
