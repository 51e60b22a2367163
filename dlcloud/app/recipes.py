"""Recipes as texts: `dlcloud init`, `recipes` and `schema`, and the skill for coding agents.

`init` writes a recipe to start from, or one for a script of the user's: it reads the script's imports and
output, pins the packages as they are installed here, and, if it may, runs the script for ten seconds to see
what it prints. It never overwrites a file, and it asks no cloud.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dlcloud.analysis.transfer import results_schema
from dlcloud.app.terminal.screen import agrees, say
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import read_recipe, recipe_schema
from dlcloud.recipe.script import Script, distribution_of, read_script, throughput_of_output
from dlcloud.recipe.script_recipe import SCHEMA_FILE, SCHEMA_LINE, ScriptRecipe
from dlcloud.report.files import report_file
from dlcloud.report.recipes import recipes_report
from dlcloud.report.table import Format, envelope, render
from dlcloud.resources.texts import recipe_names, recipe_text, template


def init(*, file: Path, trial: bool | None, output: str) -> None:
    """Write a commented recipe to FILE (recipe.yaml), or one for FILE if it is a Python script."""
    notes: list[str] = []
    if file.suffix == ".py":
        target = file.with_suffix(".yaml")
        _refuse_existing(target)
        text, notes = recipe_of_script(file, trial_for(file, allowed=trial))
    else:
        target = file
        text = SCHEMA_LINE.format(SCHEMA_FILE) + template("recipe.yaml")
    _write_new(target, text)
    _write_schema(target.with_name(SCHEMA_FILE))
    _print(target, notes, output)


def _refuse_existing(file: Path) -> None:
    if file.exists():
        raise RecipeError(f"{file} exists and was not changed", "remove it, or dlcloud init ANOTHER.yaml")


def _write_new(file: Path, text: str) -> None:
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError as error:
        raise RecipeError(f"{file} exists and was not changed", "dlcloud init ANOTHER.yaml") from error
    except OSError as error:
        raise RecipeError(f"cannot write {file}: {error.strerror}") from error


def _write_schema(file: Path) -> None:
    """Write the schema that the recipe's first line names; one that is there is replaced."""
    with report_file(file) as draft:
        draft.write_text(json.dumps(recipe_schema(), indent=1) + "\n", "utf-8")


def _print(file: Path, notes: list[str], output: str) -> None:

    following = f"dlcloud up {file} --dry-run"
    if output == "json":
        say(envelope("init", {"result": {"file": str(file), "notes": notes, "next": following}}))
        return
    for note in notes:
        say(f"{note}", err=True)
    say(f"wrote {file}; next: {following}")


