"""Elastic trainings side by side: speed, cost beside the fixed run, start and pauses."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from dlcloud.model.money import money, rounded
from dlcloud.report.cells import digits, marked
from dlcloud.report.durations import duration
from dlcloud.report.table import Section
from dlcloud.results.training import Training

TITLES = (
    "training",
    "samples/s",
    "USD/M",
    "fixed",
    "saved",
    "start",
    "USD",
    "longest pause",
    "time",
    "steps",
    "mean workers",
    "pauses",
)
OPTIONAL = range(TITLES.index("longest pause"), len(TITLES))
NOTES = (
    "samples/s: between the first step and the last; start: from the launch to the first step",
    "USD/M: USD per million samples; fixed: the same steps on on-demand instances, without a change",
)


def trainings_section(
    trainings: Mapping[str, tuple[Training, bool]], *, whole: bool = True, older: int = 0
) -> list[Section]:
    """Return a row for each training; nothing without any.

    Args:
        trainings: By cluster name, each with whether it was rehearsed.
        whole: Every column, whatever the width.
        older: The number of trainings that are not among them.
    """
    notes = [*NOTES]
    short = [name for name, (training, _) in trainings.items() if training.is_minimum_billed]
    if short:
        notes.append(f"EC2 bills a minute of each instance at least, which decides: {', '.join(short)}")
    if any(is_rehearsal for _, is_rehearsal in trainings.values()):
        notes.append("* rehearsal: not billed, at the types' prices, at this machine's speed")
    if older:
        notes.append(f"and {older} older: dlcloud training NAME")
    section = Section(
        heading="elastic trainings",
        titles=TITLES,
        rows=[_row(name, *values) for name, values in trainings.items()],
        notes=notes,
        numeric=frozenset({1, 2, 3, 4, 5, 6, 9, 10}),
        optional=() if whole else OPTIONAL,
    )
    return [section] if trainings else []


def training_records(trainings: Mapping[str, tuple[Training, bool]]) -> list[dict[str, Any]]:
    """Return the same for programs."""
    return [
        {
            "cluster": name,
            "rehearsal": is_rehearsal,
            "steps": training.steps,
            "samples": training.samples,
            "samples_per_s": training.samples_per_s,
            "start_seconds": round(training.start_s, 3),
            "seconds": round(training.trained_s, 3),
            "mean_world_size": round(training.mean_world_size, 3),
            "longest_pause_seconds": max(_pauses(training), default=0.0),
            "usd": None if training.usd is None else rounded(training.usd, 6),
            "usd_per_million": _rounded(training.usd_per_million),
            "fixed_usd_per_million": _rounded(training.fixed_usd_per_million),
            "saved": None if training.saved_fraction is None else round(float(training.saved_fraction), 4),
            "minimum_billed": training.is_minimum_billed,
        }
        for name, (training, is_rehearsal) in trainings.items()
    ]


def _row(name: str, training: Training, is_rehearsal: bool) -> Sequence[str]:  # noqa: FBT001  unpacked
    pauses, saved, speed = _pauses(training), training.saved_fraction, training.samples_per_s

    def usd(amount: Decimal | None) -> str:
        return "unknown" if amount is None else marked(money(amount), is_rehearsal)

    return (
        name,
        "" if speed is None else marked(digits(speed), is_rehearsal),
        usd(training.usd_per_million),
        usd(training.fixed_usd_per_million),
        "" if saved is None else f"{float(saved):.0%}",
        duration(training.start_s),
        usd(training.usd),
        duration(max(pauses, default=0.0)),
        duration(training.trained_s),
        f"{training.steps:,}",
        f"{training.mean_world_size:.2f}",
        f"{duration(sum(pauses))} in {len(pauses)}",
    )


def _pauses(training: Training) -> list[float]:
    """Return the pauses of changes and stalls; the time before the first step is none."""
    return [period.pause_s for period in training.periods if period.pause_s is not None]


def _rounded(usd: Decimal | None) -> Decimal | None:
    return None if usd is None else rounded(usd, 6)
