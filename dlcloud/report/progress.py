"""The progress of a run in words."""

from typing import Any

from dlcloud.report.durations import duration
from dlcloud.results.run_progress import RunProgress


def describe_progress(progress: RunProgress) -> str:
    """Return how far a run is, the time left, and how long it has been silent if it stalls."""
    of = f" of {progress.total:,}" if progress.total is not None else ""
    parts = [f"{progress.done:,}{of} {progress.unit}"]
    if progress.workers:
        parts.append(f"{progress.workers} worker(s)")
    if progress.step_s:
        parts.append(f"{duration(progress.step_s)} a step")
    if progress.is_stalled:
        parts.append(f"STALLED: no step for {duration(progress.silent_s)}")
    elif progress.left_s:
        parts.append(f"about {duration(progress.left_s)} left")
    return ", ".join(parts) + (f": {progress.message}" if progress.message else "")


def progress_record(progress: RunProgress) -> dict[str, Any]:
    """Return the same for programs."""
    return {
        "done": progress.done,
        "total": progress.total,
        "unit": progress.unit,
        "workers": progress.workers,
        "step_seconds": progress.step_s,
        "seconds_left": progress.left_s,
        "silent_seconds": progress.silent_s,
        "stalled": progress.is_stalled,
        "message": progress.message,
    }
