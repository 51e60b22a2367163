"""The sections below the cost table: prices, costs of runs and clusters, AWS's bill, further metrics."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal

from dlcloud.model.cluster import Cluster, Member
from dlcloud.model.instance import Market
from dlcloud.model.money import billed_seconds, member_usd, money, rounded, total_usd
from dlcloud.report.costs import cost_columns as columns
from dlcloud.report.costs.cost_columns import Column, table_of
from dlcloud.report.table import Cell, Section
from dlcloud.results.cost import Reconciliation, ResultRow

MOST_ROWS = 10
"""More runs than this are shown with the details only."""
NOT_BILLED_YET = (
    "nothing is billed under the tag dlcloud:cluster yet: activate it once as a cost allocation tag (Billing"
    " console); Cost Explorer is up to a day late"
)
ONLY_REHEARSED = "all of these were rehearsed on the local EC2, which bills nothing: AWS was not asked"
ELSEWHERE = "these were measured from other homes: their owners' accounts were billed, AWS was not asked"


def price_section(rows: Iterable[ResultRow]) -> Section:
    """Return the prices of an hour: the newest of each type and zone, with dates and sources."""
    newest: dict[tuple[str, str, bool], ResultRow] = {}
    for row in sorted(rows, key=lambda row: row.run.started_at):
        newest[row.run.instance_type, _place(row), row.rehearsal] = row
    shown = (
        columns.TYPE,
        Column(title="zone", kind=str, text=_place),
        *columns.ON_DEMAND_PRICE[:2],
        replace(columns.SPOT_PRICE[0], title="spot"),
        columns.SPOT_PRICE[1],
        columns.TFLOPS_PER_USD,
    )
    listed = [*newest.values()]
    return table_of(listed, shown, "what an hour costs", _sources(listed))


def _place(row: ResultRow) -> str:
    return row.run.zone or row.run.region


def _sources(rows: Sequence[ResultRow]) -> list[str]:
    notes = []
    for market in Market:
        sources = dict.fromkeys(price.source for row in rows if (price := row.prices.price(market)))
        if sources:
            notes.append(f"{market} prices: {', '.join(sources)}")
    if any(row.tflops_per_usd is not None for row in rows):
        notes.append("TFLOPS/USD: peak of the data sheet, of the tensor cores if any, by the on-demand hour")
    return notes


def run_cost_section(rows: Iterable[ResultRow], *, whole: bool) -> list[Section]:
    """Return the costs of the runs, a row each; no section if no run's instance is known."""
    billed = [row for row in {row.run.run_id: row for row in rows}.values() if row.measured.cost]
    if not billed:
        return []
    shown = billed if whole else billed[:MOST_ROWS]
    costs = [row.measured.cost for row in shown if row.measured.cost]
    notes = ["billed by the second, at least 60 s, EBS volume and public address included"]
    if any(cost.setup_s is None for cost in costs):
        notes.append("set-up of runs of an older dlcloud is in their boot")
    if not all(cost.final for cost in costs):
        notes.append("+: the instance is still up")
    if any(row.rehearsal for row in shown):
        notes.append("* rehearsal: not billed, at the type's price")
    if len(shown) < len(billed):
        notes.append(f"and {len(billed) - len(shown)} more runs: --details")
    shown_columns = (
        columns.RUN,
        replace(columns.TYPE, text=_type_and_market),
        *columns.SECONDS,
        replace(columns.RUN_USD, title="USD"),
    )
    return [table_of(shown, shown_columns, "what the runs cost", notes)]


def _type_and_market(row: ResultRow) -> str:
    return row.run.instance_type + (" spot" if row.run.market is Market.SPOT else "")


def metric_sections(rows: Sequence[ResultRow]) -> list[Section]:
    """Return the section of latency, memory, size and agreement; none if no row has any of them."""
    figures = [column for column in columns.DETAILS if any(_has(row, column) for row in rows)]
    if not figures:
        return []
    several = len({row.run.instance_type for row in rows}) > 1
    names = [*([columns.TYPE] if several else []), columns.CASE, replace(columns.SETTING, text=None)]
    notes = []
    if any(row.result.facts.get("weights") == "random" for row in rows):
        notes.append("weights are random: speed and size are real, agreement says nothing of accuracy")
    return [table_of(rows, [*names, *figures], "", notes)]


def _has(row: ResultRow, column: Column) -> bool:
    return column.value(row) is not None


def unasked(rows: Sequence[ResultRow]) -> str:
    """Return why AWS is not asked for the bills of rows, none of whose clusters is of this home."""
    if not rows:
        return ""
    return ONLY_REHEARSED if all(row.rehearsal for row in rows) else ELSEWHERE


def billed_section(clusters: Sequence[Reconciliation], unanswered: str) -> Section:
    """Return the table of estimates and bills.

    Args:
        clusters: A row each.
        unanswered: Why AWS's side is not known; empty if Cost Explorer answered.
    """
    notes = [unanswered] if unanswered else []
    if not unanswered and clusters and not any(cluster.billed for cluster in clusters):
        notes.append(NOT_BILLED_YET)
    if any(cluster.billed and cluster.billed.estimated for cluster in clusters):
        notes.append("~: AWS has not closed the month yet")
    if clusters:
        notes.append("estimate: instances, volumes and addresses; AWS's bill has taxes and traffic, too")
    return Section(
        heading="what AWS billed",
        titles=("cluster", "region", "estimate USD", "billed USD", "difference"),
        rows=[_billed_row(cluster) for cluster in clusters],
        notes=notes,
        numeric=frozenset({2, 3, 4}),
    )


def _billed_row(reconciled: Reconciliation) -> tuple[str, ...]:
    billed, difference = reconciled.billed, reconciled.difference
    sign = "+" if difference is not None and difference >= 0 else ""
    return (
        reconciled.cluster.name,
        reconciled.cluster.region,
        "unknown" if reconciled.estimate is None else money(reconciled.estimate),
        "" if billed is None else money(billed.usd) + (" ~" if billed.estimated else ""),
        "" if difference is None else sign + money(difference),
    )


def billed_records(clusters: Sequence[Reconciliation], unanswered: str) -> dict[str, object]:
    """Return the same for programs."""
    return {"unanswered": unanswered, "clusters": [_billed_record(cluster) for cluster in clusters]}


def _billed_record(reconciled: Reconciliation) -> dict[str, Cell]:
    billed = reconciled.billed
    return {
        "cluster": reconciled.cluster.name,
        "cluster_id": reconciled.cluster.cluster_id,
        "estimate_usd": _millionths(reconciled.estimate),
        "billed_usd": billed.usd if billed else None,
        "billed_estimated": billed.estimated if billed else None,
        "difference_usd": _millionths(reconciled.difference),
    }


def _millionths(usd: Decimal | None) -> Decimal | None:
    return None if usd is None else rounded(usd, 6)


def cost_of_cluster(cluster: Cluster, members: Iterable[Member]) -> str:
    """Return in words what a cluster that is down has cost."""
    ended = [(member, member.ended_at) for member in members if member.ended_at]
    if not ended:
        return f"{cluster.name} is down; it had no instances"
    seconds = sum(billed_seconds(member.instance.launched_at, ended_at) for member, ended_at in ended)
    summary = f"{cluster.name} is down: {seconds} s of {len(ended)} instance(s)"
    usd = total_usd(member_usd(member, cluster.disk_gib, ended_at) for member, ended_at in ended)
    if usd is None:
        return f"{summary}, at an unknown price"
    verb = "would have cost" if cluster.cloud == "local" else "cost about"
    return f"{summary}, which {verb} {money(usd)} USD"
