"""Two sides compared: ratios with intervals and verdicts in words, then what else differs."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from dlcloud.analysis.compare import Difference, Pair, are_of_one_machine
from dlcloud.analysis.ranking import reason_of
from dlcloud.benchmarks.harness.schema import Verdict
from dlcloud.model.money import millionths
from dlcloud.report.answer import settling_notes
from dlcloud.report.cells import UNSTABLE, marked, ratio, throughput
from dlcloud.report.table import Cell, Report, Section


def compare_report(
    sides: tuple[str, str],
    pairs: Sequence[Pair],
    differing: Sequence[Difference],
    commands: Mapping[str, str] = MappingProxyType({}),
) -> Report:
    """Return the comparison: above 1, the second side is faster.

    `commands` has the beginning of the command that measures a run's workload again, by run id.
    """
    sections = [_ratio_section(sides, pairs, commands)]
    if differing:
        sections.append(_difference_section(sides, differing))
    return Report(
        command="compare",
        records=[_record(sides, pair) for pair in pairs],
        sections=sections,
        empty="",
        extra={"differences": [{"what": d.name, "a": d.first, "b": d.second} for d in differing]},
    )


def _ratio_section(sides: tuple[str, str], pairs: Sequence[Pair], commands: Mapping[str, str]) -> Section:
    unit = pairs[0].first.throughput.unit if pairs[0].first.throughput else "items/s"
    is_rehearsal = any(_is_rehearsal(pair) for pair in pairs)
    notes = [f"ratio: {unit} of B over A with its 95 % interval; above 1, B is faster"]
    notes.append("cost: USD per million of B over A by that ratio, each at the price of the market it ran in")
    if any(pair.ratio.paired for pair in pairs):
        notes.append("of one run: the ratio is that of samples measured in turns; A and B are medians of all")
    if is_rehearsal:
        notes.append("* rehearsal: the speed is of this machine, and says nothing of the types")
    if not all(_is_stable(pair) for pair in pairs):
        notes.append("~: a side did not settle")
    if not all(pair.ratio.paired for pair in pairs):
        notes.append("of two runs: the interval comes from those of both medians")
    tied = [pair for pair in pairs if pair.ratio.verdict not in {Verdict.FASTER, Verdict.SLOWER}]
    notes += dict.fromkeys(map(_why, tied))
    notes += dict.fromkeys(
        note for pair in tied for note in settling_notes(pair.first, pair.second, commands)
    )
    names = [_names(pair) for pair in pairs]
    # The setting is always shown, of the others those in which the rows differ.
    titles = [title for title in names[0] if title == "setting" or len({of[title] for of in names}) > 1]
    count = len(titles)
    return Section(
        heading=f"A: {sides[0]}\nB: {sides[1]}",
        titles=(*titles, "A", "B", marked("ratio", is_rehearsal), "verdict", "cost"),
        rows=[
            [*(name[title] for title in titles), *_figures(pair)]
            for pair, name in zip(pairs, names, strict=True)
        ],
        notes=notes,
        numeric=frozenset({count, count + 1, count + 4}),
    )


def _why(pair: Pair) -> str:
    """Return a verdict with the reason why it names no winner."""
    verdict = str(pair.ratio.verdict or Verdict.UNDECIDED)
    if are_of_one_machine(pair.first, pair.second):
        return f"{verdict}: both types were rehearsed on this one machine"
    return f"{verdict}: {reason_of(verdict)}"


def _is_stable(pair: Pair) -> bool:
    return pair.first.result.stable and pair.second.result.stable


def _is_rehearsal(pair: Pair) -> bool:
    return pair.first.rehearsal or pair.second.rehearsal


def _names(pair: Pair) -> dict[str, str]:
    first, second = pair.first, pair.second
    settings = dict.fromkeys((first.result.setting, second.result.setting))
    types = dict.fromkeys((first.run.instance_type, second.run.instance_type))
    return {
        "type": " → ".join(types),
        "benchmark": first.run.workload,
        "case": first.result.case,
        "setting": " → ".join(settings) + ("" if _is_stable(pair) else UNSTABLE),
    }


def _figures(pair: Pair) -> tuple[str, ...]:
    cost = pair.usd_ratio
    return (
        throughput(pair.first),
        throughput(pair.second),
        _ratio(pair),
        pair.ratio.verdict,
        "" if cost is None else f"{ratio(float(cost))}x",
    )


def _ratio(pair: Pair) -> str:
    """Format a ratio with its interval, where there is one."""
    value = pair.ratio
    if value.low is None or value.high is None:
        return f"{ratio(value.value)}x"
    return f"{ratio(value.value)}x ({ratio(value.low)}–{ratio(value.high)})"


def _difference_section(sides: tuple[str, str], differing: Sequence[Difference]) -> Section:
    return Section(
        heading="what else differs",
        titles=("what", "A", "B"),
        rows=[(difference.name, difference.first, difference.second) for difference in differing],
        notes=[f"A: {sides[0]}; B: {sides[1]}"],
    )


def _record(sides: tuple[str, str], pair: Pair) -> dict[str, Cell]:
    first, second, value = pair.first, pair.second, pair.ratio
    return {
        "a": sides[0],
        "b": sides[1],
        "benchmark": first.run.workload,
        "case": first.result.case,
        "setting_a": first.result.setting,
        "setting_b": second.result.setting,
        "type_a": first.run.instance_type,
        "type_b": second.run.instance_type,
        "run_a": first.run.run_id,
        "run_b": second.run.run_id,
        "throughput_a": first.throughput.value if first.throughput else None,
        "throughput_b": second.throughput.value if second.throughput else None,
        "unit": first.throughput.unit if first.throughput else None,
        "ratio": value.value,
        "ratio_low": value.low,
        "ratio_high": value.high,
        "verdict": value.verdict,
        "paired": value.paired,
        "usd_ratio": millionths(pair.usd_ratio),
        "rehearsal": _is_rehearsal(pair),
        "stable": _is_stable(pair),
    }
