"""How close a setting came to its machine: its work compared with peaks that the same engine reached there.

A peak is the best of repeated products of matrices of several sizes in the setting's data type, and the best
bandwidth of a pass over arrays that no cache holds. Source: Williams, Waterman and Patterson 2009, "Roofline:
an insightful visual performance model".
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

SIZES = (512, 1024, 2048, 4096, 8192)
"""Rows and columns of the matrices that are multiplied."""

TRIES = 3

LONGEST_RUN = 0.03
"""Share of the time for a data type that one product may take; larger ones are not tried."""

LEAST_RUNS, MOST_TIMES = 3, 4
"""A peak takes at least this many runs; at most this many times as long as planned, while it still rises."""

RISE = 0.01
"""A run that is better than all before by this share shows that the peak was not reached yet."""

ARRAY_BYTES, ARRAY_BYTES_PER_CPU = 64 << 20, 8 << 20
"""Size of an array of the pass over memory: at least the first, and the second for each CPU."""

ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "int8": 1}
"""Size of a value in each data type."""

GIGA = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of one item, such as an image or a token, in a step of the size that is measured.

    Attributes:
        flop: Operations, two for each multiply-add.
        bytes: The least that moves where no cache holds it; 0 if unknown.
        uncounted: Operators that count as no operation.
    """

    flop: float
    bytes: float = 0.0
    uncounted: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        moved = {"bytes_per_input": round(self.bytes)} if self.bytes else {}
        return {"flop_per_input": round(self.flop), **moved, "uncounted_operators": list(self.uncounted)}

    def computed_in(self, dtype: str) -> "Work":
        """Return the same work in a data type, counted in fp32: fewer bytes, the same operations."""
        return replace(self, bytes=self.bytes * ELEMENT_BYTES[dtype] / ELEMENT_BYTES["fp32"])

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "Work | None":
        """Return the work that a setting's facts state; None if they state none."""
        flop = facts.get("flop_per_input")
        if not flop:
            return None
        uncounted = tuple(facts.get("uncounted_operators") or ())
        return cls(flop=flop, bytes=facts.get("bytes_per_input") or 0.0, uncounted=uncounted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The best that an engine reached on a machine, in one data type (a key of ELEMENT_BYTES)."""

    dtype: str
    flop_per_s: float
    bytes_per_s: float


@dataclass(slots=True)
class Peaks:
    """The peaks of one run of a program, each measured once."""

    _measured: dict[tuple[str, str], Peak | None] = field(default_factory=dict)

    def keep(self, name: str, environment: str, measure: Callable[[], Peak | None]) -> None:
        """Measure a peak unless it was measured in that environment before."""
        if (name, environment) not in self._measured:
            self._measured[name, environment] = measure()

    def best(self, name: str) -> Peak | None:
        """Return the best of a name in any environment, with the best bandwidth of all; None without any."""
        measured = [peak for peak in self._measured.values() if peak is not None]
        named = [peak for (kept, _), peak in self._measured.items() if kept == name and peak is not None]
        if not named:
            return None
        best = max(named, key=lambda peak: peak.flop_per_s)
        return replace(best, bytes_per_s=max(peak.bytes_per_s for peak in measured))


def share_of_peak(work: Work, items_per_s: float, peak: Peak) -> dict[str, Any]:
    """Return as facts which share of a machine's peak a setting reached, and what bounds it.

    `share_of_peak_percent` is of the bandwidth if `bound` is memory, else of the operations; at most 100: a
    setting that did more than the products of matrices is the peak, and `peak_raised_percent` says by how
    much. One that did more than memory can bring had a part of it in caches: it is bound by compute.
    """
    flop_per_s, bytes_per_s = work.flop * items_per_s, work.bytes * items_per_s
    of_flop, of_bytes = flop_per_s / peak.flop_per_s, bytes_per_s / peak.bytes_per_s
    is_memory = of_flop < of_bytes <= 1.0
    raised = {"peak_raised_percent": round(100 * (of_flop - 1), 2)} if of_flop > 1.0 else {}
    return {
        "share_of_peak_percent": round(100 * min(1.0, of_bytes if is_memory else of_flop), 2),
        "bound": "memory" if is_memory else "compute",
        "reached_gflops": round(flop_per_s / GIGA, 3),
        "peak_gflops": round(max(peak.flop_per_s, flop_per_s) / GIGA, 3),
        "peak_gb_per_s": round(peak.bytes_per_s / GIGA, 3),
        "peak_dtype": peak.dtype,
        **raised,
    }


def best_product(
    make: Callable[[int], Callable[[], object]],
    seconds: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the best FLOP/s of square matrix multiplications; `make` returns one of a number of rows.

    Takes about `seconds`. All sizes are tried several times: other work may disturb all runs of one try.
    """
    best, try_s = 0.0, seconds / len(SIZES) / TRIES
    for size in SIZES * TRIES:
        flop = 2 * size**3
        if not best or size == SIZES[0] or flop / best < LONGEST_RUN * seconds:
            best = max(best, best_rate(make(size), flop, try_s, clock=clock))
    return best


def best_rate(
    run: Callable[[], object],
    amount: float,
    seconds: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the best amount a second of repeated runs, after one that does not count.

    It continues while runs become faster: on a busy machine the first ones are no peak.
    """
    run()
    began = risen = clock()
    best, runs = float("inf"), 0
    while True:
        start = clock()
        run()
        now = clock()
        runs += 1
        if now - start < best * (1 - RISE):
            risen = now
        best = min(best, now - start)
        is_flat = now - risen >= seconds / 2 and now - began >= seconds
        if runs >= LEAST_RUNS and (is_flat or now - began >= MOST_TIMES * seconds):
            return amount / best


def array_values() -> int:
    """Return how many float32 values an array of the pass over memory has: more than caches hold."""
    return max(ARRAY_BYTES, ARRAY_BYTES_PER_CPU * (os.cpu_count() or 1)) // ELEMENT_BYTES["fp32"]
