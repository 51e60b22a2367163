"""Compare how two settings learned: their loss, epoch by epoch, and what they answer afterwards."""

import math
from typing import Any

DIGITS_BATCH = 64
"""Images a step when the digits are trained."""


def compare_training(reference: list[list[float]], other: list[list[float]]) -> dict[str, Any]:
    """Return how a setting's training differs from the baseline's.

    Args:
        reference: The baseline's: for each image 1 where it is answered rightly, else 0; and the mean loss of
            each epoch.
        other: The setting's.
    """
    (right, losses), (other_right, other_losses) = reference, other
    share = 100 / len(right)
    gained = sum(theirs > ours for ours, theirs in zip(right, other_right, strict=True))
    lost = sum(theirs < ours for ours, theirs in zip(right, other_right, strict=True))
    return {
        "baseline_accuracy_percent": round(share * sum(right), 4),
        "accuracy_drop_points": round(share * (lost - gained), 4),
        "only_the_baseline_is_right": lost,
        "only_this_is_right": gained,
        "p_value_of_equal_accuracy": round(sign_test(gained, lost), 4),
        "largest_gap_of_the_loss_curves": round(
            max(abs(ours - theirs) for ours, theirs in zip(losses, other_losses, strict=True)), 5
        ),
        "final_loss_over_baseline": round(other_losses[-1] / losses[-1], 4) if losses[-1] else None,
    }


def sign_test(wins: int, losses: int) -> float:
    """Return how probable a split at least this uneven is, were both sides equally probable (two-sided).

    Source: McNemar 1947, in its exact form.
    """
    count = wins + losses
    uneven = sum(math.comb(count, number) for number in range(min(wins, losses) + 1))
    return min(1.0, 2.0 * uneven / float(2**count))
