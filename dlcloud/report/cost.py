"""Cost per throughput: what each run measured, beside what its instance type costs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby

from dlcloud.core.cost import rounded, usd_per_million
from dlcloud.core.result import Comparison, Hardware, Metric, Result, Run
from dlcloud.report.table import Cell, Report, Section

REHEARSAL_NOTE = "* rehearsal: the price is of {type}, the speed is of this machine's {hardware}"
WON = frozenset({"faster", "slower"})
EMPTY = "nothing has been measured yet: dlcloud up quickstart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One setting of one case of one run, with its comparison to the baseline where there is one."""

    run: Run
    hardware: Hardware
    result: Result
    comparison: Comparison | None

    @property
    def throughput(self) -> Metric | None:
        """Return items a second; for a workload that reports none, runs a second by its wall time."""
        duration = self.result.metrics.get("duration")
        if "throughput" in self.result.metrics or duration is None or not duration.value:
            return self.result.metrics.get("throughput")
        return Metric(
            value=1 / duration.value,
            low=1 / duration.high if duration.high else None,
            high=1 / duration.low if duration.low else None,
            unit="runs/s",
            samples=duration.samples,
        )

    @property
    def usd_per_million(self) -> Decimal | None:
        """Return what a million items cost on the run's instance type."""
        if self.throughput is None or self.run.hourly_usd is None:
            return None
        return usd_per_million(self.run.hourly_usd, self.throughput.value)


def lines_of(
    runs: Iterable[Run],
    results: Mapping[str, Sequence[Result]],
    comparisons: Mapping[str, Sequence[Comparison]],
    hardware: Mapping[str, Hardware],
) -> list[Line]:
    """Join what the store holds of each run, in the order of the runs."""
    compared = {
        (run_id, each.case, each.candidate): each for run_id, of_run in comparisons.items() for each in of_run
    }
    return [
        Line(
            run=run,
            hardware=hardware.get(run.run_id, Hardware()),
            result=result,
            comparison=compared.get((run.run_id, result.case, result.setting)),
        )
        for run in runs
        for result in results.get(run.run_id, ())
    ]


def cost_report(lines: Sequence[Line], *, command: str = "cost-report", details: bool = False) -> Report:
    """Return the cost table: one section a run; with `details`, one more of latency, size and agreement."""
    sections: list[Section] = []
    for _, grouped in groupby(lines, key=lambda line: line.run.run_id):
        of_run = list(grouped)
        sections.append(_cost_section(of_run))
        if details:
            sections += _detail_section(of_run)
    return Report(command=command, records=[_record(line) for line in lines], sections=sections, empty=EMPTY)


def _cost_section(lines: Sequence[Line]) -> Section:
    run, hardware = lines[0].run, lines[0].hardware
    unit = next((line.throughput.unit for line in lines if line.throughput), "items/s")
    items = unit.removesuffix("/s")
    mark = "*" if run.rehearsal else ""
    notes = [REHEARSAL_NOTE.format(type=run.instance_type, hardware=hardware.label)] if run.rehearsal else []
    notes.append(f"USD/M: USD per million {items}; speed-up with its 95 % interval")
    if any(line.comparison and line.comparison.verdict not in WON for line in lines):
        notes.append("≈: no difference seen")
    notes += _warnings(lines)
    return Section(
        heading=_heading(run, hardware),
        titles=("case", "setting", f"{unit}{mark}", "95 % interval", "speed-up", f"USD/M{mark}"),
        rows=[_cost_row(line, mark) for line in lines],
        notes=notes,
        numeric=frozenset({2, 3, 5}),
    )


def _heading(run: Run, hardware: Hardware) -> str:
    measured = f"{run.workload} on {run.instance_type}"
    measured += f" (rehearsal, measured on {hardware.label})" if run.rehearsal else f" ({hardware.label})"
    if run.hourly_usd is None:
        price = "price unknown"
    else:
        dated = f", {run.price_as_of:%Y-%m-%d}" if run.price_as_of else ""
        price = f"{run.hourly_usd.normalize():f} USD/h {run.market}, {run.region} ({run.price_source}{dated})"
    return f"{run.run_id}: {measured}\n{price}; {run.state}, {run.started_at:%Y-%m-%d %H:%M} UTC"


