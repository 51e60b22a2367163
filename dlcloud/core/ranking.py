"""In which order lines are shown, in which groups, and which of them may be called the best."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from dlcloud.core.instance import Market
from dlcloud.core.result import UNDECIDED
from dlcloud.core.result_row import ResultRow


class By(StrEnum):
    """What is best: the least dollars a million items, the most items a second, the shortest latency."""

    COST = "cost"
    THROUGHPUT = "throughput"
    LATENCY = "latency"


class Group(StrEnum):
    """What the lines of one table share."""

    CASE = "case"
    BENCHMARK = "benchmark"
    TYPE = "type"
    CLUSTER = "cluster"
    RUN = "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """Who is best of those that can be compared; `line` is None where that cannot be told, for a reason."""

    case: str
    line: ResultRow | None
    reason: str


def rank(lines: Iterable[ResultRow], by: By, market: Market) -> list[ResultRow]:
    """Return the lines, the best first; those without a figure last, equal ones in the order they came."""
    return sorted(lines, key=lambda line: _key(line, by, market))


def group_rows(lines: Iterable[ResultRow], group: Group) -> list[list[ResultRow]]:
    """Return the lines by what they share, in the order in which each group comes first.

    A rehearsal and a figure of a real instance never share a table, nor do different units.
    """
    groups: dict[tuple[object, ...], list[ResultRow]] = {}
    for line in lines:
        unit = line.throughput.unit if line.throughput else ""
        key = (line.rehearsal, *_shared(line, group), unit if group is not Group.RUN else "")
        groups.setdefault(key, []).append(line)
    return list(groups.values())


def natural_group(lines: Sequence[ResultRow]) -> Group:
    """Return the group that suits the lines: types side by side where there are several, else cases."""
    types: dict[tuple[bool, str], set[str]] = {}
    for line in lines:
        types.setdefault((line.rehearsal, line.run.workload), set()).add(line.run.instance_type)
    return Group.CASE if any(len(names) > 1 for names in types.values()) else Group.BENCHMARK


def best_of(lines: Sequence[ResultRow], by: By, market: Market) -> list[Best]:
    """Name the best of each case, only where its interval overlaps with no other's.

    Lines of one case compete, whatever their type and setting, each by its newest run. What was rehearsed on
    one machine says nothing of the types, so several rehearsed types do not compete.
    """
    cases: dict[tuple[bool, str, str, str], dict[tuple[str, str], ResultRow]] = {}
    for line in sorted(lines, key=lambda line: line.run.started_at):
        if line.throughput is not None:
            key = (line.rehearsal, line.run.workload, line.result.case, line.throughput.unit)
            cases.setdefault(key, {})[line.run.instance_type, line.result.setting] = line
    return [_best([*newest.values()], by, market) for newest in cases.values() if len(newest) > 1]


def _best(lines: Sequence[ResultRow], by: By, market: Market) -> Best:
    case = lines[0].result.case
    if lines[0].rehearsal and len({line.run.instance_type for line in lines}) > 1:
        return Best(case=case, line=None, reason="all types were rehearsed on this one machine")
    first, *others = rank(lines, by, market)
    if _figure(first, by, market) is None:
        return Best(case=case, line=None, reason=f"no {by} is known")
    for other in others:
        reason = _tie(first, other, lines, by, market)
        if reason:
            return Best(case=case, line=None, reason=reason)
    return Best(case=case, line=first, reason="its interval overlaps with no other")


def _tie(first: ResultRow, other: ResultRow, lines: Sequence[ResultRow], by: By, market: Market) -> str:
    """Return why the first of two lines cannot be called better than the other; empty if it can."""
    ours, theirs = _interval(first, by, market), _interval(other, by, market)
    if ours is None:
        return f"{_name(first, lines)} has no interval"
    if theirs is None:
        return f"{_name(other, lines)} has no interval"
    names = f"{_name(first, lines)} and {_name(other, lines)}"
    if theirs[0] <= ours[1] and ours[0] <= theirs[1]:
        return f"the intervals of {names} overlap"
    undecided = _undecided(first, other) if by is not By.LATENCY else ""
    return f"{undecided} between {names}" if undecided else ""


def _undecided(first: ResultRow, other: ResultRow) -> str:
    """Return the verdict of the paired comparison of two settings of a run; empty if it has a winner.

    Samples of one run are compared in pairs, which may see no difference where the intervals do not overlap.
    """
    if first.run.run_id != other.run.run_id:
        return ""
    for candidate, baseline in ((first, other), (other, first)):
        for comparison in (candidate.comparison, candidate.overall):
            if comparison and comparison.baseline == baseline.result.setting and not comparison.is_decided:
                return comparison.verdict or UNDECIDED
    return ""


def _name(line: ResultRow, lines: Sequence[ResultRow]) -> str:
    """Name a line among others: by its type where they differ in it."""
    several = len({each.run.instance_type for each in lines}) > 1
    return f"{line.run.instance_type} {line.result.setting}" if several else line.result.setting


def _shared(line: ResultRow, group: Group) -> tuple[object, ...]:
    match group:
        case Group.CASE:
            return (line.run.workload, line.result.case)
        case Group.BENCHMARK:
            return (line.run.workload,)
        case Group.TYPE:
            return (line.run.instance_type,)
        case Group.CLUSTER:
            return (line.run.cluster_name,)
        case Group.RUN:
            return (line.run.run_id,)


def _key(line: ResultRow, by: By, market: Market) -> float:
    figure = _figure(line, by, market)
    if figure is None:
        return math.inf
    return -float(figure) if by is By.THROUGHPUT else float(figure)


def _figure(line: ResultRow, by: By, market: Market) -> Decimal | float | None:
    match by:
        case By.COST:
            return line.usd_per_million(market)
        case By.THROUGHPUT:
            return line.throughput.value if line.throughput else None
        case By.LATENCY:
            latency = line.result.metrics.get("latency_p50")
            return latency.value if latency else None


def _interval(line: ResultRow, by: By, market: Market) -> tuple[float, float] | None:
    """Return the interval of what is compared; None for a single sample, which has none."""
    if by is By.COST:
        usd = line.usd_interval(market)
        return None if usd is None else (float(usd[0]), float(usd[1]))
    metric = line.throughput if by is By.THROUGHPUT else line.result.metrics.get("latency_p50")
    if metric is None or metric.low is None or metric.high is None or metric.low == metric.high:
        return None
    return metric.low, metric.high
