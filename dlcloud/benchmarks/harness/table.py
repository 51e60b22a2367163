"""Render the results as a plain table for people."""

from collections.abc import Iterable, Mapping, Sequence

from .records import Recorder
from .schema import Comparison, Measurement, MetricName, Result
from .usage import MIB
from .verdicts import TIME_WAS_UP

_BySetting = Mapping[tuple[str, str], Comparison]


def render(recorder: Recorder) -> str:
    """Return the table of results, then the warnings, skipped settings and failures."""
    comparisons = {(comparison.case, comparison.candidate): comparison for comparison in recorder.comparisons}
    overall = {(comparison.case, comparison.candidate): comparison for comparison in recorder.overall}
    rows = [_row(result, comparisons, overall) for result in recorder.results]
    parts = []
    if rows:
        names = list(dict.fromkeys(name for row in rows for name in row))
        parts.append(_align([names, *([row.get(name, "") for name in names] for row in rows)]))
    parts.extend(_notes(recorder))
    return "\n".join(parts) + ("\n" if parts else "")


def _row(result: Result, comparisons: _BySetting, overall: _BySetting) -> dict[str, str]:
    comparison = comparisons.get((result.case, result.setting))
    row = {"case": result.case, "setting": result.setting}
    for metric, measured in result.metrics.items():
        row[f"{metric.replace('_', ' ')} ({measured.unit})"] = _value(metric, measured)
    if "model_bytes" in result.facts:
        row["model (MiB)"] = f"{result.facts['model_bytes'] / MIB:.2f}"
    if "cosine_similarity" in result.facts:
        row["cosine to baseline"] = f"{result.facts['cosine_similarity']:.5f}"
    if "accuracy_drop_points" in result.facts:
        row["accuracy (%)"] = f"{result.facts['accuracy_percent']:.2f}"
        row["drop (points)"] = f"{result.facts['accuracy_drop_points']:.2f}"
    row |= result.facts.get("printed", {})
    row["speed-up"] = _speed_up(comparison) if comparison else ("baseline" if result.baseline else "")
    if comparison and any(warning.startswith(TIME_WAS_UP) for warning in result.warnings):
        row["speed-up"] += f", {TIME_WAS_UP}"
    if any(case == result.case for case, _ in overall):
        best = overall.get((result.case, result.setting))
        row["over the best baseline"] = _speed_up(best) if best else "the best"
    return row


def _value(metric: str, measured: Measurement) -> str:
    if metric in (MetricName.PEAK_MEMORY, MetricName.RESIDENT_MEMORY):
        return f"{measured.value:.0f}"
    return f"{measured.value:.4g} [{measured.low:.4g}, {measured.high:.4g}]"


def _speed_up(comparison: Comparison) -> str:
    interval = f"{comparison.ratio:.3g} [{comparison.low:.3g}, {comparison.high:.3g}]"
    return f"{interval} {comparison.verdict}"


def _notes(recorder: Recorder) -> Iterable[str]:
    for result in recorder.results:
        for warning in result.warnings:
            yield f"warning: {result.case}, {result.setting}: {warning}"
    if any(result.facts.get("weights") == "random" for result in recorder.results):
        yield "The weights are random: speed, size and agreement are real, accuracy was not measured."
    for skip in recorder.skips:
        yield f"skipped: {skip.case}, {skip.setting}: {skip.reason}"
    for failure in recorder.failures:
        yield f"failed: {failure.case}, {failure.setting or 'every setting'}: {failure.message}"


def _align(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)
