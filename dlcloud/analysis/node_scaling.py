"""How a job over several nodes scales: speed-up, efficiency and cost by the number of nodes."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from dlcloud.analysis.compare import Ratio, ratio_of
from dlcloud.analysis.cost import ResultRow
from dlcloud.analysis.ranking import Best, By, best_of_case
from dlcloud.model.instance import Market

_COUNT = re.compile(r" on [0-9]+ nodes?$")
"""The end of the name of a case of a job over several nodes."""


def nodes_name(name: str, nodes: int) -> str:
    return f"{name} on {count_nodes(nodes)}"


def count_nodes(nodes: int) -> str:
    return f"{nodes} node{'' if nodes == 1 else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A job on one number of nodes; `speed_up` is over the fewest that were measured, 1 for those."""

    row: ResultRow
    speed_up: Ratio
    fewest: int

    @property
    def nodes(self) -> int:
        return self.row.run.nodes

    @property
    def efficiency(self) -> Ratio:
        """The speed-up over that of the number of nodes; 1 is perfect."""
        share = self.fewest / self.nodes
        ratio = self.speed_up
        low, high = (None if bound is None else bound * share for bound in (ratio.low, ratio.high))
        return replace(ratio, value=ratio.value * share, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeScaling:
    """One job, setting and instance type on several numbers of nodes, the fewest first."""

    case: str
    points: Sequence[Point]

    @property
    def is_rehearsal(self) -> bool:
        return self.points[0].row.rehearsal

    def best(self, by: By, market: Market) -> Best:
        """Name the best number of nodes, only where the interval of its ratio to each other excludes 1.

        Nodes of a rehearsal share the processors of one machine, so that none is best.
        """
        if self.is_rehearsal:
            reason = "all nodes were rehearsed on this one machine, whose cores they share"
            return Best(case=self.case, row=None, reason=reason)
        named = {count_nodes(point.nodes): point.row for point in self.points}
        rows = [replace(row, result=replace(row.result, setting=name)) for name, row in named.items()]
        best = best_of_case(rows, by, market)
        row = best.row and named[best.row.result.setting]
        tied = tuple(named[other.result.setting] for other in best.tied)
        return replace(best, case=self.case, row=row, tied=tied)


def scalings_of(rows: Iterable[ResultRow]) -> list[NodeScaling]:
    """Return the jobs that were measured on more than one number of nodes, each count by its newest run."""
    jobs: dict[tuple[object, ...], dict[int, ResultRow]] = {}
    for row in sorted(rows, key=lambda row: row.run.started_at):
        if row.throughput is not None and row.run.nodes and _COUNT.search(row.result.case):
            kind = (row.rehearsal, row.run.workload, row.run.instance_type, _case(row))
            jobs.setdefault((*kind, row.result.setting, row.throughput.unit), {})[row.run.nodes] = row
    return [
        _scaling([counts[nodes] for nodes in sorted(counts)]) for counts in jobs.values() if len(counts) > 1
    ]


def rows_apart(rows: Iterable[ResultRow], scalings: Collection[NodeScaling]) -> list[ResultRow]:
    scaled = {id(point.row) for scaling in scalings for point in scaling.points}
    return [row for row in rows if id(row) not in scaled]


def _scaling(rows: Sequence[ResultRow]) -> NodeScaling:
    first = rows[0]
    points = [Point(row=row, speed_up=_speed_up(first, row), fewest=first.run.nodes) for row in rows]
    return NodeScaling(case=_case(first), points=points)


def _speed_up(first: ResultRow, row: ResultRow) -> Ratio:
    if first.throughput is None or row.throughput is None:
        raise ValueError("a point has a throughput")
    if row is first:
        return Ratio(value=1.0, low=None, high=None, verdict="")
    ratio = ratio_of(first.throughput, row.throughput)
    return ratio if first.has_interval and row.has_interval else replace(ratio, low=None, high=None)


def _case(row: ResultRow) -> str:
    return _COUNT.sub("", row.result.case)
