"""The cost report: what each type and setting measured, what that costs, and which is best."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dlcloud.core.instance import Market
from dlcloud.core.ranking import Best, By, Group, best_of, group_rows, natural_group, rank
from dlcloud.core.result import NO_DIFFERENCE
from dlcloud.core.result_row import ResultRow
from dlcloud.report import cells
from dlcloud.report import cost_columns as columns
from dlcloud.report.cost_columns import Column, record_of, table_of, wide_table_of
from dlcloud.report.cost_details import metric_sections, price_section, run_cost_section
from dlcloud.report.table import Report, Section

EMPTY = "nothing has been measured yet: dlcloud up quickstart"
_SUPERLATIVE = {By.COST: "cheapest", By.THROUGHPUT: "fastest", By.LATENCY: "shortest latency"}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the cost report shows, and in which order.

    Attributes:
        by: What comes first; None leaves the rows in the order in which they were measured.
        market: Whose price decides what is cheapest.
        group: What the rows of a table share; None for what suits them.
        newest: Only the newest result of each kind.
        details: Tables of latency, size and agreement, and every price and cost, too.
        wide: Everything in one table, as wide as that needs.
    """

    by: By | None = None
    market: Market = Market.ON_DEMAND
    group: Group | None = None
    newest: bool = False
    details: bool = False
    wide: bool = False


PLAIN = View()


def cost_report(
    rows: Sequence[ResultRow], view: View = PLAIN, *, command: str = "cost-report", empty: str = EMPTY
) -> Report:
    """Return the cost report; `empty` is its text if there are no rows."""
    ordered = list(rows) if view.by is None else rank(rows, view.by, view.market)
    sections: list[Section] = []
    for group in group_rows(ordered, view.group or natural_group(ordered)):
        notes = _notes(group, view)
        if view.wide:
            sections.append(wide_table_of(group, heading(group), notes))
            continue
        sections.append(table_of(group, _columns(group), heading(group), notes))
        if view.details:
            sections += metric_sections(group)
    if ordered and not view.wide:
        sections += [price_section(ordered), *run_cost_section(ordered, whole=view.details)]
    records = [record_of(row) for row in ordered]
    return Report(command=command, records=records, sections=sections, empty=empty)


def _columns(rows: Sequence[ResultRow]) -> list[Column]:
    unit = next((row.throughput.unit for row in rows if row.throughput), "items/s")
    shown = [
        *_identity(rows),
        columns.SETTING,
        replace(columns.THROUGHPUT, title=unit),
        columns.INTERVAL,
        columns.SPEED_UP,
    ]
    if any(row.overall for row in rows):
        shown.append(columns.OVER_BEST)
    shown.append(columns.USD_PER_MILLION)
    if any(row.prices.spot for row in rows):
        shown.append(replace(columns.SPOT_USD_PER_MILLION, title="spot"))
    return shown


def _identity(rows: Sequence[ResultRow]) -> list[Column]:
    """Return the columns in which the rows of a table differ; what they share is in the heading."""
    identity = (columns.TYPE, columns.BENCHMARK, columns.CASE)
    shown = [column for column in identity if len({column.cell(row) for row in rows}) > 1]
    names = {(*(column.cell(row) for column in identity), row.result.setting) for row in rows}
    return shown if len(names) == len(rows) else [*shown, columns.RUN]


def heading(rows: Sequence[ResultRow]) -> str:
    """Return what the rows of a table share."""
    workload, case = _shared(row.run.workload for row in rows), _shared(row.result.case for row in rows)
    text = ", ".join(dict.fromkeys(part for part in (workload, case) if part)) or "several benchmarks"
    instance_type = _shared(row.run.instance_type for row in rows)
    label = _shared(row.hardware.label for row in rows)
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
    return f"{text}\n{len(runs)} runs, {first:%Y-%m-%d} to {last:%Y-%m-%d}"


def _shared(names: Iterable[str]) -> str:
    distinct = set(names)
    return distinct.pop() if len(distinct) == 1 else ""


def _notes(rows: Sequence[ResultRow], view: View) -> list[str]:
    notes = []
    if rows[0].rehearsal:
        types = ", ".join(dict.fromkeys(row.run.instance_type for row in rows))
        labels = ", ".join(dict.fromkeys(row.hardware.label for row in rows))
        notes.append(f"* rehearsal: the price is of {types}, the speed is of this machine's {labels}")
    spot = ", on demand and spot" if any(row.prices.spot for row in rows) else ""
    notes.append(f"USD/M: USD per million {rows[0].items}{spot}; intervals of 95 %")
    baselines = dict.fromkeys(row.overall.baseline for row in rows if row.overall)
    if baselines:
        names = " or ".join(baselines)
        notes.append(f"over best: beside {names}, the best baseline of the case; intervals: --wide")
    return [*notes, *_undecided_note(rows), *_verdicts(rows, view), *_warnings(rows)]


def _undecided_note(rows: Sequence[ResultRow]) -> list[str]:
    """Return the legend of `≈`; none if every comparison shown has a winner."""
    comparisons = [comparison for row in rows for comparison in (row.comparison, row.overall) if comparison]
    verdicts = {comparison.verdict for comparison in comparisons if not comparison.is_decided}
    if not verdicts:
        return []
    if verdicts == {NO_DIFFERENCE}:
        return ["≈: no difference seen"]
    if NO_DIFFERENCE in verdicts:
        return ["≈: no difference seen, or undecided (too few runs)"]
    return ["≈: undecided, with too few runs to see a difference"]


def _verdicts(rows: Sequence[ResultRow], view: View) -> list[str]:
    by = view.by or By.COST
    superlative = _SUPERLATIVE[by] + (" (spot)" if (by, view.market) == (By.COST, Market.SPOT) else "")
    several = len({row.result.case for row in rows}) > 1
    return [
        (f"{best.case}: " if several else "") + _verdict(best, superlative)
        for best in best_of(rows, by, view.market)
    ]


def _verdict(best: Best, superlative: str) -> str:
    """Name the best, or say why none is named."""
    if best.row is None:
        return f"no {superlative} is named: {best.reason}"
    return f"{superlative}: {best.row.run.instance_type} {cells.setting(best.row)}; {best.reason}"


def _warnings(rows: Sequence[ResultRow]) -> list[str]:
    warnings = [
        f"~ {row.result.case} {row.result.setting}: {text}" for row in rows for text in row.result.warnings
    ]
    if any(not row.result.stable and not row.result.warnings for row in rows):
        warnings.append("~: not stable")
    return list(dict.fromkeys(warnings))
