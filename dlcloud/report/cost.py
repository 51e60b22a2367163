"""The cost table: what each type and setting measured, beside what that costs, and which is best."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dlcloud.core.cost import money
from dlcloud.core.instance import Market
from dlcloud.core.ranking import Best, By, Group, best_of, group_rows, natural_group, rank
from dlcloud.core.result import NO_DIFFERENCE, Metric
from dlcloud.core.result_row import ResultRow
from dlcloud.report.cost_details import bill_section, detail_sections, price_section
from dlcloud.report.cost_record import record_of
from dlcloud.report.cost_wide import wide_section
from dlcloud.report.table import Report, Section, fitted

REHEARSAL_NOTE = "* rehearsal: the price is of {type}, the speed is of this machine's {hardware}"
EMPTY = "nothing has been measured yet: dlcloud up quickstart"
_SUPERLATIVE = {By.COST: "cheapest", By.THROUGHPUT: "fastest", By.LATENCY: "shortest latency"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the cost table; `least` is the width to which it may be wrapped where 80 are too few."""

    title: str
    cell: Callable[[ResultRow], str]
    numeric: bool = False
    least: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the cost report shows, and in which order.

    Attributes:
        by: What comes first; None leaves the rows in the order in which they were measured.
        market: Whose price decides what is cheapest.
        group: What the rows of a table share; None for what suits them.
        newest: Only the newest result of each kind.
        details: Tables of latency, size and agreement, and every price and bill, too.
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
    """Return the cost report; `empty` is its text where there are no rows."""
    by, market, lines = view.by, view.market, rows
    ordered = list(lines) if by is None else rank(lines, by, market)
    sections: list[Section] = []
    for of_group in group_rows(ordered, view.group or natural_group(ordered)):
        best = best_of(of_group, by or By.COST, market)
        if view.wide:
            sections.append(wide_section(of_group, heading(of_group), _notes(of_group, best, by, market)))
            continue
        sections.append(_cost_section(of_group, best, by, market))
        if view.details:
            sections += detail_sections(of_group)
    if ordered and not view.wide:
        sections += [price_section(ordered), *bill_section(ordered, whole=view.details)]
    records = [record_of(line) for line in ordered]
    return Report(command=command, records=records, sections=sections, empty=empty)


def _cost_section(lines: Sequence[ResultRow], best: Sequence[Best], by: By | None, market: Market) -> Section:
    columns = _columns(lines, "*" if lines[0].rehearsal else "")
    section = Section(
        heading=heading(lines),
        titles=[column.title for column in columns],
        rows=[[column.cell(line) for column in columns] for line in lines],
        notes=_notes(lines, best, by, market),
        numeric=frozenset(place for place, column in enumerate(columns) if column.numeric),
    )
    return fitted(
        section, {place: column.least for place, column in enumerate(columns) if column.least is not None}
    )


def _columns(lines: Sequence[ResultRow], mark: str) -> list[Column]:
    unit = next((line.throughput.unit for line in lines if line.throughput), "items/s")
    columns = [*_identity(lines)]
    columns += [
        Column(title="setting", cell=setting, least=8),
        Column(title=f"{unit}{mark}", cell=lambda line: number(line.throughput), numeric=True),
        Column(title="interval", cell=lambda line: interval(line.throughput), numeric=True),
        Column(title="speed-up", cell=speed_up, least=13),
        *_over_best(lines),
        Column(title=f"USD/M{mark}", cell=lambda line: usd(line, Market.ON_DEMAND, mark), numeric=True),
    ]
    if any(line.prices.spot for line in lines):
        title = f"spot{mark}"
        columns.append(Column(title=title, cell=lambda line: usd(line, Market.SPOT, mark), numeric=True))
    return columns


def _over_best(lines: Sequence[ResultRow]) -> list[Column]:
    """Return the column beside the best baseline of each case, where there was a choice of baselines."""
    if not any(line.overall for line in lines):
        return []
    return [Column(title="over best", cell=over_best, numeric=True)]


def _identity(lines: Sequence[ResultRow]) -> list[Column]:
    """Return the columns by which the lines of a table differ; what they share is in the heading."""
    kinds = [
        Column(title="type", cell=lambda line: line.run.instance_type, least=8),
        Column(title="benchmark", cell=lambda line: line.run.workload, least=9),
        Column(title="case", cell=lambda line: line.result.case, least=9),
    ]
    columns = [kind for kind in kinds if len({kind.cell(line) for line in lines}) > 1]
    if not any(column.title == "case" for column in columns) and not lines[0].result.case:
        columns = [column for column in columns if column.title != "case"]
    told = [(*(kind.cell(line) for kind in kinds), line.result.setting) for line in lines]
    if len(set(told)) < len(told):
        columns.append(Column(title="run", cell=lambda line: line.run.run_id, least=9))
    return columns


