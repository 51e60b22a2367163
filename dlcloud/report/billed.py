"""What AWS billed, beside our estimate."""

from collections.abc import Sequence
from decimal import Decimal

from dlcloud.core.cost import Reconciliation, money, rounded
from dlcloud.report.table import Cell, Section, fitted

NOT_YET = (
    "nothing is billed under the tag dlcloud:cluster yet: activate it once as a cost allocation tag (Billing"
    " console); Cost Explorer is up to a day late"
)


def billed_section(lines: Sequence[Reconciliation], unanswered: str) -> Section:
    """Return the table of estimates and bills.

    Args:
        lines: A line a cluster.
        unanswered: Why AWS's side is not known; empty where Cost Explorer answered.
    """
    notes = [unanswered] if unanswered else []
    if not unanswered and lines and not any(line.billed for line in lines):
        notes.append(NOT_YET)
    if any(line.billed and line.billed.estimated for line in lines):
        notes.append("~: AWS has not closed the month yet")
    if lines:
        notes.append("estimate: instances and their EBS volumes; AWS's bill has taxes and traffic, too")
    section = Section(
        heading="what AWS billed",
        titles=("cluster", "region", "estimate USD", "billed USD", "difference"),
        rows=[_row(line) for line in lines],
        notes=notes,
        numeric=frozenset({2, 3, 4}),
    )
    return fitted(section, {0: 12, 1: 9})


def billed_records(lines: Sequence[Reconciliation], unanswered: str) -> dict[str, object]:
    """Return the same for programs."""
    return {"unanswered": unanswered, "clusters": [_record(line) for line in lines]}


def _row(line: Reconciliation) -> tuple[str, ...]:
    mark = " ~" if line.billed and line.billed.estimated else ""
    return (
        line.cluster.name,
        line.cluster.region,
        _usd(line.estimate, "unknown"),
        _usd(line.billed.usd if line.billed else None, "") + mark,
        "" if line.difference is None else f"{'+' if line.difference >= 0 else ''}{money(line.difference)}",
    )


def _usd(amount: Decimal | None, otherwise: str) -> str:
    return otherwise if amount is None else money(amount)


def _record(line: Reconciliation) -> dict[str, Cell]:
    return {
        "cluster": line.cluster.name,
        "cluster_id": line.cluster.cluster_id,
        "estimate_usd": None if line.estimate is None else rounded(line.estimate, 6),
        "billed_usd": line.billed.usd if line.billed else None,
        "billed_estimated": line.billed.estimated if line.billed else None,
        "difference_usd": None if line.difference is None else rounded(line.difference, 6),
    }
