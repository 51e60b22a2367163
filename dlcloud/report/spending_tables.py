"""What this home spent, as tables: by cluster and by day, trainings and failed set-ups included."""

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

from dlcloud.analysis.spending import ClusterCost, costs_by_day, total_of
from dlcloud.model.money import money, rounded
from dlcloud.report.cells import marked
from dlcloud.report.table import Section

MOST_ROWS = 30
"""The newest clusters and days that a table shows."""


def total_section(costs: Sequence[ClusterCost]) -> list[Section]:
    """Return one line with the total of a home; nothing if it never launched."""
    parts = []
    for is_rehearsal in (False, True):
        clusters = [cost for cost in costs if cost.rehearsal is is_rehearsal]
        if clusters:
            usd, unknown = total_of(costs, rehearsal=is_rehearsal)
            more = f" and {unknown} at an unknown price" if unknown else ""
            verb = "rehearsed, not billed" if is_rehearsal else "spent"
            count = f"{len(clusters)} cluster{'s' * (len(clusters) > 1)}{more}"
            parts.append(f"{marked(f'{money(usd)} USD', is_rehearsal)} {verb} ({count})")
    text = f"in all: {'; '.join(parts)}; by cluster and day: dlcloud cost-report --spending"
    return [Section(heading=text, titles=(), rows=())] if parts else []


def spending_sections(costs: Sequence[ClusterCost]) -> list[Section]:
    """Return the tables of clusters and of days."""
    shown = costs[:MOST_ROWS]
    notes = [f"and {len(costs) - len(shown)} older clusters"] if len(shown) < len(costs) else []
    if any(cost.rehearsal for cost in shown):
        notes.append("* rehearsal on the local EC2: not billed, at the types' prices")
    clusters = Section(
        heading="spending by cluster",
        titles=("cluster", "region", "state", "launched", "instances", "USD"),
        rows=[_row(cost) for cost in shown],
        notes=[*notes, "instances, volumes and addresses, from launch to termination"],
        numeric=frozenset({4, 5}),
    )
    return [clusters, *_days(costs)] if costs else []


def spending_records(costs: Sequence[ClusterCost]) -> dict[str, Any]:
    """Return the same for programs."""
    return {
        "clusters": [
            {
                "cluster": cost.cluster.name,
                "cluster_id": cost.cluster.cluster_id,
                "rehearsal": cost.rehearsal,
                "instances": cost.instances,
                "usd": None if cost.usd is None else rounded(cost.usd, 6),
                "days": {f"{day:%Y-%m-%d}": rounded(usd, 6) for day, usd in cost.days.items()},
            }
            for cost in costs
        ],
        "usd": rounded(total_of(costs, rehearsal=False)[0], 6),
        "rehearsed_usd": rounded(total_of(costs, rehearsal=True)[0], 6),
    }


def _row(cost: ClusterCost) -> tuple[str, ...]:
    cluster = cost.cluster
    usd = "unknown" if cost.usd is None else marked(money(cost.usd), cost.rehearsal)
    launched = f"{cluster.created_at:%Y-%m-%d %H:%M}"
    return (cluster.name, cluster.region, str(cluster.state), launched, str(cost.instances), usd)


def _days(costs: Sequence[ClusterCost]) -> list[Section]:
    spent, rehearsed = (costs_by_day(costs, rehearsal=is_rehearsal) for is_rehearsal in (False, True))
    days = sorted({*spent, *rehearsed})
    section = Section(
        heading="spending by day (UTC)",
        titles=("day", "USD", marked("rehearsed USD", True)),
        rows=[(f"{day:%Y-%m-%d}", _money(spent, day), _money(rehearsed, day)) for day in days[-MOST_ROWS:]],
        numeric=frozenset({1, 2}),
    )
    return [section] if days else []


def _money(days: dict[date, Decimal], day: date) -> str:
    return money(days[day]) if day in days else ""
