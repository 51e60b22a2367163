"""What is stored of an experiment: its runs, found by what its trials have in common."""

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dlcloud.analysis.result import Run, parse_record, result_of
from dlcloud.analysis.trials import (
    TrialStatus,
    assess_search,
    assess_trials,
    intermediate_of,
    metric_of,
    number_trials,
    printed_of,
)
from dlcloud.model.untrusted import parse_json
from dlcloud.recipe.experiment import FLAGS, Experiment
from dlcloud.recipe.recipe import Recipe
from dlcloud.recipe.sent_files import FileSet
from dlcloud.store.runs import Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRecords:
    """What is stored of an experiment.

    Args:
        runs: The store's.
        experiment: The recipe's.
        digest: Of what the trials have in common.
    """

    runs: Runs
    experiment: Experiment
    digest: str

    def statuses(self) -> list[TrialStatus]:
        """Return the status of each trial by the runs that are stored; of a search, of those it has begun."""
        values, printed = {}, {}
        for run_id, line in self.runs.result_lines(self.digest).items():
            value, printed[run_id] = self._read(line)
            if value is not None:
                values[run_id] = value
        runs, attempts = self.runs.of_experiment(self.digest), self.experiment.attempts
        if self.experiment.search is not None:
            statuses = assess_search(runs, values, attempts=attempts)
            statuses = [replace(status, intermediate=self.intermediate_of(status.run)) for status in statuses]
        else:
            trials = number_trials(self.experiment.trials())
            statuses = assess_trials(trials, runs, values, attempts=attempts)
        return [
            status if status.run is None else replace(status, printed=printed.get(status.run.run_id, ""))
            for status in statuses
        ]

    def value_of(self, run: Run) -> float | None:
        """Return the metric of a run; None if it did not measure it."""
        lines = self.runs.lines(run.run_id, "result")
        return self._read(lines[-1])[0] if lines else None

    def intermediate_of(self, run: Run | None) -> tuple[tuple[int, float], ...]:
        """Return what a run has said of its metric so far, by step."""
        if run is None:
            return ()
        records = map(parse_record, self.runs.lines(run.run_id, "intermediate"))
        values = (intermediate_of(record) for record in records if record is not None)
        return tuple(dict(value for value in values if value is not None).items())

    def _read(self, line: str) -> tuple[float | None, str]:
        """Return the metric of a result, and what was printed for it if that is no number."""
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            result, metric = result_of(parse_json(line)), self.experiment.metric
            return metric_of(result, metric), printed_of(result, metric)
        return None, ""


def digest_of(recipe: Recipe, files: FileSet | None) -> str:
    """Return a digest of what all trials of an experiment have in common.

    The values, and how many trials there are, do not belong to it: a matrix that has grown runs what is new.
    """
    workload = recipe.workload.model_dump(mode="json", exclude={"secrets", "files"})
    experiment = recipe.experiment
    content = {
        "name": recipe.name,
        "cloud": recipe.cloud,
        "types": sorted(recipe.instances.types),
        "setup": recipe.setup.model_dump(mode="json"),
        "workload": workload,
        "repeats": experiment.repeats if experiment else 1,
        "per_instance": experiment.per_instance if experiment else 1,
        "arguments": _ARGUMENTS.get(experiment.arguments, experiment.arguments) if experiment else True,
        "data": [item.model_dump(mode="json") for item in recipe.data],
        "files": [] if files is None else [(str(entry.name), _digest(entry.path)) for entry in files.entries],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


_ARGUMENTS = {FLAGS: True, "": False}
"""Forms of arguments as they were stored before there were others."""


def _digest(path: Path) -> str:
    if path.is_symlink() or not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