def heading(lines: Sequence[ResultRow]) -> str:
    """Return what the lines of a table share."""
    runs = {line.run.run_id: line.run for line in lines}
    hardware = {line.hardware.label for line in lines}
    told = _shared(line.run.workload for line in lines)
    case = _shared(line.result.case for line in lines)
    told = ", ".join(dict.fromkeys(part for part in (told, case) if part)) or "several benchmarks"
    instance_type = _shared(line.run.instance_type for line in lines)
    label = hardware.pop() if len(hardware) == 1 else ""
    told += f" on {instance_type}" if instance_type else ""
    if lines[0].rehearsal:
        told += f" (rehearsal{f', measured on {label}' if label else ''})"
    elif instance_type and label:
        told += f" ({label})"
    first = min(run.started_at for run in runs.values())
    if len(runs) == 1:
        (run,) = runs.values()
        return f"{run.run_id}: {told}\n{run.state}, {run.market}, {run.zone or run.region}, {_when(first)}"
    last = max(run.started_at for run in runs.values())
    return f"{told}\n{len(runs)} runs, {first:%Y-%m-%d} to {last:%Y-%m-%d}"


def _when(time: object) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"


def _shared(names: Iterable[str]) -> str:
    found = set(names)
    return found.pop() if len(found) == 1 else ""


def _notes(lines: Sequence[ResultRow], best: Sequence[Best], by: By | None, market: Market) -> list[str]:
    notes = []
    if lines[0].rehearsal:
        types = ", ".join(dict.fromkeys(line.run.instance_type for line in lines))
        labels = ", ".join(dict.fromkeys(line.hardware.label for line in lines))
        notes.append(REHEARSAL_NOTE.format(type=types, hardware=labels))
    spot = ", on demand and spot" if any(line.prices.spot for line in lines) else ""
    notes.append(f"USD/M: USD per million {lines[0].items}{spot}; intervals of 95 %")
    if best_names := dict.fromkeys(line.overall.baseline for line in lines if line.overall):
        names = " or ".join(best_names)
        notes.append(f"over best: beside {names}, the best baseline of the case; intervals: --wide")
    notes += _undecided_note(lines)
    named = len({line.result.case for line in lines}) > 1
    notes += [_told(each, by or By.COST, market, named=named) for each in best]
    warnings = [
        f"~ {line.result.case} {line.result.setting}: {text}"
        for line in lines
        for text in line.result.warnings
    ]
    if any(not line.result.stable and not line.result.warnings for line in lines):
        warnings.append("~: not stable")
    return notes + list(dict.fromkeys(warnings))


def _undecided_note(lines: Sequence[ResultRow]) -> list[str]:
    """Return the legend of `≈`; none where every comparison shown has a winner."""
    comparisons = [
        comparison for line in lines for comparison in (line.comparison, line.overall) if comparison
    ]
    verdicts = {comparison.verdict for comparison in comparisons if not comparison.is_decided}
    if not verdicts:
        return []
    if verdicts == {NO_DIFFERENCE}:
        return ["≈: no difference seen"]
    if NO_DIFFERENCE in verdicts:
        return ["≈: no difference seen, or undecided (too few runs)"]
    return ["≈: undecided, with too few runs to see a difference"]


def _told(best: Best, by: By, market: Market, *, named: bool) -> str:
    """Say who is best, or why nobody may be called so."""
    what = _SUPERLATIVE[by] + (f" ({market})" if by is By.COST and market is Market.SPOT else "")
    where = f"{best.case}: " if named else ""
    if best.row is None:
        return f"{where}no {what} is named: {best.reason}"
    run, mark = best.row.run, "" if best.row.result.stable else " ~"
    return f"{where}{what}: {run.instance_type} {best.row.result.setting}{mark}; {best.reason}"


def setting(line: ResultRow) -> str:
    """Return a setting's name, marked where its figure did not settle."""
    return line.result.setting + ("" if line.result.stable else " ~")


def number(metric: Metric | None) -> str:
    """Return a value with four digits; empty where there is none."""
    return "" if metric is None else f"{metric.value:.4g}" if metric.value < 10000 else f"{metric.value:.0f}"  # noqa: PLR2004  digits


def speed_up(line: ResultRow) -> str:
    """Return a comparison with its interval; a winner is named only where the interval excludes 1."""
    comparison = line.comparison
    if comparison is None:
        return "baseline" if line.result.baseline else ""
    unclear = "" if comparison.is_decided else "≈ "
    return f"{unclear}{ratio(comparison.ratio)}x ({ratio(comparison.low)}–{ratio(comparison.high)})"


def over_best(line: ResultRow) -> str:
    """Return the speed-up over the best baseline of the case; its interval has no room here."""
    if line.overall is None:
        return "best" if line.best else ""
    return f"{'' if line.overall.is_decided else '≈ '}{ratio(line.overall.ratio)}x"


def ratio(value: float) -> str:
    """Return a ratio with three digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"  # noqa: PLR2004  three digits are enough


def usd(line: ResultRow, market: Market, mark: str) -> str:
    """Return the USD a million items cost in a market."""
    amount = line.usd_per_million(market)
    return "unknown" if amount is None else f"{money(amount)}{mark}"


def interval(metric: Metric | None) -> str:
    """Return `low–high`; empty where there is no interval."""
    if metric is None or metric.low is None or metric.high is None or metric.low == metric.high:
        return ""
    return f"{_digits(metric.low)}–{_digits(metric.high)}"


def _digits(value: float) -> str:
    return f"{value:.4g}" if value < 10000 else f"{value:.0f}"  # noqa: PLR2004  no exponents
