"""The cost report: what each type and setting measured, what that costs, and which is best.

`cost_report` is printed by `up`, `bench` and `cost-report`: a table for each group of results, then what an
hour and each run cost, the user's own job if one was given, and last the answer. The sections of AWS's bill,
of what this home spent by cluster and by day, and the summary of a cluster that is down are here, too. A
rehearsal and a real instance never share a table.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from dlcloud.analysis.cost import Reconciliation, ResultRow
from dlcloud.analysis.node_scaling import rows_apart, scalings_of
from dlcloud.analysis.ranking import By, Group, group_rows, natural_group, rank, reason_of
from dlcloud.analysis.spending import ClusterCost, costs_by_day, total_of
from dlcloud.analysis.user_job import UserJob
from dlcloud.benchmarks.harness.schema import Verdict
from dlcloud.model.cluster import Cluster, Member
from dlcloud.model.instance import Market
from dlcloud.model.money import billed_seconds, member_usd, millionths, money, rounded, total_usd
from dlcloud.report import cells, cost_columns
from dlcloud.report.answer import Question, answer_records, answer_sections, job_records, job_sections
from dlcloud.report.cells import marked
from dlcloud.report.cost_columns import Column, record_of, table_of, wide_table_of
from dlcloud.report.scaling import scaling_records, scaling_sections
from dlcloud.report.table import Cell, Report, Section

MOST_NAMES = 4
"""Results that are named in a warning."""
EMPTY = "nothing has been measured yet: dlcloud up quickstart"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the cost report shows, and in which order.

    Attributes:
        by: What comes first; None leaves the rows in the order in which they were measured.
        market: The market whose price decides what is cheapest.
        group: What the rows of a table share; None for what suits them.
        newest: Only the newest result of each kind.
        details: Tables of latency, size and agreement, and every price and cost, too.
        wide: Everything in one table, as wide as that needs.
        summary: The answer alone, a line for each case.
        job: The user's own, for which hours and USD are shown.
    """

    by: By | None = None
    market: Market = Market.ON_DEMAND
    group: Group | None = None
    newest: bool = False
    details: bool = False
    wide: bool = False
    summary: bool = False
    job: UserJob | None = None


PLAIN = View()


def cost_report(
    rows: Sequence[ResultRow],
    view: View = PLAIN,
    *,
    command: str = "cost-report",
    empty: str = EMPTY,
    commands: Mapping[str, str] = MappingProxyType({}),
) -> Report:
    """Return the cost report, which ends with the answer.

    `command` prints it, `empty` is its text if there are no rows. `commands` has the beginning of the command
    that measures a run's workload again, by run id.
    """
    ordered = list(rows) if view.by is None else rank(rows, view.by, view.market)
    question = Question(by=view.by, market=view.market, job=view.job, summary=view.summary, commands=commands)
    scalings = scalings_of(ordered)
    alone = rows_apart(ordered, scalings)
    sections = [] if view.summary else _tables(ordered, view)
    if ordered and view.job and not view.summary:
        sections += job_sections(ordered, view.job, view.market)
    return Report(
        command=command,
        records=[record_of(row) for row in ordered],
        sections=[*sections, *answer_sections(alone, question), *scaling_sections(scalings, view.market)],
        empty=empty,
        extra={
            "answer": answer_records(alone, question),
            **({"scaling": scaling_records(scalings, view.market)} if scalings else {}),
            **({"job": job_records(ordered, view.job, view.market)} if view.job else {}),
        },
    )


def _tables(ordered: Sequence[ResultRow], view: View) -> list[Section]:
    """Return the tables of results, then prices and costs."""
    sections: list[Section] = []
    for group in group_rows(ordered, view.group or natural_group(ordered)):
        notes = _notes(group)
        if view.wide:
            sections.append(wide_table_of(group, heading(group), notes))
            continue
        sections.append(table_of(group, _columns(group), heading(group), notes))
        if view.details:
            sections += metric_sections(group)
    if ordered and not view.wide:
        sections += [price_section(ordered), *run_cost_section(ordered, whole=view.details)]
    return sections


def _columns(rows: Sequence[ResultRow]) -> list[Column]:
    unit = next((row.throughput.unit for row in rows if row.throughput), "items/s")
    shown = [
        *_identity(rows),
        cost_columns.SETTING,
        replace(cost_columns.THROUGHPUT, title=unit),
        cost_columns.INTERVAL,
        cost_columns.SPEED_UP,
    ]
    if any(row.overall for row in rows):
        shown.append(cost_columns.OVER_BEST)
    shown.append(cost_columns.USD_PER_MILLION)
    if any(row.prices.spot for row in rows):
        shown.append(replace(cost_columns.SPOT_USD_PER_MILLION, title="spot"))
    filled = [column for column in cost_columns.ROOMY if any(column.cell(row) for row in rows)]
    return [*shown, *(replace(column, optional=True) for column in filled)]


