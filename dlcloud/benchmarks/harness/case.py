"""A case: the same work in several settings, its limits and results, and the session that cases share."""

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import statistics, usage
from .energy import Energy, read_energy
from .records import Recorder
from .resume import MeasuredCase
from .roofline import Peaks
from .usage import CpuTimes, Disturbance
from .variant import Finish, Slice, Variant, WarmUp


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


@dataclass(frozen=True, slots=True, kw_only=True)
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