TRIAL_S = 10
MOST_OUTPUT = 1 << 20
REQUIREMENTS = "requirements.txt"
PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[A-Za-z0-9,._-]+\])?==[^\s;#]+")
NAMED = re.compile(r"^([A-Za-z0-9._-]+)")
_VERSIONS = """
import importlib.metadata, json, sys
versions = {}
for name in sys.argv[1:]:
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(versions))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTrial:
    """What a script printed in ten seconds; `status` is None if it still ran then."""

    lines: tuple[str, ...] = ()
    status: int | None = None
    ran: bool = False


def trial_for(file: Path, *, allowed: bool | None) -> ScriptTrial:
    """Run a script for ten seconds if that is allowed; on a terminal ask."""
    if allowed is None:
        is_asked = sys.stdin.isatty()
        allowed = is_asked and agrees(f"Run {file} here for {TRIAL_S} s, to see what it prints?")
    return run_trial(file, TRIAL_S) if allowed else ScriptTrial()


def run_trial(file: Path, seconds: float) -> ScriptTrial:
    """Run a script in its folder until it ends or the time is up, then end it with all that it started."""
    _check_file(file)
    folder = file.absolute().parent
    script = read_script(file.read_text("utf-8", "replace"), str(file))
    process = subprocess.Popen(
        [python_for(script.packages(_own_modules(folder))), file.name],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        output, _ = process.communicate()
        status = None
    else:
        status = process.returncode
    finally:
        _end(process)
    return ScriptTrial(
        lines=tuple(output[:MOST_OUTPUT].decode("utf-8", "replace").splitlines()), status=status, ran=True
    )


def recipe_of_script(file: Path, trial: ScriptTrial) -> tuple[str, list[str]]:
    """Return the recipe of a script, and what its user should know of it.

    Raises:
        RecipeError: The file is missing, or no Python.
    """
    _check_file(file)
    folder = file.absolute().parent
    script = read_script(file.read_text("utf-8", "replace"), str(file))
    pins, unpinned, unlisted = _requirements(script, folder)
    local = script.modules & _own_modules(folder)
    name = re.sub(r"[^a-z0-9-]+", "-", file.stem.lower()).strip("-") or "script"
    recipe = ScriptRecipe(
        name=name if name[0].isalpha() else f"run-{name}",
        script=script,
        command=f"python3 {file.name}",
        files="." if local or _opens_files(file, script.written) else file.name,
        requirements=pins,
        unpinned=unpinned,
        throughput=throughput_of_output(trial.lines) or script.throughput,
        schema=SCHEMA_FILE,
    )
    text = recipe.text()
    read_recipe(text, str(file.with_suffix(".yaml")))
    notes = _notes(script, recipe, trial)
    if unlisted:
        names = ", ".join(unlisted)
        notes.insert(-1, f"{REQUIREMENTS} does not list {names}: only a package that is listed can bring it")
    return text, notes


def python() -> str:
    """Return the interpreter that the user's shell would run: that of an active environment, too."""
    return shutil.which("python3") or sys.executable


def python_for(names: Sequence[str]) -> str:
    """Return the interpreter that has most of some packages: the shell's, or that of dlcloud itself.

    `.venv/bin/dlcloud` is run without its environment being active, too.
    """
    pythons = dict.fromkeys([python(), sys.executable])
    return max(pythons, key=lambda path: len(_versions_in(path, names))) if names else python()


def _notes(script: Script, recipe: ScriptRecipe, trial: ScriptTrial) -> list[str]:
    notes = [f"framework: {script.framework or 'none seen'}; sent: {recipe.files}"]
    if recipe.requirements:
        notes.append(f"packages: {', '.join(recipe.requirements)}")
    if recipe.unpinned:
        notes.append(f"versions are missing of {', '.join(recipe.unpinned)}: pin them in the recipe")
    if script.required:
        notes.append(f"it requires {', '.join(script.required)}: add them to workload.command")
    if trial.ran and trial.status not in {None, 0}:
        last = next((line for line in reversed(trial.lines) if line.strip()), "")
        notes.append(f"the trial ended with status {trial.status}: {last}")
    return [*notes, _reading_note(script, recipe, trial)]


def _reading_note(script: Script, recipe: ScriptRecipe, trial: ScriptTrial) -> str:
    if script.is_elastic:
        return "it trains by dlcloud.trainer: an elastic training"
    if script.reports:
        return "it reports its throughput by dlcloud_report"
    if recipe.throughput is not None:
        return f"throughput: {recipe.throughput.unit} a second, read by {recipe.throughput.pattern}"
    hint = "" if trial.ran else "; --trial runs it for ten seconds to see what it prints"
    return f"no throughput seen: whole runs are timed{hint}"


def _requirements(script: Script, folder: Path) -> tuple[list[str], list[str], list[str]]:
    """Return the pinned packages of a script, those of unknown version, and imports that nothing lists."""
    imported = script.packages(_own_modules(folder))
    listed = folder / REQUIREMENTS
    if listed.is_file():
        lines = [line.strip() for line in listed.read_text("utf-8", "replace").splitlines()]
        pins = [match[0] for line in lines if (match := PINNED.match(line))]
        loose = [match[1] for line in lines if not PINNED.match(line) and (match := NAMED.match(line))]
        named = {distribution_of(name) for name in (*pins, *loose)}
        unlisted = [name for name in imported if distribution_of(name) not in named]
    else:
        pins, loose, unlisted = [], imported, []
    versions = _versions_in(python_for(loose), loose)
    pins += [f"{name}=={versions[name]}" for name in loose if name in versions]
    return pins, [name for name in loose if name not in versions], unlisted


@cache
def _versions_of(interpreter: str, names: tuple[str, ...]) -> Mapping[str, str]:
    """Return the versions that an interpreter has, without local labels such as +cpu."""
    command = [interpreter, "-c", _VERSIONS, *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        versions = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    return {name: str(version).partition("+")[0] for name, version in versions.items()}


def _versions_in(interpreter: str, names: Sequence[str]) -> Mapping[str, str]:
    return _versions_of(interpreter, tuple(names)) if names else {}


def _own_modules(folder: Path) -> frozenset[str]:
    packages = [path.parent.name for path in folder.glob("*/__init__.py")]
    return frozenset([*(path.stem for path in folder.glob("*.py")), *packages])


def _opens_files(file: Path, written: Sequence[str]) -> bool:
    """True if a file beside the script is named in it that is none of those that it writes."""
    text = file.read_text("utf-8", "replace")
    names = [path.name for path in file.absolute().parent.iterdir() if not path.name.startswith(".")]
    others = [
        name
        for name in names
        if name not in {file.name, REQUIREMENTS, SCHEMA_FILE, *written} and not name.endswith(".yaml")
    ]
    return any(f"{quote}{name}" in text for name in others for quote in ('"', "'"))


def _check_file(file: Path) -> None:
    if not file.is_file():
        raise RecipeError(f"there is no script {file}", "dlcloud init writes a recipe to start from")


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def print_recipes(*, name: str, output: str) -> None:
    """List the bundled recipes; with NAME, print that one, to copy and change."""
    if name:
        say(recipe_text(name)[0], end="")
        return
    texts = {name: recipe_text(name)[0] for name in recipe_names()}
    recipes = {name: (read_recipe(text, f"{name}.yaml"), text) for name, text in texts.items()}
    say(render(recipes_report(recipes), Format(output)))


def print_schema(*, document: str) -> None:
    """Print the JSON Schema of a recipe, for editors, or of a line of `dlcloud export FILE.jsonl`."""
    say(json.dumps(recipe_schema() if document == "recipe" else results_schema(), indent=2))


def print_skill() -> None:
    """Print what an agent needs to use dlcloud, as a skill: Markdown with a name and a description."""
    say(template("skill.md"), end="")
