"""Export runs from one store and import them into another: once, and whole or not at all."""

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dlcloud.analysis.result import Run
from dlcloud.analysis.transfer import MOST_FAULTS, RunDocument, document_of, read_line, without_commands
from dlcloud.model.errors import RecipeError
from dlcloud.store.database import Database
from dlcloud.store.measurements import Measurements, Selection
from dlcloud.store.runs import Runs

PIECE = 500
"""Runs read together, so that memory stays small for any number of runs."""

_LEFT_OUT = frozenset({"progress"})
_SAMPLES = frozenset({"sample"})


@dataclass(slots=True)
class ImportCounts:
    """The runs of an import: new, stored unfinished before, or stored already."""

    added: int = 0
    completed: int = 0
    unchanged: int = 0


class RunTransfer:
    """Export and import.

    Raises:
        StoreError: From any method.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._runs = Runs(database)
        self._measurements = Measurements(database)

    def export_lines(self, selection: Selection, *, samples: bool, commands: bool) -> Iterator[str]:
        """Yield one line per run, the oldest first.

        Args:
            selection: Filters of runs; with a case or a setting, of those that have such a result.
            samples: Include the raw samples.
            commands: Include command lines and variables of the user's own programs, which may hold secrets.
        """
        ids = self._measurements.run_ids(selection)
        kinds = _LEFT_OUT if samples else _LEFT_OUT | _SAMPLES
        for start in range(0, len(ids), PIECE):
            for document in self._documents(ids[start : start + PIECE], kinds, commands=commands):
                yield json.dumps(document, default=_plain, ensure_ascii=False, separators=(",", ":"))

    def import_lines(self, files: Iterable[tuple[str, Iterable[bytes]]]) -> ImportCounts:
        """Import lines.

        Args:
            files: Names, for messages, and lines.

        Raises:
            RecipeError: Lines are not valid, listed with their numbers; nothing of any file is stored.
        """
        counts, faults = ImportCounts(), list[str]()
        with self._database.transaction():
            for name, lines in files:
                for number, line in enumerate(lines, start=1):
                    if line.strip() and len(faults) < MOST_FAULTS:
                        self._import_line(line, f"{name}:{number}", counts, faults)
            if faults:
                more = ["(and perhaps more)"] if len(faults) == MOST_FAULTS else []
                raise RecipeError("\n".join([*faults, *more]), "nothing was imported")
        return counts

    def _documents(
        self, ids: Collection[str], excluded: frozenset[str], *, commands: bool
    ) -> Iterator[dict[str, Any]]:
        store = self._measurements
        runs = store.runs(ids)
        prices, periods = store.market_prices(ids), store.billing_periods({run.instance_id for run in runs})
        records = store.records_except(ids, excluded)
        for run in runs:
            own_records = records.get(run.run_id, [])
            yield document_of(
                run,
                prices=prices.get(run.run_id),
                period=periods.get(run.instance_id),
                records=own_records if commands else [without_commands(record) for record in own_records],
            )

    def _import_line(self, line: bytes, where: str, counts: ImportCounts, faults: list[str]) -> None:
        try:
            document = read_line(line)
        except ValueError as error:
            faults.append(f"{where}: {error}")
            return
        stored = next(iter(self._measurements.runs([document.run_id])), None)
        if stored is None:
            self._add(document)
            counts.added += 1
        elif not _is_same_run(stored, document):
            faults.append(f"{where}: run_id: another run {document.run_id} is stored")
        elif stored.ended_at is None and document.ended_at is not None:
            self._remove(document.run_id)
            self._add(document)
            counts.completed += 1
        else:
            counts.unchanged += 1

    def _add(self, document: RunDocument) -> None:
        self._runs.add(document.run)
        self._runs.put_prices(document.run_id, document.market_prices)
        content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in document.records)
        self._runs.add_records(document.run_id, 0, content.encode())
        period = document.billing_period
        if period is not None and not self._measurements.is_member(document.instance_id):
            row = {name: getattr(period, name) for name in period.__dataclass_fields__}
            self._database.insert("leases", row, replace=True)

    def _remove(self, run_id: str) -> None:
        for table in ("records", "results", "run_prices", "runs"):
            self._database.write(f"DELETE FROM {table} WHERE run_id = ?", run_id)


def _is_same_run(run: Run, document: RunDocument) -> bool:
    key = (run.instance_id, run.cluster_id, run.started_at)
    return key == (document.instance_id, document.cluster_id, document.started_at)


def _plain(value: object) -> str:
    isoformat = getattr(value, "isoformat", None)
    return str(isoformat()) if isoformat else str(value)
