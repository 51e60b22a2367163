"""What is stored of an experiment: its runs, found by what its trials have in common.

That is its `Identity`: the recipe's keys that matter for results, and the files that its command may read. A
file that it cannot read, such as another recipe in the folder, changes nothing.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

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
from dlcloud.model.remote import SentFile
from dlcloud.model.untrusted import parse_json
from dlcloud.recipe.document import parse
from dlcloud.recipe.experiment import Experiment
from dlcloud.recipe.recipe import Recipe
from dlcloud.recipe.sent_files import MOST_NAMED, FileSet
from dlcloud.store.runs import Runs
from dlcloud.system.files import write_file


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


NOT_OF_RESULTS = {"secrets", "files", "retries", "checkpoints", "resume", "on_notice"}
"""Keys of a workload that change how it gets through, not what it computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What all trials of an experiment have in common: its results are known by it.

    The values, and how many trials there are, do not belong to it: a matrix that has grown runs what is new.

    Args:
        keys: Of the recipe, by name.
        files: Digests of the files that the command may read, by name.
    """

    keys: Mapping[str, Any]
    files: Mapping[str, str]

    @property
    def digest(self) -> str:
        """A short name of it."""
        content = json.dumps([self.keys, self.files], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def store(self, folder: Path) -> None:
        """Keep it in a folder, for `describe_change` of a later command."""
        text = json.dumps({"schema": 1, "keys": self.keys, "files": self.files}, sort_keys=True)
        write_file(folder / f"{self.digest}.json", text)

    def describe_change(self, folder: Path, runs: Runs) -> str:
        """Return what has changed since the newest experiment of the same name that has runs.

        Empty if there is none, or if this one has runs itself.
        """
        if runs.of_experiment(self.digest):
            return ""
        kept = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in kept:
            earlier = parse_json(path.read_text("utf-8"))
            keys, files = earlier["keys"], earlier["files"]
            if (keys["name"], keys["cloud"]) != (self.keys["name"], self.keys["cloud"]):
                continue
            if not (count := len(runs.of_experiment(path.stem))):
                continue
            names = [name for name in self.keys if keys.get(name) != self.keys[name]]
            changed = [name for name in files if self.files.get(name, files[name]) != files[name]]
            parts = {
                "changed": [*names, *changed],
                "new": sorted(self.files.keys() - files.keys()),
                "gone": sorted(files.keys() - self.files.keys()),
            }
            texts = [f"{word}: {_some(listed)}" for word, listed in parts.items() if listed]
            return f"the {count} runs of {self.keys['name']} before do not count: {'; '.join(texts)}"
        return ""


def identity_of(recipe: Recipe, files: FileSet | None) -> Identity:
    """Return what the trials of a recipe's experiment have in common; `files` are those that are sent."""
    workload, experiment = recipe.workload, recipe.experiment
    keys = {
        "name": recipe.name,
        "cloud": recipe.cloud,
        "instances.types": recipe.instances.wanted or sorted(recipe.instances.types),
        "data": [item.model_dump(mode="json") for item in recipe.data],
        **{f"setup.{name}": value for name, value in recipe.setup.model_dump(mode="json").items()},
        **{
            f"workload.{name}": value
            for name, value in workload.model_dump(mode="json", exclude=NOT_OF_RESULTS).items()
        },
    }
    if experiment is not None:
        for name in ("repeats", "per_instance", "arguments"):
            keys[f"experiment.{name}"] = getattr(experiment, name)
    read = [] if files is None else files_read(workload.command or "", files)
    return Identity(keys=keys, files={str(entry.name): _digest(entry.path) for entry in read})


CODE = {".py", ".sh", ".bash", ".ipynb"}
TEXTS_ABOUT = {".md", ".rst"}
LARGEST_CODE = 1 << 20
SCHEMA = "recipe.schema.json"
_FINDS_MODULES = re.compile(r"\b(importlib|pkgutil|__import__|runpy)\b")
"""Code that may import what it does not name."""


def files_read(command: str, files: FileSet) -> list[SentFile]:
    """Return the files that a command may read: without programs that nothing names, and other recipes.

    A program is named by its file or module in the command, or in a program that is named. Any other file may
    be data, except recipes, their schema and texts about the project, unless they are named.
    """
    entries = [entry for entry in files.entries if not entry.stamp.startswith("d")]
    code = {entry.name: entry for entry in entries if PurePosixPath(entry.name).suffix in CODE}
    reached: set[str] = set()
    waiting = [command]
    words: set[str] = set()
    while waiting:
        text = waiting.pop()
        words |= set(re.findall(r"[\w-]+", text))
        finds_all = _FINDS_MODULES.search(text) is not None
        for name, entry in code.items():
            if name not in reached and (finds_all or _is_named(name, words)):
                reached.add(name)
                waiting.append(_code_of(entry.path))
    if not reached:  # it is not seen what the command runs
        return entries
    return [
        entry
        for entry in entries
        if entry.name in reached
        or (entry.name not in code and (_may_be_data(entry) or _is_named(entry.name, words)))
    ]


def _is_named(name: str, words: Collection[str]) -> bool:
    """True if a file, or the module or package that it is, is named in some words."""
    path = PurePosixPath(name)
    stem = path.parent.name if path.stem in {"__init__", "__main__"} else path.stem
    return not set(re.findall(r"[\w-]+", stem)) - set(words)


def _may_be_data(entry: SentFile) -> bool:
    path = PurePosixPath(entry.name)
    if path.name == SCHEMA or path.suffix in TEXTS_ABOUT or path.name.startswith((".git", ".dlcloud")):
        return False
    if path.suffix not in {".yaml", ".yml"} or entry.size > LARGEST_CODE:
        return True
    try:
        content = parse(entry.path.read_text("utf-8", "replace")).value
    except OSError:
        return True
    return not (isinstance(content, dict) and {"workload", "instances"} <= content.keys())


def _code_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_CODE).decode("utf-8", "replace")
    except OSError:
        return ""


def _digest(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return f"{', '.join(names[:MOST_NAMED])}{f' and {more} more' if more > 0 else ''}"