def _cost_row(line: Line, mark: str) -> tuple[str, ...]:
    throughput, usd, comparison = line.throughput, line.usd_per_million, line.comparison
    unstable = "" if line.result.stable else " ~"
    if comparison is not None:
        # A winner is named only where the interval excludes 1; the program says so.
        unclear = "" if comparison.verdict in WON else "≈ "
        bounds = f"{_ratio(comparison.low)}–{_ratio(comparison.high)}"
        speed_up = f"{unclear}{_ratio(comparison.ratio)}x ({bounds})"
    else:
        speed_up = "baseline" if line.result.baseline else ""
    return (
        line.result.case,
        line.result.setting + unstable,
        f"{throughput.value:.4g}" if throughput else "",
        interval(throughput),
        speed_up,
        f"{rounded(usd, 3 if usd < 1 else 2)}{mark}" if usd is not None else "unknown",
    )


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"  # noqa: PLR2004  three digits are enough


def interval(metric: Metric | None) -> str:
    """Return `low–high`; empty where there is no interval."""
    if metric is None or metric.low is None or metric.high is None or metric.low == metric.high:
        return ""
    return f"{metric.low:.4g}–{metric.high:.4g}"


def _detail_section(lines: Sequence[Line]) -> list[Section]:
    """Return the section of all other metrics and facts that any line has; none where there are none."""
    metrics = _union(line.result.metrics for line in lines)
    shown = [name for name in metrics if name in _SHORT]
    facts = [name for name in _union(line.result.facts for line in lines) if name in _FACTS]
    if not shown and not facts:
        return []
    units = {name: metric.unit for line in lines for name, metric in line.result.metrics.items()}
    mark = "*" if lines[0].run.rehearsal else ""
    titles = [f"{_SHORT[name]} {units[name]}{mark}" for name in shown]
    titles += [_FACTS[name] for name in facts]
    rows = [
        [
            line.result.case,
            line.result.setting,
            *(
                _number(line.result.metrics[name].value if name in line.result.metrics else None)
                for name in shown
            ),
            *(_fact(name, line.result.facts.get(name)) for name in facts),
        ]
        for line in lines
    ]
    random = any(line.result.facts.get("weights") == "random" for line in lines)
    notes = (
        ["weights are random: speed and size are real, agreement says nothing of accuracy"] if random else []
    )
    return [
        Section(
            heading="",
            titles=("case", "setting", *titles),
            rows=rows,
            notes=notes,
            numeric=frozenset(range(2, 2 + len(titles))),
        )
    ]


# What fits beside the facts in 80 columns; the JSON and CSV forms carry every metric.
_SHORT = {"latency_p50": "p50", "latency_p99": "p99", "peak_memory": "peak"}
_FACTS = {"model_bytes": "model MB", "cosine_similarity": "cosine"}
_BYTES_PER_MB = 1e6


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


def _warnings(lines: Sequence[Line]) -> list[str]:
    told = [
        f"~ {line.result.case} {line.result.setting}: {text}"
        for line in lines
        for text in line.result.warnings
    ]
    return list(dict.fromkeys(told))


def _record(line: Line) -> dict[str, Cell]:
    run, throughput, comparison = line.run, line.throughput, line.comparison
    return {
        "run": run.run_id,
        "cluster": run.cluster_name,
        "workload": run.workload,
        "instance_type": run.instance_type,
        "rehearsal": run.rehearsal,
        "measured_on": line.hardware.label,
        "cloud": run.cloud,
        "region": run.region,
        "zone": run.zone,
        "market": str(run.market),
        "case": line.result.case,
        "setting": line.result.setting,
        "baseline": line.result.baseline,
        "throughput": throughput.value if throughput else None,
        "throughput_low": throughput.low if throughput else None,
        "throughput_high": throughput.high if throughput else None,
        "unit": throughput.unit if throughput else None,
        "samples": throughput.samples if throughput else None,
        "speed_up": comparison.ratio if comparison else None,
        "speed_up_low": comparison.low if comparison else None,
        "speed_up_high": comparison.high if comparison else None,
        "verdict": comparison.verdict if comparison else None,
        "hourly_usd": run.hourly_usd,
        "price_as_of": run.price_as_of,
        "price_source": run.price_source,
        "usd_per_million": None if line.usd_per_million is None else rounded(line.usd_per_million, 6),
        "stable": line.result.stable,
        "warnings": "; ".join(line.result.warnings),
        **{name: metric.value for name, metric in line.result.metrics.items() if name != "throughput"},
        **{f"fact_{name}": value for name, value in line.result.facts.items()},
        "state": str(run.state),
        "started_at": run.started_at,
    }
