"""The columns of the cost report, each stated once: for its tables, and for JSON, CSV and Parquet.

A column reads its exact value from a row with a typed function; a table shows the value as text, or what the
column's own `text` returns. A cell of these tables gets the mark of a rehearsal here and nowhere else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from dlcloud.analysis.cost import ResultRow, RunCost
from dlcloud.benchmarks.harness.schema import Comparison, Measurement
from dlcloud.model.instance import Market, Price
from dlcloud.model.money import millionths, rounded
from dlcloud.report import cells
from dlcloud.report.table import Cell, Section

Value = Callable[[ResultRow], Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the cost report.

    Attributes:
        key: In JSON, CSV and Parquet; empty if it is in tables only.
        title: In tables; empty if it is for programs only.
        value: Reads the exact value from a row.
        kind: The type of the values that are not None.
        text: Formats a row's cell in a table; by default the value.
        optional: It is shown where the terminal has room.
        marked: A rehearsal measured it on another machine, or it follows from such a figure.
    """

    key: str = ""
    title: str = ""
    value: Value = lambda _: None
    kind: type = float
    text: Callable[[ResultRow], str] | None = None
    optional: bool = False
    marked: bool = False

    @property
    def is_numeric(self) -> bool:
        return self.kind in {int, float, Decimal}

    def cell(self, row: ResultRow) -> str:
        text = cells.text_of(self.value(row)) if self.text is None else self.text(row)
        return cells.marked(text, row.rehearsal and self.marked)

    def heading(self, rows: Sequence[ResultRow]) -> str:
        return cells.marked(self.title, self.marked and all(row.rehearsal for row in rows))


def record_of(row: ResultRow) -> dict[str, Cell]:
    """Return a row for programs: flat, exact, with the same keys in every format."""
    return {
        **{column.key: column.value(row) for column in RECORD},
        **{name: metric.value for name, metric in row.result.metrics.items() if name != "throughput"},
        **{f"fact_{name}": value for name, value in row.result.facts.items()},
        **{column.key: column.value(row) for column in _END},
    }


def table_of(
    rows: Sequence[ResultRow], columns: Sequence[Column], heading: str, notes: Sequence[str]
) -> Section:
    return Section(
        heading=heading,
        titles=[column.heading(rows) for column in columns],
        rows=[[column.cell(row) for column in columns] for row in rows],
        notes=notes,
        numeric=frozenset(place for place, column in enumerate(columns) if column.is_numeric),
        optional=[place for place, column in enumerate(columns) if column.optional],
    )


def wide_table_of(rows: Sequence[ResultRow], heading: str, notes: Sequence[str]) -> Section:
    """Return a table of every column that any of the rows fills, as wide as that needs."""
    columns = [
        column for column in WIDE if column.title and any(column.value(row) not in {None, ""} for row in rows)
    ]
    texts = [["" if column.value(row) is None else column.cell(row) for column in columns] for row in rows]
    return replace(table_of(rows, columns, heading, notes), rows=texts, wide=True)


def _throughput(value: Callable[[Measurement], Cell]) -> Value:
    return lambda row: None if row.throughput is None else value(row.throughput)


def _metric(name: str) -> Value:
    def value(row: ResultRow) -> Cell:
        metric = row.result.metrics.get(name)
        return metric.value if metric else None

    return value


def _fact(name: str) -> Value:
    return lambda row: row.result.facts.get(name)


def _cost(value: Callable[[RunCost], Cell]) -> Value:
    def read(row: ResultRow) -> Cell:
        amount = None if row.measured.cost is None else value(row.measured.cost)
        return millionths(amount) if isinstance(amount, Decimal) else amount

    return read


def _price(market: Market, value: Callable[[Price], Cell]) -> Value:
    def read(row: ResultRow) -> Cell:
        price = row.prices.price(market)
        return None if price is None else value(price)

    return read


def _per_million(market: Market, bound: int | None = None) -> Value:
    """Read the USD per million items, or the lower (0) or upper (1) bound of their interval."""

    def value(row: ResultRow) -> Cell:
        bounds = row.usd_interval(market) or (None, None)
        amount = row.usd_per_million(market) if bound is None else bounds[bound]
        return millionths(amount)

    return value


def _best_baseline(row: ResultRow) -> Cell:
    if row.overall is not None:
        return row.overall.baseline
    return row.result.setting if row.best else None


def _comparison(
    prefix: str, title: str, verdict: str, comparison: Callable[[ResultRow], Comparison | None]
) -> tuple[Column, ...]:
    def part(value: Callable[[Comparison], Cell]) -> Value:
        return lambda row: None if (compared := comparison(row)) is None else value(compared)

    return (
        Column(key=prefix, title=title, value=part(lambda compared: compared.ratio)),
        Column(key=f"{prefix}_low", title="low", value=part(lambda compared: compared.low)),
        Column(key=f"{prefix}_high", title="high", value=part(lambda compared: compared.high)),
        Column(key=verdict, title="verdict", value=part(lambda compared: compared.verdict), kind=str),
    )


