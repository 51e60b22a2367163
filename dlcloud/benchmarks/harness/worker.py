"""Run one setting in its own process: `python3 -m benchmarks.harness.worker`, driven by JSON lines.

One request a line on stdin, one reply a line on stdout; the output of a framework goes to stderr instead.

prepare {factory: "module:function" of `benchmarks`, arguments}   -> {facts}
warm_up {seconds: at most}                                       -> {steps, seconds, settled}
measure {seconds: at least, latencies: bool}                     -> {items, seconds, latencies_ms}
finish  {}                                                 -> {resident_mib, peak_mib, outputs, facts}
peak    {seconds: about}                 -> {dtype, flop_per_s, bytes_per_s}, or {} of a workload without one

A request that fails is answered {error: text, missing: name of the module that is not installed, or null}.
The end of stdin ends the worker.
"""

import ctypes
import importlib
import json
import os
import re
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from . import statistics, usage
from .case import PeakMeasuring, Workload

PR_SET_PDEATHSIG = 1
"""Source: prctl(2), linux/prctl.h."""

LEAST_TIMED_S = 0.005
"""Steps of the warm-up are timed in groups of at least this long; shorter ones are mostly noise."""

LATENCIES_KEPT = 250


class Worker:
    """Answers requests about one workload."""

    def __init__(self) -> None:
        self._workload: Workload | None = None

    def answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out a request and return the reply; an exception becomes a reply, too."""
        try:
            return self._carry_out(request)
        except ModuleNotFoundError as error:
            # A package may raise it with its own text, and without a name.
            text = f"{error.name} is not installed" if error.name else " ".join(str(error).split())
            return {"error": text[:2000], "missing": error.name}
        except Exception as error:  # noqa: BLE001 - any exception fails this setting only
            text = " ".join(str(error).split())
            return {"error": f"{type(error).__name__}: {text}"[:2000], "missing": None}

    def _carry_out(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        match request["do"]:
            case "prepare":
                return self._prepare(request["factory"], request["arguments"])
            case "warm_up":
                return _warm_up(self._ready(), request["seconds"])
            case "measure":
                return _measure(self._ready(), request["seconds"], latencies=request["latencies"])
            case "finish":
                return {**_memory(), "facts": _threads(), "outputs": self._ready().outputs()}
            case "peak":
                return _peak(self._ready(), request["seconds"])
            case unknown:
                raise ValueError(f"unknown request {unknown}")

    def _prepare(self, factory: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        module, _, function = factory.partition(":")
        make = getattr(importlib.import_module(f"..{module}", __package__), function)
        self._workload = make(**arguments)
        return {"facts": dict(self._ready().facts)}

    def _ready(self) -> Workload:
        if self._workload is None:
            raise ValueError("nothing is prepared")
        return self._workload


def _warm_up(workload: Workload, limit_s: float) -> Mapping[str, Any]:
    """Run until the last two medians of three times agree, or until `limit_s` have passed."""
    began = _clock(workload)
    times: list[float] = []
    steps = 0
    group = 1
    while not statistics.is_settled(times):
        start = _clock(workload)
        if times and start - began >= limit_s:
            return {"steps": steps, "seconds": start - began, "settled": False}
        for _ in range(group):
            workload.step()
        steps += group
        seconds = _clock(workload) - start
        times.append(seconds / group)
        if seconds < LEAST_TIMED_S:
            group *= 2
            times.clear()
    return {"steps": steps, "seconds": _clock(workload) - began, "settled": True}


def _clock(workload: Workload) -> float:
    """Return the time in seconds, which stands still while a workload does what its steps do not count."""
    untimed_s: float = getattr(workload, "untimed_s", 0.0)
    return time.perf_counter() - untimed_s


def _measure(workload: Workload, least_s: float, *, latencies: bool) -> Mapping[str, Any]:
    ends = [_clock(workload)]
    until = ends[0] + least_s
    while ends[-1] < until:
        workload.step()
        ends.append(_clock(workload))
    steps = len(ends) - 1
    times = [1000 * (after - before) for before, after in pairwise(ends)] if latencies else []
    thinned = times[:: -(-len(times) // LATENCIES_KEPT)] if times else []
    return {
        "items": steps * workload.items_per_step,
        "seconds": ends[-1] - ends[0],
        "latencies_ms": [round(value, 4) for value in thinned],
    }


def _peak(workload: Workload, seconds: float) -> dict[str, Any]:
    peak = workload.measure_peak(seconds) if isinstance(workload, PeakMeasuring) else None
    return {} if peak is None else asdict(peak)


def _memory() -> dict[str, float]:
    """Return the resident memory now and at its peak, with that of processes it started, in MiB.

    Without `/proc` both are the peak, from getrusage(2).
    """
    resident, peak = (usage.memory_of(os.getpid(), field) for field in ("VmRSS", "VmHWM"))
    if not resident:
        unit = 1 if sys.platform == "darwin" else 1 << 10
        resident = peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"resident_mib": resident / usage.MIB, "peak_mib": peak / usage.MIB}


def _threads() -> dict[str, Any]:
    """Return the number of threads, and how many may run on which CPUs: `{"0-3": 5}`.

    Source: proc_pid_status(5), Cpus_allowed_list.
    """
    tasks = [Path(f"/proc/{pid}/task") for pid in usage.process_tree(os.getpid())]
    pinned: Counter[str] = Counter()
    for file in (file for task in tasks for file in task.glob("*/status")):
        pinned.update(re.findall(r"^Cpus_allowed_list:\s*(\S+)", usage.read_text(file), re.MULTILINE))
    return {"threads_running": pinned.total(), "threads_allowed_on": dict(pinned)} if pinned else {}


def serve(requests: TextIO, replies: TextIO) -> None:
    worker = Worker()
    for line in requests:
        replies.write(json.dumps(worker.answer(json.loads(line))) + "\n")
        replies.flush()


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies, even while it is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Keep stdout for replies, redirect all other output to stderr, and serve."""
    _die_with_parent()
    # Ctrl-C reaches the whole group; the coordinator ends workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin, replies)


if __name__ == "__main__":
    main()
