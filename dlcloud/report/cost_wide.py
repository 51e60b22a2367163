"""The cost table with everything in it, as wide as that needs."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from dlcloud.core.result_row import ResultRow
from dlcloud.report.cost_record import record_of
from dlcloud.report.table import Cell, Section

_TEXT = frozenset(
    {"instance_type", "workload", "case", "setting", "unit", "verdict", "region", "zone", "market", "run"}
    | {"best_baseline", "over_best_verdict"}
    | {"on_demand_as_of", "on_demand_source", "spot_zone", "spot_as_of", "spot_source"}
    | {"measured_on", "state", "started_at"}
)
_COLUMNS = {
    "instance_type": "type",
    "workload": "benchmark",
    "case": "case",
    "setting": "setting",
    "throughput": "throughput",
    "throughput_low": "low",
    "throughput_high": "high",
    "unit": "unit",
    "speed_up": "speed-up",
    "speed_up_low": "low",
    "speed_up_high": "high",
    "verdict": "verdict",
    "best_baseline": "best baseline",
    "over_best": "over it",
    "over_best_low": "low",
    "over_best_high": "high",
    "over_best_verdict": "verdict",
    "latency_p50": "p50 ms",
    "latency_p99": "p99 ms",
    "on_demand_usd": "USD/h",
    "on_demand_as_of": "as of",
    "on_demand_source": "source",
    "spot_usd": "spot USD/h",
    "spot_zone": "spot zone",
    "spot_as_of": "as of",
    "spot_source": "source",
    "usd_per_million": "USD/M",
    "spot_usd_per_million": "spot USD/M",
    "tflops_per_usd": "TFLOPS/USD",
    "run_usd": "run USD",
    "billed_seconds": "billed s",
    "boot_seconds": "boot",
    "setup_seconds": "set-up",
    "run_seconds": "run",
    "rest_seconds": "rest",
    "region": "region",
    "zone": "zone",
    "market": "market",
    "measured_on": "measured on",
    "run": "run",
    "state": "state",
    "started_at": "started",
}
# What a rehearsal did not measure of the type it rehearses.
_MARKED = frozenset(
    {"throughput", "latency_p50", "latency_p99", "usd_per_million", "spot_usd_per_million", "run_usd"}
)


def wide_section(lines: Sequence[ResultRow], heading: str, notes: Sequence[str]) -> Section:
    """Return every column that any of the lines fills."""
    records = [record_of(line) for line in lines]
    names = [name for name in _COLUMNS if any(record.get(name) not in {None, ""} for record in records)]
    mark = "*" if lines[0].rehearsal else ""
    return Section(
        heading=heading,
        titles=[_COLUMNS[name] + (mark if name in _MARKED else "") for name in names],
        rows=[[_cell(record, name) for name in names] for record in records],
        notes=notes,
        numeric=frozenset(place for place, name in enumerate(names) if name not in _TEXT),
        wide=True,
    )


def _cell(record: Mapping[str, Cell], name: str) -> str:
    value = record.get(name)
    mark = "*" if record["rehearsal"] and name in _MARKED and value is not None else ""
    if name == "setting" and not record["stable"]:
        return f"{value} ~"
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d}" if name.endswith("as_of") else f"{value:%Y-%m-%d %H:%M}"
    return f"{value:.4g}{mark}" if isinstance(value, float) else f"{value}{mark}"
