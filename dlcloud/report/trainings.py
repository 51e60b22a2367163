"""Elastic trainings side by side: work, pauses, stalls and cost."""

from collections.abc import Mapping, Sequence

from dlcloud.model.money import money
from dlcloud.report.cells import REHEARSED
from dlcloud.report.job import duration
from dlcloud.report.table import Section
from dlcloud.results.training import Training

MOST_ROWS = 20


def trainings_section(trainings: Mapping[str, tuple[Training, bool]]) -> list[Section]:
    """Return a row for each training, by cluster name, with whether it was rehearsed; nothing without any."""
    rows = [_row(name, *values) for name, values in list(trainings.items())[:MOST_ROWS]]
    notes = ["pauses: of changes of the world size, and stalls; saved: beside a fixed run on demand"]
    if any(is_rehearsal for _, is_rehearsal in trainings.values()):
        notes.append("* rehearsal: not billed, at the types' prices")
    section = Section(
        heading="elastic trainings",
        titles=("training", "steps", "workers", "time", "longest pause", "pauses", "USD", "saved"),
        rows=rows,
        notes=notes,
        numeric=frozenset({1, 2, 6, 7}),
    )
    return [section] if rows else []


def _row(name: str, training: Training, is_rehearsal: bool) -> Sequence[str]:  # noqa: FBT001  unpacked
    pauses = [period.pause_s for period in training.periods if period.pause_s is not None]
    saved = training.saved_fraction
    return (
        name,
        f"{training.steps:,}",
        f"{training.mean_world_size:.2f}",
        duration(training.seconds),
        duration(max(pauses, default=0.0)),
        f"{duration(sum(pauses))} in {len(pauses)}",
        "unknown" if training.usd is None else money(training.usd) + (REHEARSED if is_rehearsal else ""),
        "" if saved is None else f"{float(saved):.0%}",
    )
