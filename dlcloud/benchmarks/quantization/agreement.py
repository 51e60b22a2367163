"""Compare what two settings answer: how alike their logits are, and how often each is right."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cosines:
    mean: float
    worst: float


def agreement(reference: list[list[float]], other: list[list[float]]) -> dict[str, Any]:
    """Return how alike two settings' logits are, over images.

    `cosine_similarity` compares them as they are. `cosine_similarity_centred` takes away each setting's mean
    over the images first: random weights answer nearly the same to every image, and what counts is how the
    answers differ. Each is the mean over the images, with the worst image beside it.
    """
    plain = _cosines(reference, other)
    centred = _cosines(_centred(reference), _centred(other))
    return {
        "cosine_similarity": round(plain.mean, 6),
        "cosine_similarity_worst": round(plain.worst, 6),
        "cosine_similarity_centred": round(centred.mean, 6),
        "cosine_similarity_centred_worst": round(centred.worst, 6),
    }


def accuracy(labels: Sequence[int], reference: list[list[float]], other: list[list[float]]) -> dict[str, Any]:
    """Return what share of the images two settings get right, in percent, and how alike they are.

    `accuracy_drop_points` is what the other loses against the reference, in points of a hundred.
    """
    right, other_right = _right(labels, reference), _right(labels, other)
    same = sum(_answer(ours) == _answer(theirs) for ours, theirs in zip(reference, other, strict=True))
    share = 100 / len(labels)
    return {
        **agreement(reference, other),
        "images_judged": len(labels),
        "accuracy_percent": round(share * other_right, 4),
        "baseline_accuracy_percent": round(share * right, 4),
        "accuracy_drop_points": round(share * (right - other_right), 4),
        "same_answer_percent": round(share * same, 4),
    }


def _right(labels: Sequence[int], rows: list[list[float]]) -> int:
    return sum(_answer(row) == label for label, row in zip(labels, rows, strict=True))


def _answer(row: list[float]) -> int:
    return max(range(len(row)), key=row.__getitem__)


def _cosines(reference: list[list[float]], other: list[list[float]]) -> _Cosines:
    values = [_cosine(ours, theirs) for ours, theirs in zip(reference, other, strict=True)]
    return _Cosines(mean=math.fsum(values) / len(values), worst=min(values))


def _cosine(ours: list[float], theirs: list[float]) -> float:
    inner = math.sumprod(ours, theirs) if hasattr(math, "sumprod") else _sum_of_products(ours, theirs)
    return inner / (math.hypot(*ours) * math.hypot(*theirs) or 1.0)


def _sum_of_products(ours: list[float], theirs: list[float]) -> float:
    return math.fsum(one * other for one, other in zip(ours, theirs, strict=True))


def _centred(rows: list[list[float]]) -> list[list[float]]:
    means = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    return [[value - mean for value, mean in zip(row, means, strict=True)] for row in rows]