def _prices(prefix: str, market: Market, title: str) -> tuple[Column, ...]:
    return (
        Column(
            key=f"{prefix}_usd",
            title=title,
            value=_price(market, lambda price: price.hourly_usd),
            text=cells.price(market),
        ),
        Column(
            key=f"{prefix}_as_of",
            title="as of",
            value=_price(market, lambda price: price.as_of),
            kind=datetime,
        ),
        Column(
            key=f"{prefix}_source", title="source", value=_price(market, lambda price: price.source), kind=str
        ),
    )


RUN = Column(key="run", title="run", value=lambda row: row.run.run_id, kind=str)
BENCHMARK = Column(key="workload", title="benchmark", value=lambda row: row.run.workload, kind=str)
TYPE = Column(
    key="instance_type",
    title="type",
    value=lambda row: row.run.instance_type,
    kind=str,
    text=cells.instance_type,
)
CASE = Column(key="case", title="case", value=lambda row: row.result.case, kind=str)
SETTING = Column(
    key="setting", title="setting", value=lambda row: row.result.setting, kind=str, text=cells.setting
)
THROUGHPUT = Column(
    key="throughput", title="throughput", value=_throughput(lambda speed: speed.value), marked=True
)
INTERVAL = Column(title="interval", text=lambda row: cells.interval(row.throughput))
SPEED_UP = Column(title="speed-up", kind=str, text=cells.speed_up)
OVER_BEST = Column(title="over best", text=cells.over_best)
USD_PER_MILLION = Column(
    key="usd_per_million",
    title="USD/M",
    value=_per_million(Market.ON_DEMAND),
    text=cells.usd(Market.ON_DEMAND),
    marked=True,
)
SPOT_USD_PER_MILLION = Column(
    key="spot_usd_per_million",
    title="spot USD/M",
    value=_per_million(Market.SPOT),
    text=cells.usd(Market.SPOT),
    marked=True,
)
TFLOPS_PER_USD = Column(
    key="tflops_per_usd",
    title="TFLOPS/USD",
    value=lambda row: None if row.tflops_per_usd is None else rounded(row.tflops_per_usd, 3),
    text=cells.tflops_per_usd,
)
SHARE_OF_PEAK = Column(
    key="share_of_peak_percent",
    title="of peak",
    value=lambda row: row.share_of_peak_percent,
    text=cells.share_of_peak,
)
SHARE_OF_SHEET = Column(
    key="share_of_sheet_percent", title="% of data sheet", value=lambda row: row.share_of_sheet_percent
)
RUN_USD = Column(
    key="run_usd", title="run USD", value=_cost(lambda cost: cost.usd), text=cells.run_usd, marked=True
)
LATENCY_P50 = Column(title="p50 ms", value=_metric("latency_p50"), marked=True)
LATENCY_P99 = Column(title="p99 ms", value=_metric("latency_p99"), marked=True)
PEAK_MEMORY = Column(title="peak MiB", value=_metric("peak_memory"), marked=True)
DETAILS = (
    LATENCY_P50,
    LATENCY_P99,
    PEAK_MEMORY,
    Column(title="model MB", value=_fact("model_bytes"), text=cells.megabytes),
    Column(title="cosine", value=_fact("cosine_similarity")),
)
"""Latency, memory, size and agreement."""
SECONDS = (
    Column(key="billed_seconds", title="billed s", value=_cost(lambda cost: cost.seconds), kind=int),
    Column(key="boot_seconds", title="boot", value=_cost(lambda cost: cost.boot_s), kind=int),
    Column(key="setup_seconds", title="set-up", value=_cost(lambda cost: cost.setup_s), kind=int),
    Column(key="run_seconds", title="run", value=_cost(lambda cost: cost.run_s), kind=int),
    Column(key="rest_seconds", title="rest", value=_cost(lambda cost: cost.rest_s), kind=int),
)

