"""An arm that trains: a worker whose throughput is also told as the time of an epoch."""

import random
from dataclasses import dataclass, field

from ..harness import statistics
from ..harness.arm import Finish, Slice, WorkerArm
from ..harness.records import Measured, Metric


@dataclass(slots=True, kw_only=True)
class TrainingArm(WorkerArm):
    """A worker that trains.

    Args:
        epoch_images: How many images an epoch has; none is run, its time is computed from the throughput.
    """

    epoch_images: int
    _throughputs: list[float] = field(init=False, default_factory=list)

    def measure(self, seconds: float) -> Slice:
        """Run whole steps for at least `seconds`."""
        # Slotted dataclasses are made anew, which leaves a bare super() without its class.
        measured = WorkerArm.measure(self, seconds)
        self._throughputs.append(measured.value)
        return measured

    def finish(self) -> Finish:
        """Return memory, outputs and the computed time of an epoch."""
        finished = WorkerArm.finish(self)
        epoch = epoch_duration(self._throughputs, self.epoch_images)
        return Finish(metrics={Metric.EPOCH_DURATION: epoch, **finished.metrics}, outputs=finished.outputs)


def epoch_duration(throughputs: list[float], images: int) -> Measured:
    """Return the seconds that an epoch of so many images takes at these throughputs (images/s)."""
    # The interval of a figure that is computed needs no seed of its own.
    durations = [images / throughput for throughput in throughputs]
    interval = statistics.bootstrap(durations, random.Random(0))  # noqa: S311
    low, middle, high = (float(f"{each:.6g}") for each in (interval.low, interval.value, interval.high))
    return Measured(value=middle, low=low, high=high, unit="s", samples=len(durations))
