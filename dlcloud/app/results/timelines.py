"""Timelines of elastic trainings, from the store or from a trainer's records."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from dlcloud.model.errors import RecipeError
from dlcloud.results.result import parse_record
from dlcloud.results.training import Timeline, build_timelines
from dlcloud.store.measurements import Measurements


def load_timelines(store: Measurements, run_ids: Collection[str]) -> list[Timeline]:
    """Return the timelines of runs, a cluster's together, under the cluster's name."""
    names = {run.run_id: run.cluster_name for run in store.runs(run_ids)}
    by_cluster: dict[str, list[str]] = {}
    for run_id in run_ids:
        if run_id in names:
            by_cluster.setdefault(names[run_id], []).append(run_id)
    named = []
    for name, of_cluster in by_cluster.items():
        timelines = timelines_of_runs(store, of_cluster)
        several = len(timelines) > 1  # the workers know their run by another name
        named += [
            replace(timeline, run=f"{name} {timeline.run}" if several else name) for timeline in timelines
        ]
    return named


def timelines_of_runs(store: Measurements, run_ids: Collection[str]) -> list[Timeline]:
    return build_timelines(
        record
        for kind in ("step", "event")
        for records in store.records(run_ids, kind).values()
        for record in records
    )


def read_timelines(file: str) -> list[Timeline]:
    """Return the timelines of a trainer's records.

    Raises:
        RecipeError: The file cannot be read, or has no step of a training.
    """
    try:
        with Path(file).open(encoding="utf-8", errors="replace") as stream:
            records = [record for line in stream if (record := parse_record(line)) is not None]
    except OSError as error:
        raise RecipeError(f"{file}: {error.strerror}", "name a trainer's records") from error
    timelines = build_timelines(records)
    if not timelines:
        raise RecipeError(f"{file}: no step of a training is in it", "name a trainer's records")
    return timelines
