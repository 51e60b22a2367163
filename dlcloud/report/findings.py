"""What `dlcloud doctor` found, a line a check."""

from collections.abc import Sequence
from dataclasses import dataclass

from dlcloud.report.table import Report, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: `good` is None for one that could not be made."""

    name: str
    good: bool | None
    detail: str

    @property
    def verdict(self) -> str:
        """Return it in a word."""
        return {True: "ok", False: "REFUSED", None: "unknown"}[self.good]


def findings_report(checks: Sequence[Check], *, target: str) -> Report:
    """Return the checks as a table."""
    return Report(
        command="doctor",
        records=[{"check": each.name, "verdict": each.verdict, "detail": each.detail} for each in checks],
        sections=[
            Section(
                heading=f"would {target} start?",
                titles=("check", "verdict", "detail"),
                rows=[(each.name, each.verdict, each.detail) for each in checks],
                wrapped={2: 52},
            )
        ],
        empty="",
    )
