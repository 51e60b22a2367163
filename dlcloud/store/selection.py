"""Which results a report is about, as a condition on the table results."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from dlcloud.store.database import Value

_IN_RUNS = "run_id IN (SELECT run_id FROM runs WHERE {})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to take; an empty field takes everything.

    `names` are of runs or clusters. `types` are instance types or their families (`c7i`). `since` and `until`
    bound the start of a run, the latter itself left out.
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
    def bound_to_runs(self) -> bool:
        """Tell whether it names runs or clusters, of which there are few results."""
        return bool(self.names or self.run_ids or self.clusters)

    def takes(self, *, workload: str, instance_type: str, cloud: str, case_name: str, setting: str) -> bool:
        """Tell whether a kind of result is selected; of when and by which run is not asked."""
        family = instance_type.partition(".")[0]
        wanted = (
            (self.benchmarks, {workload}),
            (self.types, {instance_type, family}),
            (self.clouds, {cloud}),
            (self.cases, {case_name}),
            (self.settings, {setting}),
        )
        return all(not words or named & set(words) for words, named in wanted)

    @property
    def condition(self) -> tuple[str, list[Value]]:
        """Return an SQL condition with its values."""
        parts: list[tuple[str, list[Value]]] = [
            *_one_of("run_id", self.run_ids),
            *_one_of("workload", self.benchmarks),
            *_one_of("case_name", self.cases),
            *_one_of("setting", self.settings),
            *_one_of("cloud", self.clouds),
        ]
        if self.types:
            each = "instance_type = ? OR substr(instance_type, 1, instr(instance_type, '.') - 1) = ?"
            told = " OR ".join([each] * len(self.types))
            parts.append((f"({told})", [name for name in self.types for _ in range(2)]))
        for condition, values in _one_of("cluster_name", self.clusters):
            parts.append((_IN_RUNS.format(condition), values))
        if self.names:
            marks = _marks(self.names)
            condition = f"run_id IN ({marks}) OR cluster_name IN ({marks})"
            parts.append((_IN_RUNS.format(condition), [*self.names, *self.names]))
        if self.since is not None:
            parts.append(("started_at >= ?", [self.since.isoformat()]))
        if self.until is not None:
            parts.append(("started_at < ?", [self.until.isoformat()]))
        return " AND ".join(text for text, _ in parts) or "1", [value for _, own in parts for value in own]


def _one_of(column: str, wanted: Sequence[str]) -> list[tuple[str, list[Value]]]:
    return [(f"{column} IN ({_marks(wanted)})", [*wanted])] if wanted else []


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))
