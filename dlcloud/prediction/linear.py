"""Linear equations of a few unknowns, in plain Python.

NumPy would add 60 MB to the 90 of plain dlcloud, for matrices of a few dozen rows.
"""

from collections.abc import Sequence
from math import sqrt


def factor(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the lower triangle L of L L' = matrix (Cholesky), which is symmetric and positive definite."""
    lower: list[list[float]] = []
    for i, row in enumerate(matrix):
        line: list[float] = []
        for j in range(i + 1):
            above = line if i == j else lower[j]
            rest = row[j] - sum(a * b for a, b in zip(line[:j], above[:j], strict=True))
            line.append(sqrt(rest) if i == j else rest / lower[j][j])
        lower.append(line)
    return lower


def solve_lower(lower: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Return x of L x = right."""
    result: list[float] = []
    for row, value in zip(lower, right, strict=True):
        rest = value - sum(a * b for a, b in zip(row, result, strict=False))
        result.append(rest / row[len(result)])
    return result


def solve_upper(lower: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Return x of L' x = right."""
    result = list(right)
    for i in range(len(result) - 1, -1, -1):
        result[i] /= lower[i][i]
        for j in range(i):
            result[j] -= lower[i][j] * result[i]
    return result
