"""The columns of the cost report, each stated once: for its tables, and for JSON, CSV and Parquet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from dlcloud.model.instance import Market
from dlcloud.model.money import rounded
from dlcloud.report import cells
from dlcloud.report.table import Cell, Section
from dlcloud.results.result_row import ResultRow

_DIGITS = 6
"""Amounts are rounded to a millionth of a dollar for programs."""


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
    value: Callable[[ResultRow], Cell] = lambda _: None
    kind: type = float
    text: Callable[[ResultRow], str] | None = None
    optional: bool = False
    marked: bool = False

    @property
    def is_numeric(self) -> bool:
        return self.kind in {int, float, Decimal}

    def cell(self, row: ResultRow) -> str:
        return cells.text_of(self.value(row)) if self.text is None else self.text(row)


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
    """Return a table of some columns."""
    section = _section(rows, columns, heading, notes)
    return replace(section, optional=[place for place, column in enumerate(columns) if column.optional])


def wide_table_of(rows: Sequence[ResultRow], heading: str, notes: Sequence[str]) -> Section:
    """Return a table of every column that any of the rows fills, as wide as that needs."""
    columns = [
        column for column in WIDE if column.title and any(column.value(row) not in {None, ""} for row in rows)
    ]
    section = _section(rows, columns, heading, notes)
    texts = [[_wide_cell(row, column) for column in columns] for row in rows]
    return replace(section, rows=texts, wide=True)


def _section(
    rows: Sequence[ResultRow], columns: Sequence[Column], heading: str, notes: Sequence[str]
) -> Section:
    mark = cells.REHEARSED if rows[0].rehearsal else ""
    return Section(
        heading=heading,
        titles=[column.title + (mark if column.marked else "") for column in columns],
        rows=[[column.cell(row) for column in columns] for row in rows],
        notes=notes,
        numeric=frozenset(place for place, column in enumerate(columns) if column.is_numeric),
    )


def _wide_cell(row: ResultRow, column: Column) -> str:
    if column.value(row) is None:
        return ""
    mark = cells.REHEARSED if column.marked and row.rehearsal else ""
    return column.cell(row).removesuffix(cells.REHEARSED) + mark


def _path(path: str) -> Callable[[ResultRow], Any]:
    """Read a path of attributes, such as `run.zone`; None if one of them is None."""
    names = path.split(".")

    def read(row: ResultRow) -> Any:  # noqa: ANN401  the value's type is the column's kind
        value: Any = row
        for name in names:
            value = None if value is None else getattr(value, name)
        return value

    return read


def _rounded(path: str, places: int = _DIGITS) -> Callable[[ResultRow], Cell]:
    read = _path(path)

    def value(row: ResultRow) -> Cell:
        amount = read(row)
        return None if amount is None else rounded(amount, places)

    return value


def _per_million(market: Market, bound: int | None = None) -> Callable[[ResultRow], Cell]:
    """Read the USD per million items, or the lower (0) or upper (1) bound of their interval."""

    def value(row: ResultRow) -> Cell:
        bounds = row.usd_interval(market) or (None, None)
        amount = row.usd_per_million(market) if bound is None else bounds[bound]
        return None if amount is None else rounded(amount, _DIGITS)

    return value


def _metric(name: str) -> Callable[[ResultRow], Cell]:
    def value(row: ResultRow) -> Cell:
        metric = row.result.metrics.get(name)
        return metric.value if metric else None

    return value


def _fact(name: str) -> Callable[[ResultRow], Cell]:
    return lambda row: row.result.facts.get(name)


def _best_baseline(row: ResultRow) -> Cell:
    if row.overall is not None:
        return row.overall.baseline
    return row.result.setting if row.best else None


def _comparison(prefix: str, path: str, title: str) -> tuple[Column, ...]:
    return (
        Column(key=prefix, title=title, value=_path(f"{path}.ratio")),
        Column(key=f"{prefix}_low", title="low", value=_path(f"{path}.low")),
        Column(key=f"{prefix}_high", title="high", value=_path(f"{path}.high")),
    )


def _price(prefix: str, market: Market, title: str) -> tuple[Column, ...]:
    path = f"prices.{prefix}"
    return (
        Column(key=f"{prefix}_usd", title=title, value=_path(f"{path}.hourly_usd"), text=cells.price(market)),
        Column(key=f"{prefix}_as_of", title="as of", value=_path(f"{path}.as_of"), kind=datetime),
        Column(key=f"{prefix}_source", title="source", value=_path(f"{path}.source"), kind=str),
    )


RUN = Column(key="run", title="run", value=_path("run.run_id"), kind=str)
BENCHMARK = Column(key="workload", title="benchmark", value=_path("run.workload"), kind=str)
TYPE = Column(key="instance_type", title="type", value=_path("run.instance_type"), kind=str)
CASE = Column(key="case", title="case", value=_path("result.case"), kind=str)
SETTING = Column(key="setting", title="setting", value=_path("result.setting"), kind=str, text=cells.setting)
THROUGHPUT = Column(key="throughput", title="throughput", value=_path("throughput.value"), marked=True)
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
    value=_rounded("tflops_per_usd", 3),
    text=cells.tflops_per_usd,
)
SHARE_OF_PEAK = Column(
    key="share_of_peak_percent",
    title="of peak",
    value=_path("share_of_peak_percent"),
    text=cells.share_of_peak,
)
SHARE_OF_SHEET = Column(
    key="share_of_sheet_percent", title="% of data sheet", value=_path("share_of_sheet_percent")
)
RUN_USD = Column(key="run_usd", title="run USD", value=_rounded("cost.usd"), text=cells.run_usd, marked=True)
LATENCY = (
    Column(title="p50 ms", value=_metric("latency_p50"), marked=True),
    Column(title="p99 ms", value=_metric("latency_p99"), marked=True),
)
METRICS = (
    *LATENCY,
    Column(title="peak MiB", value=_metric("peak_memory"), marked=True),
    Column(title="model MB", value=_fact("model_bytes"), text=cells.megabytes),
    Column(title="cosine", value=_fact("cosine_similarity")),
)
SECONDS = (
    Column(key="billed_seconds", title="billed s", value=_path("cost.seconds"), kind=int),
    Column(key="boot_seconds", title="boot", value=_path("cost.boot_s"), kind=int),
    Column(key="setup_seconds", title="set-up", value=_path("cost.setup_s"), kind=int),
    Column(key="run_seconds", title="run", value=_path("cost.run_s"), kind=int),
    Column(key="rest_seconds", title="rest", value=_path("cost.rest_s"), kind=int),
)

_HARDWARE = (
    Column(key="rehearsal", value=_path("run.rehearsal"), kind=bool),
    Column(key="measured_on", title="measured on", value=_path("hardware.label"), kind=str),
)
_PLACE = (
    Column(key="cloud", value=_path("run.cloud"), kind=str),
    Column(key="region", title="region", value=_path("run.region"), kind=str),
    Column(key="zone", title="zone", value=_path("run.zone"), kind=str),
    Column(key="market", title="market", value=_path("run.market.value"), kind=str),
    Column(key="nodes", title="nodes", value=_path("run.nodes"), kind=int),
)
_KIND = (CASE, SETTING, Column(key="baseline", value=_path("result.baseline"), kind=bool))
_SPEED = (
    THROUGHPUT,
    Column(key="throughput_low", title="low", value=_path("throughput.low")),
    Column(key="throughput_high", title="high", value=_path("throughput.high")),
    Column(key="unit", title="unit", value=_path("throughput.unit"), kind=str),
    Column(key="samples", value=_path("throughput.samples"), kind=int),
)
_COMPARISON = (
    *_comparison("speed_up", "comparison", "speed-up"),
    Column(key="verdict", title="verdict", value=_path("comparison.verdict"), kind=str),
    Column(key="best_baseline", title="best baseline", value=_best_baseline, kind=str),
    *_comparison("over_best", "overall", "over it"),
    Column(key="over_best_verdict", title="verdict", value=_path("overall.verdict"), kind=str),
)
_PLANNED_PRICE = (
    Column(key="hourly_usd", value=_path("run.hourly_usd")),
    Column(key="price_as_of", value=_path("run.price_as_of"), kind=datetime),
    Column(key="price_source", value=_path("run.price_source"), kind=str),
)
_PER_MILLION = (
    USD_PER_MILLION,
    Column(key="usd_per_million_low", value=_per_million(Market.ON_DEMAND, 0)),
    Column(key="usd_per_million_high", value=_per_million(Market.ON_DEMAND, 1)),
    SPOT_USD_PER_MILLION,
    Column(key="spot_usd_per_million_low", value=_per_million(Market.SPOT, 0)),
    Column(key="spot_usd_per_million_high", value=_per_million(Market.SPOT, 1)),
)
ON_DEMAND_PRICE = _price("on_demand", Market.ON_DEMAND, "USD/h")
SPOT_PRICE = _price("spot", Market.SPOT, "spot USD/h")
_PRICES = (
    *ON_DEMAND_PRICE,
    *SPOT_PRICE,
    Column(key="spot_zone", title="spot zone", value=_path("prices.spot.zone"), kind=str),
    Column(key="peak_tflops", value=_path("peak_tflops")),
    TFLOPS_PER_USD,
)
_COST = (
    RUN_USD,
    Column(key="run_instance_usd", value=_rounded("cost.instance_usd")),
    Column(key="run_volume_usd", value=_rounded("cost.volume_usd")),
    Column(key="run_address_usd", value=_rounded("cost.address_usd")),
    *SECONDS,
    Column(key="bill_final", value=_path("cost.final"), kind=bool),
)
_QUALITY = (
    Column(key="stable", value=_path("result.stable"), kind=bool),
    Column(key="warnings", value=lambda row: "; ".join(row.result.warnings), kind=str),
)
_END = (
    Column(key="state", title="state", value=_path("run.state.value"), kind=str),
    Column(
        key="started_at",
        title="started",
        value=_path("run.started_at"),
        kind=datetime,
        text=lambda row: f"{row.run.started_at:%Y-%m-%d %H:%M}",
    ),
)

RECORD = (
    RUN,
    Column(key="cluster", value=_path("run.cluster_name"), kind=str),
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
    replace(LATENCY[0], text=cells.metric("latency_p50")),
    replace(METRICS[2], text=cells.metric("peak_memory")),
    Column(title="zone", text=lambda row: row.run.zone, kind=str),
    Column(title="measured", text=lambda row: f"{row.run.started_at:%Y-%m-%d}", kind=str),
    Column(title="run", text=lambda row: row.run.run_id, kind=str),
)
"""Shown beside the others where the terminal has room, the most important first."""

WIDE = (
    TYPE,
    BENCHMARK,
    *_KIND,
    *_SPEED,
    *_COMPARISON,
    SHARE_OF_PEAK,
    SHARE_OF_SHEET,
    *LATENCY,
    *_PRICES,
    *_PER_MILLION,
    *_COST,
    *_PLACE,
    *_HARDWARE,
    RUN,
    *_END,
)
"""The order of the wide table; columns without a title are for programs only."""
