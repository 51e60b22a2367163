"""The cost report: what each type and setting measured, what that costs, and which is best."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from dlcloud.benchmarks.harness.schema import Verdict
from dlcloud.model.instance import Market
from dlcloud.report.costs import cost_columns as columns
from dlcloud.report.costs.answer import Question, answer_records, answer_sections
from dlcloud.report.costs.cost_columns import Column, record_of, table_of, wide_table_of
from dlcloud.report.costs.cost_details import metric_sections, price_section, run_cost_section
from dlcloud.report.costs.job import job_records, job_sections
from dlcloud.report.costs.scaling import scaling_records, scaling_sections
from dlcloud.report.table import Report, Section
from dlcloud.results.cost import ResultRow
from dlcloud.results.node_scaling import rows_apart, scalings_of
from dlcloud.results.ranking import By, Group, group_rows, natural_group, rank, reason_of
from dlcloud.results.user_job import UserJob

MOST_NAMES = 4
"""Results that are named beside a warning."""
EMPTY = "nothing has been measured yet: dlcloud up quickstart"


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

    Args:
        rows: The results.
        view: What of them is shown.
        command: The command that prints it.
        empty: Its text if there are no rows.
        commands: The beginning of the command that measures a run's workload again, by run id.
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
    filled = [column for column in columns.ROOMY if any(column.cell(row) for row in rows)]
    return [*shown, *(replace(column, optional=True) for column in filled)]


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
        notes.append(f"over best: beside {names}, the best baseline of the case; intervals: --wide")
    return [*notes, *_undecided_note(rows), *_warnings(rows)]


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
