"""Resuming: which finished cases of interrupted runs a new run takes over, and what resuming saves."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dlcloud.analysis.result import Run, RunState, parse_record

RESUME_WINDOW = timedelta(days=7)
"""Interrupted work older than this is measured again: prices, images and drivers have moved on."""

INTERRUPTED = frozenset({RunState.LOST, RunState.FAILED})
PARTS = frozenset({"result", "comparison", "overall"})

HOURS_BETWEEN = 10.0
"""Assumed between two interruptions of a spot instance: EC2 publishes no rate by the hour."""
RESTART_HOURS = 0.1
"""From an interruption to the first step on the replacement: boot, environment, checkpoints."""


def expected_hours(work_hours: float) -> tuple[float, float]:
    """Return the expected billed hours of some work, resumed and from the beginning after each interruption.

    Interruptions come at random, `HOURS_BETWEEN` apart on average. From the beginning, the work is done once
    no interruption comes for its whole length.
    """
    interruptions = work_hours / HOURS_BETWEEN
    restarted = (HOURS_BETWEEN + RESTART_HOURS) * math.expm1(min(interruptions, 50.0))
    return work_hours + interruptions * RESTART_HOURS, restarted


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedCase:
    """A case that was measured completely: its name, and its lines with the `start` that they belong to."""

    name: str
    start: str
    lines: tuple[str, ...]


def resumable_runs(runs: Iterable[Run], like: Run) -> list[Run]:
    """Return the runs whose finished cases a new run may take over, the oldest first.

    They ran the same workload on the same instance type in the same cloud, were interrupted or failed within
    the window, and none of their kind has succeeded since: measuring again after a success is intended.

    Args:
        runs: All stored runs.
        like: The new run.
    """
    alike = [
        run
        for run in sorted(runs, key=lambda run: run.started_at)
        if (run.workload, run.instance_type, run.cloud) == (like.workload, like.instance_type, like.cloud)
        and run.run_id != like.run_id
    ]
    ended_well = [place for place, run in enumerate(alike) if run.state is RunState.DONE]
    since = alike[ended_well[-1] + 1 :] if ended_well else alike
    return [
        run for run in since if run.state in INTERRUPTED and like.started_at - run.started_at <= RESUME_WINDOW
    ]


def finished_cases(lines: Iterable[str]) -> list[FinishedCase]:
    """Return the finished cases among records, each once; `lines` are of one run after the other."""
    cases: dict[str, FinishedCase] = {}
    for case, end in _ended(lines):
        # A case that one run took over from another is in the records of both, at another time.
        cases.setdefault(repr(sorted((key, value) for key, value in end.items() if key != "time")), case)
    return list(cases.values())


def _ended(lines: Iterable[str]) -> Iterator[tuple[FinishedCase, dict[str, Any]]]:
    start = ""
    since: list[str] = []
    for line in lines:
        record = parse_record(line) or {}
        kind = record.get("record")
        if kind == "start":
            start, since = line, []
        elif kind in PARTS:
            since.append(line)
        elif kind == "case":
            if record.get("complete") is True and start:
                case = FinishedCase(name=str(record.get("case")), start=start, lines=(*since, line))
                yield case, record
            since = []
