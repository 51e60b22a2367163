"""Judge whether the loss of a setting falls as the baseline's does."""

import math
from typing import Any

TOLERANCE = 0.1
"""How far apart two losses may come to lie, as a share of the first one.

Sums in another order, in fp32, already move the loss of a small batch by a few percent within ten steps.
"""

FEWEST = 3


def compare(reference: list[list[float]], other: list[list[float]]) -> dict[str, Any]:
    """Return facts about the losses of the first steps, of which each setting gives one row.

    `loss_falls_likewise` is None where there were too few steps to tell, or where the baseline's own does not
    fall.
    """
    steps = min(len(reference[0]), len(other[0]))
    ours, theirs = reference[0][:steps], other[0][:steps]
    facts = {
        "loss_steps": steps,
        "loss_first": _plain(theirs[0]),
        "loss_last": _plain(theirs[-1]),
        "baseline_loss_first": _plain(ours[0]),
        "baseline_loss_last": _plain(ours[-1]),
    }
    return {**facts, "loss_falls_likewise": _likewise(ours, theirs)}


def _likewise(ours: list[float], theirs: list[float]) -> bool | None:
    if not all(map(math.isfinite, theirs)):
        return False
    if len(ours) < FEWEST or not ours[-1] < ours[0]:
        return None
    near = abs(theirs[-1] - ours[-1]) <= TOLERANCE * abs(ours[0])
    return near and theirs[-1] < theirs[0]


def _plain(loss: float) -> float | None:
    """Return a number that JSON can hold; None for what is none."""
    return round(loss, 6) if math.isfinite(loss) else None
