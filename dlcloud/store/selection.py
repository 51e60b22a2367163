"""The results that a report is about, as a condition on the table results."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from dlcloud.store.database import Value

_IN_RUNS = "run_id IN (SELECT run_id FROM runs WHERE {})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Filters of results; an empty field selects everything.

    `names` are of runs or clusters. `types` are instance types or their families (`c7i`). A run is selected
    if it started at `since` or later, and before `until`.
    """

    names: Sequence[str] = ()
    run_ids: Sequence[str] = ()
    types: Sequence[str] = ()
    benchmarks: Sequence[str] = ()
    cases: Sequence[str] = ()
    settings: Sequence[str] = ()
    clusters: Sequence[str] = ()
    clouds: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None

    @property
    def names_runs(self) -> bool:
        """True if it names runs or clusters, which have few results."""
        return bool(self.names or self.run_ids or self.clusters)

    def selects(self, *, workload: str, instance_type: str, cloud: str, case_name: str, setting: str) -> bool:
        """True if a kind of result is selected, regardless of its time and run."""
        family = instance_type.partition(".")[0]
        filters = (
            (self.benchmarks, {workload}),
            (self.types, {instance_type, family}),
            (self.clouds, {cloud}),
            (self.cases, {case_name}),
            (self.settings, {setting}),
        )
        return all(not selected or values & set(selected) for selected, values in filters)

    @property
    def condition(self) -> tuple[str, list[Value]]:
        """The SQL condition with its values."""
        parts: list[tuple[str, list[Value]]] = [
            *_one_of("run_id", self.run_ids),
            *_one_of("workload", self.benchmarks),
            *_one_of("case_name", self.cases),
            *_one_of("setting", self.settings),
            *_one_of("cloud", self.clouds),
        ]
        if self.types:
            one = "instance_type = ? OR substr(instance_type, 1, instr(instance_type, '.') - 1) = ?"
            anyone = " OR ".join([one] * len(self.types))
            parts.append((f"({anyone})", [name for name in self.types for _ in range(2)]))
        for part, values in _one_of("cluster_name", self.clusters):
            parts.append((_IN_RUNS.format(part), values))
        if self.names:
            marks = _marks(self.names)
            either = f"run_id IN ({marks}) OR cluster_name IN ({marks})"
            parts.append((_IN_RUNS.format(either), [*self.names, *self.names]))
        if self.since is not None:
            parts.append(("started_at >= ?", [self.since.isoformat()]))
        if self.until is not None:
            parts.append(("started_at < ?", [self.until.isoformat()]))
        condition = " AND ".join(text for text, _ in parts) or "1"
        return condition, [value for _, values in parts for value in values]


def _one_of(column: str, names: Sequence[str]) -> list[tuple[str, list[Value]]]:
    return [(f"{column} IN ({_marks(names)})", [*names])] if names else []


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))
