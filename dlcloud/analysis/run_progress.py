"""How far a run is, by the records that it sent: steps or cases, the time left, and whether it stalls."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

from dlcloud.analysis.result import Run, RunState
from dlcloud.model.events import describe_values
from dlcloud.model.untrusted import count_or_none, number_or_none, parse_json, time_or_none

RECENT = 50
"""Steps from which the speed is taken."""
STALL_S, STALL_FACTOR = 30.0, 10
"""A step that takes longer, in seconds and in usual steps, is a stall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """The progress of a run.

    Attributes:
        done: Steps, or cases.
        total: None where it is not known.
        unit: What is counted.
        workers: Of the last step; None for a benchmark.
        step_s: The usual time of a recent step; None for a benchmark.
        left_s: An estimate of the time left; None where it is not known.
        silent_s: Since the last record.
        message: Of the program, where it sends one.
    """

    done: int
    total: int | None
    unit: str
    workers: int | None = None
    step_s: float | None = None
    left_s: float | None = None
    silent_s: float = 0.0
    message: str = ""

    @property
    def is_stalled(self) -> bool:
        """True if the next step takes far longer than usual."""
        return self.step_s is not None and self.silent_s > max(STALL_S, STALL_FACTOR * self.step_s)


def progress_of_trials(runs: Sequence[Run]) -> RunProgress:
    """Return the progress of an experiment on a cluster, by its runs there."""
    done = {run.trial for run in runs if run.state is RunState.DONE}
    failures = sum(run.state is RunState.FAILED for run in runs)
    running = [_trial_words(run) for run in runs if run.state is RunState.RUNNING]
    parts = [f"{failures} run(s) failed"] if failures else []
    parts += [f"running {', '.join(running)}"] if running else []
    return RunProgress(done=len(done), total=None, unit="trials done", message="; ".join(parts))


def _trial_words(run: Run) -> str:
    try:
        values = parse_json(run.trial_values)
    except ValueError:
        values = None
    return describe_values(values) if isinstance(values, dict) else f"trial {run.trial}"


def progress_of(records: Iterable[Mapping[str, Any]], now: datetime) -> RunProgress | None:
    """Return the progress of a run, or of a training's runs together; None if they have sent none.

    `records` may be in any order; kinds start, step and progress count.
    """
    steps: dict[int, tuple[datetime, int]] = {}
    total, message = None, None
    for record in records:
        match record.get("record"):
            case "start":
                settings = record.get("settings")
                total = (
                    count_or_none(settings.get("steps")) if isinstance(settings, dict) else None
                ) or total
            case "step" if (number := count_or_none(record.get("step"))) is not None:
                steps[number] = (
                    (time_or_none(record.get("time")) or now),
                    count_or_none(record.get("world_size")) or 0,
                )
            case "progress":
                message = record
    if steps:
        return _of_steps(steps, total, now)
    return None if message is None else _of_message(message, now)


def _of_steps(steps: Mapping[int, tuple[datetime, int]], total: int | None, now: datetime) -> RunProgress:
    numbers = sorted(steps)[-RECENT - 1 :]
    last, (at, workers) = numbers[-1], steps[numbers[-1]]
    seconds = [(steps[after][0] - steps[before][0]).total_seconds() for before, after in pairwise(numbers)]
    usual = max(0.0, median(seconds)) if seconds else None
    silent_s = max(0.0, (now - at).total_seconds())
    left_s = None
    if total is not None and usual is not None:
        left_s = max(0, total - last) * usual
    return RunProgress(
        done=last, total=total, unit="steps", workers=workers, step_s=usual, left_s=left_s, silent_s=silent_s
    )


def _of_message(record: Mapping[str, Any], now: datetime) -> RunProgress:
    return RunProgress(
        done=count_or_none(record.get("done")) or 0,
        total=count_or_none(record.get("total")),
        unit="cases",
        left_s=number_or_none(record.get("remaining_s")),
        silent_s=max(0.0, (now - (time_or_none(record.get("time")) or now)).total_seconds()),
        message=str(record.get("message", "")),
    )
