"""Faults of a recipe's script that can be seen before anything is launched."""

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from dlcloud.model.errors import RecipeError
from dlcloud.model.events import Event, Info, Warned
from dlcloud.recipe.script import REPORTER, Script, distribution_of, read_script
from dlcloud.recipe.workload import Setup, Workload

_SCRIPT = re.compile(r"\bpython[0-9.]*\s+(?:-u\s+)?([\w./-]+\.py)\b")
_PLAIN = re.compile(
    r"(?:(?:python[0-9.]*|bash|sh)\s+(?:-[a-z]+\s+)?(?P<script>[\w./-]+\.(?:py|sh))|\./(?P<program>[\w./-]+))"
    r"(?:\s+[^;&|<>`$()]*)?"
)
"""A command that does nothing but run a script, so that nothing else can make that script."""
OTHERWISE = ("torchrun", "trainer.")
"""Commands that train elastically by other means than the script's own import."""


def refuse_missing_script(workload: Workload, recipe_folder: Path) -> None:
    """Refuse a command that runs a script which is not among the files that are sent.

    Raises:
        RecipeError: There is no such script.
    """
    match = _PLAIN.fullmatch((workload.command or "").strip())
    name = (match["script"] or match["program"]) if match is not None else ""
    is_program = match is not None and match["program"] is not None
    if not name or name.startswith("/") or (is_program and workload.files is None):
        return
    if workload.files is None:
        raise RecipeError(
            f"workload.command runs {name}, and no files are sent: workload.files is missing",
            f"workload.files: {shlex.quote(name)}",
        )
    files = recipe_folder / workload.files
    path = files / name if files.is_dir() else files.parent / name
    if files.exists() and (not path.is_file() or (files.is_file() and path.name != files.name)):
        raise RecipeError(
            f"workload.command runs {name}, which is not in workload.files ({workload.files})",
            "names in the command are relative to the folder of files that is sent",
        )


def warn_of_script(
    workload: Workload, recipe_folder: Path, emit: Callable[[Event], None], setup: Setup | None = None
) -> None:
    """Warn if a command's script imports what its recipe does not install, or lacks an import that it needs.

    Args:
        workload: The command.
        recipe_folder: The files are relative to it.
        emit: Takes the warnings.
        setup: The packages; None leaves them unchecked.
    """
    script = _script_of(workload, recipe_folder)
    if script is None:
        return
    name, facts, own = script
    if setup is not None and workload.elastic is None:  # a training's environment has PyTorch
        _warn_of_packages(name, facts.packages(own), setup, emit)
    if workload.elastic is not None and not facts.is_elastic:
        message = f"{name} does not import dlcloud.trainer: each instance would train alone (docs/elastic.md)"
        emit(Warned(message=message))
    if workload.reported and not facts.reports:
        emit(Warned(message=f"{name} does not import {REPORTER}, by which the recipe reads its throughput"))


def _warn_of_packages(
    name: str, packages: Sequence[str], setup: Setup, emit: Callable[[Event], None]
) -> None:
    """Warn of imports without requirements; a container and set-up commands may bring packages."""
    brings_own = setup.image or any(word in setup.commands for word in ("pip", "conda", "uv "))
    listed = {distribution_of(requirement) for requirement in setup.requirements}
    missing = [package for package in packages if distribution_of(package) not in listed]
    if not missing or brings_own:
        return
    if listed:
        message = f"{name} imports {', '.join(missing)}, which setup.requirements does not list"
        emit(Info(message=f"{message}: only a package that is listed can bring it"))
    else:
        message = f"{name} imports {', '.join(missing)}, and setup.requirements is empty"
        emit(Warned(message=f"{message}: an instance has Python without packages"))


def _script_of(workload: Workload, recipe_folder: Path) -> tuple[str, Script, frozenset[str]] | None:
    """Return the script that a command runs with all its own modules, and their names; None if not known."""
    command = workload.command or ""
    match = _SCRIPT.search(command)
    if match is None or workload.files is None or any(word in command for word in OTHERWISE):
        return None
    files = recipe_folder / workload.files
    path = files / match[1] if files.is_dir() else files
    if not path.is_file():
        return None
    modules = sorted(path.parent.glob("*.py")) if files.is_dir() else [path]
    folders = [folder.parent.name for folder in path.parent.glob("*/__init__.py")] if files.is_dir() else []
    own = frozenset([*(module.stem for module in modules), *folders])
    text = "\n".join(module.read_text("utf-8", "replace") for module in {path, *modules})
    try:
        return path.name, read_script(text, path.name), own
    except RecipeError:
        return None  # a future import in the middle, or another version of Python