def _identity(rows: Sequence[ResultRow]) -> list[Column]:
    """Return the columns in which the rows of a table differ; what they share is in the heading."""
    identity = (cost_columns.TYPE, cost_columns.BENCHMARK, cost_columns.CASE)
    shown = [column for column in identity if len({column.cell(row) for row in rows}) > 1]
    names = {(*(column.cell(row) for column in identity), row.result.setting) for row in rows}
    return shown if len(names) == len(rows) else [*shown, cost_columns.RUN]


def heading(rows: Sequence[ResultRow]) -> str:
    """Return what the rows of a table share."""
    workload, case = _shared(row.run.workload for row in rows), _shared(row.result.case for row in rows)
    text = ", ".join(dict.fromkeys(part for part in (workload, case) if part)) or "several benchmarks"
    instance_type = _shared(cells.instance_type(row) for row in rows)
    label = _shared(row.measured.hardware.label for row in rows)
    text += f" on {instance_type}" if instance_type else ""
    if rows[0].rehearsal:
        text += f" (rehearsal{f', measured on {label}' if label else ''})"
    elif instance_type and label:
        text += f" ({label})"
    runs = {row.run.run_id: row.run for row in rows}
    first = min(run.started_at for run in runs.values())
    if len(runs) == 1:
        run = rows[0].run
        place = run.zone or run.region
        return f"{run.run_id}: {text}\n{run.state}, {run.market}, {place}, {first:%Y-%m-%d %H:%M} UTC"
    last = max(run.started_at for run in runs.values())
    days = dict.fromkeys(f"{day:%Y-%m-%d}" for day in (first, last))
    return f"{text}\n{len(runs)} runs, {' to '.join(days)}"


def _shared(names: Iterable[str]) -> str:
    distinct = set(names)
    return distinct.pop() if len(distinct) == 1 else ""


def _notes(rows: Sequence[ResultRow]) -> list[str]:
    notes = []
    if rows[0].rehearsal:
        types = ", ".join(dict.fromkeys(row.run.instance_type for row in rows))
        labels = ", ".join(dict.fromkeys(row.measured.hardware.label for row in rows))
        notes.append(f"* rehearsal: the price is of {types}, the speed is of this machine's {labels}")
    spot = ", on demand and spot" if any(row.prices.spot for row in rows) else ""
    notes.append(f"USD/M: USD per million {rows[0].items}{spot}; intervals of 95 %")
    baselines = dict.fromkeys(row.overall.baseline for row in rows if row.overall)
    if baselines:
        names = " or ".join(baselines)
        notes.append(f"over best: compared with {names}, the best baseline of the case; intervals: --wide")
    notes += cells.burst_note(rows)
    return [*notes, *_undecided_note(rows), *_paired_note(rows), *_warnings(rows)]


def _undecided_note(rows: Sequence[ResultRow]) -> list[str]:
    """Return the legend of `≈`; none if every comparison shown has a winner."""
    comparisons = [comparison for row in rows for comparison in (row.comparison, row.overall) if comparison]
    verdicts = {comparison.verdict for comparison in comparisons if not comparison.is_decided}
    if not verdicts:
        return []
    shown = dict.fromkeys(
        Verdict.NO_DIFFERENCE if verdict == Verdict.NO_DIFFERENCE else Verdict.UNDECIDED
        for verdict in sorted(verdicts, key=lambda verdict: verdict != Verdict.NO_DIFFERENCE)
    )
    return [f"≈: {verdict}: {reason_of(verdict)}" for verdict in shown]


VISIBLE = 0.03
"""A reader sees that figures differ by more."""


def _paired_note(rows: Sequence[ResultRow]) -> list[str]:
    """Say where the figures shown do not give the speed-up shown, whose samples were measured in turns."""
    by_setting = {(row.run.run_id, row.result.case, row.result.setting): row for row in rows}
    differing = []
    for row in rows:
        if row.comparison is None or row.throughput is None:
            continue
        baseline = by_setting.get((row.run.run_id, row.result.case, row.comparison.baseline))
        if baseline is None or baseline.throughput is None or not baseline.throughput.value:
            continue
        ratio = row.throughput.value / baseline.throughput.value
        if abs(ratio / row.comparison.ratio - 1) > VISIBLE:
            differing.append(f"{_identify(row, rows)} {cells.ratio(ratio)}x")
    if not differing:
        return []
    return ["speed-up: of samples measured in turns; by the medians shown: " + _shorten(differing)]


