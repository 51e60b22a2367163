"""What stands below the cost table: prices with their dates, what the runs cost, and further metrics."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from dlcloud.core.cluster import Cluster, Member
from dlcloud.core.cost import Reconciliation, billed_seconds, exact, member_usd, money, rounded, total_usd
from dlcloud.core.instance import Market, Price
from dlcloud.core.result_row import ResultRow
from dlcloud.report.table import Cell, Section, fitted

MOST_ROWS = 10
"""More runs or prices than this are shown with the details only."""


def price_section(lines: Sequence[ResultRow]) -> Section:
    """Return what an hour costs: the newest prices of each type and zone, with dates and sources."""
    newest: dict[tuple[str, str, bool], ResultRow] = {}
    for line in sorted(lines, key=lambda line: line.run.started_at):
        newest[line.run.instance_type, line.run.zone or line.run.region, line.rehearsal] = line
    rows = [_price_row(line, zone) for (_, zone, _), line in newest.items()]
    section = Section(
        heading="what an hour costs",
        titles=("type", "zone", "USD/h", "as of", "spot", "as of", "TFLOPS/USD"),
        rows=rows,
        notes=_sources(newest.values()),
        numeric=frozenset({2, 4, 6}),
    )
    return fitted(section, {0: 8, 1: 10, 6: 6})


def _price_row(line: ResultRow, zone: str) -> tuple[str, ...]:
    buys = line.tflops_per_usd
    return (
        line.run.instance_type,
        zone,
        *_priced(line.prices.on_demand),
        *_priced(line.prices.spot),
        "" if buys is None else f"{buys:.1f}",
    )


def _priced(price: Price | None) -> tuple[str, str]:
    return ("unknown", "") if price is None else (exact(price.hourly_usd), f"{price.as_of:%Y-%m-%d}")


def _sources(lines: Iterable[ResultRow]) -> list[str]:
    notes = []
    told = list(lines)
    for market in Market:
        sources = dict.fromkeys(price.source for line in told if (price := line.prices.price(market)))
        if sources:
            notes.append(f"{market} prices: {', '.join(sources)}")
    if any(line.tflops_per_usd is not None for line in told):
        notes.append("TFLOPS/USD: peak of the data sheet, of the tensor cores if any, by the on-demand hour")
    return notes


def bill_section(lines: Sequence[ResultRow], *, whole: bool) -> list[Section]:
    """Return what the runs cost, a row each; no section where no run's instance is known."""
    billed = [line for line in {line.run.run_id: line for line in lines}.values() if line.cost]
    if not billed:
        return []
    shown = billed if whole else billed[:MOST_ROWS]
    notes = ["billed by the second from launch to end, at least 60 s, its EBS volume included"]
    if any(line.cost and line.cost.setup_s is None for line in shown):
        notes.append("set-up of runs of an older dlcloud is in their boot")
    if any(line.cost and not line.cost.final for line in shown):
        notes.append("+: the instance is still up")
    if any(line.rehearsal for line in shown):
        notes.append("* rehearsal: not billed, at the type's price")
    if len(shown) < len(billed):
        notes.append(f"and {len(billed) - len(shown)} more runs: --details")
    titles = ("run", "type", "billed s", "boot", "set-up", "run", "rest", "USD")
    section = Section(
        heading="what the runs cost",
        titles=titles,
        rows=[_bill_row(line) for line in shown],
        notes=notes,
        numeric=frozenset(range(2, len(titles))),
    )
    return [fitted(section, {0: 12, 1: 8})]


def _bill_row(line: ResultRow) -> tuple[str, ...]:
    bill = line.cost
    if bill is None:
        return ()
    mark = ("" if bill.final else "+") + ("*" if line.rehearsal else "")
    return (
        line.run.run_id,
        line.run.instance_type + (" spot" if line.run.market is Market.SPOT else ""),
        str(bill.seconds),
        str(bill.boot_s),
        "" if bill.setup_s is None else str(bill.setup_s),
        str(bill.run_s),
        str(bill.rest_s),
        f"{money(bill.usd)}{mark}" if bill.usd is not None else "unknown",
    )