_HARDWARE = (
    Column(key="rehearsal", value=lambda row: row.rehearsal, kind=bool),
    Column(key="measured_on", title="measured on", value=lambda row: row.measured.hardware.label, kind=str),
)
_PLACE = (
    Column(key="cloud", value=lambda row: row.run.cloud, kind=str),
    Column(key="region", title="region", value=lambda row: row.run.region, kind=str),
    Column(key="zone", title="zone", value=lambda row: row.run.zone, kind=str),
    Column(key="market", title="market", value=lambda row: row.run.market.value, kind=str),
    Column(key="nodes", title="nodes", value=lambda row: row.run.nodes, kind=int),
)
_KIND = (CASE, SETTING, Column(key="baseline", value=lambda row: row.result.baseline, kind=bool))
_SPEED = (
    THROUGHPUT,
    Column(key="throughput_low", title="low", value=_throughput(lambda speed: speed.low)),
    Column(key="throughput_high", title="high", value=_throughput(lambda speed: speed.high)),
    Column(key="unit", title="unit", value=_throughput(lambda speed: speed.unit), kind=str),
    Column(key="samples", value=_throughput(lambda speed: speed.samples), kind=int),
)
_COMPARISON = (
    *_comparison("speed_up", "speed-up", "verdict", lambda row: row.comparison),
    Column(key="best_baseline", title="best baseline", value=_best_baseline, kind=str),
    *_comparison("over_best", "over it", "over_best_verdict", lambda row: row.overall),
)
_PLANNED_PRICE = (
    Column(key="hourly_usd", value=lambda row: row.run.hourly_usd),
    Column(key="price_as_of", value=lambda row: row.run.price_as_of, kind=datetime),
    Column(key="price_source", value=lambda row: row.run.price_source, kind=str),
)
_PER_MILLION = (
    USD_PER_MILLION,
    Column(key="usd_per_million_low", value=_per_million(Market.ON_DEMAND, 0)),
    Column(key="usd_per_million_high", value=_per_million(Market.ON_DEMAND, 1)),
    SPOT_USD_PER_MILLION,
    Column(key="spot_usd_per_million_low", value=_per_million(Market.SPOT, 0)),
    Column(key="spot_usd_per_million_high", value=_per_million(Market.SPOT, 1)),
)
ON_DEMAND_PRICE = _prices("on_demand", Market.ON_DEMAND, "USD/h")
SPOT_PRICE = _prices("spot", Market.SPOT, "spot USD/h")
_PRICES = (
    *ON_DEMAND_PRICE,
    *SPOT_PRICE,
    Column(key="spot_zone", title="spot zone", value=_price(Market.SPOT, lambda price: price.zone), kind=str),
    Column(key="peak_tflops", value=lambda row: row.measured.peak_tflops),
    TFLOPS_PER_USD,
)
_COST = (
    RUN_USD,
    Column(key="run_instance_usd", value=_cost(lambda cost: cost.instance_usd)),
    Column(key="run_volume_usd", value=_cost(lambda cost: cost.volume_usd)),
    Column(key="run_address_usd", value=_cost(lambda cost: cost.address_usd)),
    *SECONDS,
    Column(key="bill_final", value=_cost(lambda cost: cost.final), kind=bool),
)
_QUALITY = (
    Column(key="stable", value=lambda row: row.result.stable, kind=bool),
    Column(key="warnings", value=lambda row: "; ".join(row.result.warnings), kind=str),
)
_END = (
    Column(key="state", title="state", value=lambda row: row.run.state.value, kind=str),
    Column(
        key="started_at",
        title="started",
        value=lambda row: row.run.started_at,
        kind=datetime,
        text=lambda row: f"{row.run.started_at:%Y-%m-%d %H:%M}",
    ),
)

RECORD = (
    RUN,
    Column(key="cluster", value=lambda row: row.run.cluster_name, kind=str),
    BENCHMARK,
    TYPE,
    *_HARDWARE,
    *_PLACE,
    *_KIND,
    *_SPEED,
    *_COMPARISON,
    *_PLANNED_PRICE,
    *_PER_MILLION,
    *_PRICES,
    SHARE_OF_PEAK,
    SHARE_OF_SHEET,
    *_COST,
    *_QUALITY,
)
"""The order of keys; further metrics and facts follow, then those of `_END`."""

ROOMY = (
    Column(title="USD/M 95 %", text=cells.usd_interval(Market.ON_DEMAND), marked=True),
    SHARE_OF_PEAK,
    LATENCY_P50,
    PEAK_MEMORY,
    Column(title="zone", text=lambda row: row.run.zone, kind=str),
    Column(title="measured", text=lambda row: f"{row.run.started_at:%Y-%m-%d}", kind=str),
    Column(title="run", text=lambda row: row.run.run_id, kind=str),
)
"""Shown next to the others if the terminal has room, the most important first."""

WIDE = (
    TYPE,
    BENCHMARK,
    *_KIND,
    *_SPEED,
    *_COMPARISON,
    SHARE_OF_PEAK,
    SHARE_OF_SHEET,
    LATENCY_P50,
    LATENCY_P99,
    *_PRICES,
    *_PER_MILLION,
    *_COST,
    *_PLACE,
    *_HARDWARE,
    RUN,
    *_END,
)
"""The order of the wide table; columns without a title are for programs only."""