def _warnings(rows: Sequence[ResultRow]) -> list[str]:
    """Return each warning once, with the results that it is of."""
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        for text in row.result.warnings or (() if row.result.stable else ("not stable",)):
            names.setdefault(text, {})[_identify(row, rows)] = None
    return [f"~ {_shorten(list(of_text))}: {text}" for text, of_text in names.items()]


def _identify(row: ResultRow, rows: Sequence[ResultRow]) -> str:
    """Name a row by type, case and setting, as far as the rows differ in them."""
    types = {other.run.instance_type for other in rows}
    cases = {other.result.case for other in rows}
    parts = [row.run.instance_type if len(types) > 1 else "", row.result.case if len(cases) > 1 else ""]
    return " ".join(part for part in (*parts, row.result.setting) if part)


def _shorten(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


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
        cost_columns.TYPE,
        Column(title="zone", kind=str, text=_place),
        *cost_columns.ON_DEMAND_PRICE[:2],
        replace(cost_columns.SPOT_PRICE[0], title="spot"),
        cost_columns.SPOT_PRICE[1],
        cost_columns.TFLOPS_PER_USD,
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
        notes.append("TFLOPS/USD: peak of the data sheet (of a GPU's tensor cores) for an on-demand USD")
    return notes


def run_cost_section(rows: Iterable[ResultRow], *, whole: bool) -> list[Section]:
    """Return the costs of the runs, a row each; no section if no run's instance is known."""
    billed = [
        replace(row, measured=measured)
        for row in {row.run.run_id: row for row in rows}.values()
        for measured in (*row.measured.interrupted, row.measured)
        if measured.cost
    ]
    if not billed:
        return []
    shown = billed if whole else billed[:MOST_ROWS]
    costs = [row.measured.cost for row in shown if row.measured.cost]
    notes = [
        "billed by the second, at least 60 s, EBS volume and public address included",
        "boot: also the idle time since the run before; rest: downloads and termination",
    ]
    if any(cost.setup_s is None for cost in costs):
        notes.append("set-up of runs of an older dlcloud is in their boot")
    if not all(cost.final for cost in costs):
        notes.append("+: so far, with the instance still up")
    if lost := [one.run.run_id for row in shown for one in row.measured.interrupted]:
        notes.append(f"interrupted, and repeated or continued by the run below: {_shorten(lost)}")
    if any(row.rehearsal for row in shown):
        notes.append("* rehearsal: not billed, at the type's price")
    if len(shown) < len(billed):
        notes.append(f"and {len(billed) - len(shown)} more runs: --details")
    shown_columns = (
        cost_columns.RUN,
        replace(cost_columns.TYPE, text=_type_and_market),
        *cost_columns.SECONDS,
        replace(cost_columns.RUN_USD, title="USD"),
    )
    return [table_of(shown, shown_columns, "what the runs cost", notes)]


def _type_and_market(row: ResultRow) -> str:
    return row.run.instance_type + (" spot" if row.run.market is Market.SPOT else "")


def metric_sections(rows: Sequence[ResultRow]) -> list[Section]:
    """Return the section of latency, memory, size and agreement; none if no row has any of them."""
    figures = [column for column in cost_columns.DETAILS if any(_has(row, column) for row in rows)]
    if not figures:
        return []
    several = len({row.run.instance_type for row in rows}) > 1
    names = [
        *([cost_columns.TYPE] if several else []),
        cost_columns.CASE,
        replace(cost_columns.SETTING, text=None),
    ]
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

    `unanswered` says why AWS's side is not known; empty if Cost Explorer answered.
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
    return {"unanswered": unanswered, "clusters": [_billed_record(cluster) for cluster in clusters]}


def _billed_record(reconciled: Reconciliation) -> dict[str, Cell]:
    billed = reconciled.billed
    return {
        "cluster": reconciled.cluster.name,
        "cluster_id": reconciled.cluster.cluster_id,
        "estimate_usd": millionths(reconciled.estimate),
        "billed_usd": billed.usd if billed else None,
        "billed_estimated": billed.estimated if billed else None,
        "difference_usd": millionths(reconciled.difference),
    }


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


MOST_SPENDING_ROWS = 30
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
    shown = costs[:MOST_SPENDING_ROWS]
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
    return {
        "clusters": [
            {
                "cluster": cost.cluster.name,
                "cluster_id": cost.cluster.cluster_id,
                "rehearsal": cost.rehearsal,
                "instances": cost.instances,
                "usd": millionths(cost.usd),
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
        rows=[
            (f"{day:%Y-%m-%d}", _money(spent, day), _money(rehearsed, day))
            for day in days[-MOST_SPENDING_ROWS:]
        ],
        numeric=frozenset({1, 2}),
    )
    return [section] if days else []


def _money(days: dict[date, Decimal], day: date) -> str:
    return money(days[day]) if day in days else ""