def detail_sections(lines: Sequence[ResultRow]) -> list[Section]:
    """Return the section of all other metrics and facts that any line has; none where there are none."""
    metrics = _union(line.result.metrics for line in lines)
    shown = [name for name in metrics if name in _SHORT]
    facts = [name for name in _union(line.result.facts for line in lines) if name in _FACTS]
    if not shown and not facts:
        return []
    units = {name: metric.unit for line in lines for name, metric in line.result.metrics.items()}
    mark = "*" if lines[0].rehearsal else ""
    several = len({line.run.instance_type for line in lines}) > 1
    titles = [f"{_SHORT[name]} {units[name]}{mark}" for name in shown]
    titles += [_FACTS[name] for name in facts]
    rows = [[*_names(line, several=several), *_figures(line, shown, facts)] for line in lines]
    random = any(line.result.facts.get("weights") == "random" for line in lines)
    notes = (
        ["weights are random: speed and size are real, agreement says nothing of accuracy"] if random else []
    )
    names = (*(("type",) if several else ()), "case", "setting")
    section = Section(
        heading="",
        titles=(*names, *titles),
        rows=rows,
        notes=notes,
        numeric=frozenset(range(len(names), len(names) + len(titles))),
    )
    return [fitted(section, dict.fromkeys(range(len(names)), 9))]


# What fits beside the facts in 80 columns; the JSON and CSV forms carry every metric.
_SHORT = {"latency_p50": "p50", "latency_p99": "p99", "peak_memory": "peak"}
_FACTS = {"model_bytes": "model MB", "cosine_similarity": "cosine"}
_BYTES_PER_MB = 1e6


def _names(line: ResultRow, *, several: bool) -> list[str]:
    return [*((line.run.instance_type,) if several else ()), line.result.case, line.result.setting]


def _figures(line: ResultRow, metrics: Sequence[str], facts: Sequence[str]) -> list[str]:
    told = line.result.metrics
    return [
        *(_number(told[name].value if name in told else None) for name in metrics),
        *(_fact(name, line.result.facts.get(name)) for name in facts),
    ]


def _fact(name: str, value: str | float | bool | None) -> str:  # noqa: FBT001  a cell
    if name == "model_bytes" and isinstance(value, int | float):
        return f"{value / _BYTES_PER_MB:.1f}"
    return _number(value) if isinstance(value, int | float) else str(value or "")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _union(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    names: dict[str, None] = {}
    for mapping in mappings:
        names.update(dict.fromkeys(mapping))
    return list(names)


NOT_BILLED_YET = (
    "nothing is billed under the tag dlcloud:cluster yet: activate it once as a cost allocation tag (Billing"
    " console); Cost Explorer is up to a day late"
)
ONLY_REHEARSED = "all of these were rehearsed on the local EC2, which bills nothing: AWS was not asked"
ELSEWHERE = "these were measured from other homes: their owners' accounts were billed, AWS was not asked"


def unasked(rows: Sequence[ResultRow]) -> str:
    """Return why AWS is not asked for the bills of rows, none of whose clusters is of this home."""
    if not rows:
        return ""
    return ONLY_REHEARSED if all(row.rehearsal for row in rows) else ELSEWHERE


def billed_section(lines: Sequence[Reconciliation], unanswered: str) -> Section:
    """Return the table of estimates and bills.

    Args:
        lines: A line a cluster.
        unanswered: Why AWS's side is not known; empty where Cost Explorer answered.
    """
    notes = [unanswered] if unanswered else []
    if not unanswered and lines and not any(line.billed for line in lines):
        notes.append(NOT_BILLED_YET)
    if any(line.billed and line.billed.estimated for line in lines):
        notes.append("~: AWS has not closed the month yet")
    if lines:
        notes.append("estimate: instances and their EBS volumes; AWS's bill has taxes and traffic, too")
    section = Section(
        heading="what AWS billed",
        titles=("cluster", "region", "estimate USD", "billed USD", "difference"),
        rows=[_billed_row(line) for line in lines],
        notes=notes,
        numeric=frozenset({2, 3, 4}),
    )
    return fitted(section, {0: 12, 1: 9})


def billed_records(lines: Sequence[Reconciliation], unanswered: str) -> dict[str, object]:
    """Return the same for programs."""
    return {"unanswered": unanswered, "clusters": [_billed_record(line) for line in lines]}


def _billed_row(line: Reconciliation) -> tuple[str, ...]:
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


def _billed_record(line: Reconciliation) -> dict[str, Cell]:
    return {
        "cluster": line.cluster.name,
        "cluster_id": line.cluster.cluster_id,
        "estimate_usd": None if line.estimate is None else rounded(line.estimate, 6),
        "billed_usd": line.billed.usd if line.billed else None,
        "billed_estimated": line.billed.estimated if line.billed else None,
        "difference_usd": None if line.difference is None else rounded(line.difference, 6),
    }


def cost_of_cluster(cluster: Cluster, members: Sequence[Member]) -> str:
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
