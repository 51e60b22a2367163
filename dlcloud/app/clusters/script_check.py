"""A warning where a recipe's script does not import what the recipe says that it uses."""

import re
from collections.abc import Callable
from pathlib import Path

from dlcloud.model.errors import RecipeError
from dlcloud.model.events import Event, Warned
from dlcloud.recipe.script import REPORTER, Script, read_script
from dlcloud.recipe.workload import Workload

_SCRIPT = re.compile(r"\bpython[0-9.]*\s+(?:-u\s+)?([\w./-]+\.py)\b")
OTHERWISE = ("torchrun", "trainer.")
"""Commands that train elastically by other means than the script's own import."""


def warn_of_script(workload: Workload, recipe_folder: Path, emit: Callable[[Event], None]) -> None:
    """Warn if the script of a command lacks the import of dlcloud.trainer or dlcloud_report that it needs."""
    script = _script_of(workload, recipe_folder)
    if script is None:
        return
    name, facts = script
    if workload.elastic is not None and not facts.is_elastic:
        message = f"{name} does not import dlcloud.trainer: each instance would train alone (docs/elastic.md)"
        emit(Warned(message=message))
    if workload.reported and not facts.reports:
        emit(Warned(message=f"{name} does not import {REPORTER}, by which the recipe reads its throughput"))


def _script_of(workload: Workload, recipe_folder: Path) -> tuple[str, Script] | None:
    """Return the script that a command runs, with all its own modules; None if that is not known."""
    command = workload.command or ""
    match = _SCRIPT.search(command)
    if match is None or workload.files is None or any(word in command for word in OTHERWISE):
        return None
    files = recipe_folder / workload.files
    path = files / match[1] if files.is_dir() else files
    if not path.is_file():
        return None
    modules = sorted(path.parent.glob("*.py")) if files.is_dir() else [path]
    text = "\n".join(module.read_text("utf-8", "replace") for module in {path, *modules})
    try:
        return path.name, read_script(text, path.name)
    except RecipeError:
        return None  # a future import in the middle, or another version of Python
