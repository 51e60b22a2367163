"""`dlcloud init`: a recipe to start from, or one for a program of the user's.

The program may be a Python script, a module of a package, a notebook, a shell script or a Makefile. `init`
reads what it imports and prints, follows the imports of the user's own modules, takes the packages from
requirements.txt or pins them as they are installed here, and, if it may, tries the program for a short time
in a copy of its folder. It never overwrites a file, and it asks no cloud.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO

from dlcloud.app.recipe_files import MAKEFILES, YAML, include_files, is_script, own_module, own_names
from dlcloud.app.terminal.screen import agrees, say
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import read_recipe, recipe_schema
from dlcloud.recipe.script import (
    COMMON,
    DISTRIBUTIONS,
    FRAMEWORKS,
    GPU_COMMAND,
    GPU_MODULES,
    Script,
    Throughput,
    distribution_of,
    read_script,
    throughput_of_output,
)
from dlcloud.recipe.script_recipe import SCHEMA_FILE, SCHEMA_LINE, ScriptRecipe
from dlcloud.recipe.sent_files import IGNORE_FILE, FileSet, format_size
from dlcloud.report.files import report_file
from dlcloud.report.table import envelope
from dlcloud.resources.texts import template
from dlcloud.ssh.listing import list_files

LISTS = ("requirements.txt", "pyproject.toml", "environment.yml", "environment.yaml")
"""Files that list packages, the first that is there counts."""
TRIAL_S = 10
"""Seconds that a trial lasts after its first line of output: the imports before it may take long."""
LONGEST_TRIAL_S = 60
ENOUGH = 3
"""Lines with a throughput after which a trial has shown what it is for."""
MOST_OUTPUT = 1 << 20
KNOWN = frozenset({*COMMON, *DISTRIBUTIONS, *FRAMEWORKS, *GPU_MODULES})
"""Modules whose packages are well known."""
_POLL_S = 0.05
_QUIET = {
    "PYTHONUNBUFFERED": "1",
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
}
"""Variables of a trial: trackers record nothing."""


def init(
    *, file: Path, module: str = "", arguments: Sequence[str] = (), trial: bool | None, output: str
) -> None:
    """Write a commented recipe to FILE (recipe.yaml), or one for FILE if it is a program.

    Args:
        file: The recipe to be written, or a script, notebook, Makefile or package.
        module: A Python module to be run by `python -m` instead of a file.
        arguments: Given to the program.
        trial: Run the program for a short time; None: ask on a terminal.
        output: The format of what is printed.
    """
    notes: list[str] = []
    program = program_of(file, module, arguments)
    if program is None:
        target, text = file, SCHEMA_LINE.format(SCHEMA_FILE) + template("recipe.yaml")
    else:
        target = program.target
        _refuse_existing(target)
        text, notes = recipe_of_program(program, trial_for(program, allowed=trial))
    _write_new(target, text)
    with report_file(target.with_name(SCHEMA_FILE)) as draft:
        draft.write_text(json.dumps(recipe_schema(), indent=1) + "\n", "utf-8")
    following = f"dlcloud plan {_as_path(str(target))}"
    if output == "json":
        say(envelope("init", {"result": {"file": str(target), "notes": notes, "next": following}}))
        return
    for note in notes:
        say(note, err=True)
    say(f"wrote {target}; next: {following}")


def _refuse_existing(file: Path) -> None:
    if file.exists():
        other = file.with_name(f"{file.stem}-2{file.suffix}")
        raise RecipeError(
            f"{file} exists and was not changed",
            f"mv {shlex.quote(str(file))} {shlex.quote(str(other))}, and run the same command again",
        )


def _write_new(file: Path, text: str) -> None:
    _refuse_existing(file)
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except OSError as error:
        raise RecipeError(f"cannot write {file}: {error.strerror}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program of the user's, as a recipe runs it.

    Attributes:
        command: Runs it, in `base`.
        base: The folder that it runs in, and that the recipe is written to.
        file: What the user named, relative to `base`.
        target: The recipe.
        sources: Its Python scripts, with their modules' names (empty: run as a file).
        needed: Distributions that the way to run it needs.
        commands: Set-up commands that it needs.
        shell: The text of a shell script or Makefile.
        text: The Python of a notebook; None for any other program.
    """

    command: str
    base: Path
    file: str
    target: Path
    sources: tuple[tuple[Path, str], ...] = ()
    needed: tuple[str, ...] = ()
    commands: str = ""
    shell: str = ""
    text: str | None = None


def program_of(file: Path, module: str = "", arguments: Sequence[str] = ()) -> Program | None:
    """Return the program that a file is; None if it is the name of a recipe to be written.

    Raises:
        RecipeError: It is missing, or no program.
    """
    words = "".join(f" {shlex.quote(word)}" for word in arguments)
    if module:
        source = own_module(module, [Path()]) or own_module(f"{module}.__main__", [Path()])
        if source is None:
            raise RecipeError(
                f"there is no module {module!r} in this folder", "python3 -m is run from the folder above it"
            )
        return _module(Path(), module.removesuffix(".__main__"), source, words)
    if file.is_dir():
        if (file / "__main__.py").is_file():
            return _module(file.parent, file.resolve().name, file / "__main__.py", words)
        names = " or ".join(shlex.quote(str(path)) for path in sorted(file.glob("*.py"))[:3])
        raise RecipeError(
            f"{file} is a folder", f"dlcloud init {names or 'FILE'} writes the recipe of a script"
        )
    if not is_script(file):
        if file.exists() and file.suffix not in YAML:
            raise RecipeError(
                f"{file} is no script that init knows", "name a .py, .sh or .ipynb file, or a Makefile"
            )
        return None
    if not file.is_file():
        raise RecipeError(f"there is no script {file}", "dlcloud init writes a recipe to start from")
    text = file.read_text("utf-8", "replace")
    if file.suffix == ".ipynb":
        return _notebook(file, text, words)
    if file.name in MAKEFILES:
        return _makefile(file, text, words)
    first = text.partition("\n")[0]
    if file.suffix == ".py" or (first.startswith("#!") and "python" in first):
        return _script(file, words)
    shell = "zsh" if first.endswith("zsh") else "bash"
    return _shell(file, text, f"{shell} {_as_path(file.name)}{words}", f"{file.stem}.yaml")


def _as_path(name: str) -> str:
    """Return a file's name as a word of a command that is no option: `./-dash.py`."""
    return shlex.quote(f"./{name}" if name.startswith("-") else name)


def _script(file: Path, words: str) -> Program:
    """Return a Python script: run as a file, or as a module if it imports its own package."""
    script = read_script(file.read_text("utf-8", "replace"), str(file))
    top = file.absolute().parent
    while (top / "__init__.py").is_file():
        top = top.parent
    package = file.absolute().relative_to(top).with_suffix("").parts
    if len(package) == 1 and script.is_relative:
        top, package = top.parent, (top.name, *package)
    if len(package) > 1 and (
        script.is_relative or package[0] in {m.partition(".")[0] for m in script.modules}
    ):
        base = top if file.is_absolute() else Path(os.path.relpath(top))
        return _module(base, ".".join(package), file, words)
    base = _folder_of_run(file, script)
    name = os.path.relpath(file.absolute(), base.absolute())
    return Program(
        command=f"python3 {_as_path(name)}{words}",
        base=base,
        file=name,
        target=base / f"{file.stem}.yaml",
        sources=((file, ""),),
    )


def _folder_of_run(file: Path, script: Script) -> Path:
    """Return the script's folder, or this one if it is above and has what the script imports or names."""
    here, folder = Path.cwd(), file.absolute().parent
    if here == folder or not folder.is_relative_to(here):
        return file.parent
    places = [folder, *(folder / path for path in script.paths)]
    missing = set(script.foreign(own_names(script.modules, places)))
    in_src = own_names(script.modules, [here, here / "src"]) & missing
    text = file.read_text("utf-8", "replace")
    return Path() if in_src or _named_files(here, text) - _named_files(folder, text) else file.parent


def _module(base: Path, module: str, file: Path, words: str) -> Program:
    stem = module.rpartition(".")[2]
    return Program(
        command=f"python3 -m {module}{words}",
        base=base,
        file=os.path.relpath(file.absolute(), base.absolute()),
        target=base / f"{stem}.yaml",
        sources=((file, module if file.name != "__main__.py" else f"{module}.__main__"),),
    )


def _notebook(file: Path, text: str, words: str) -> Program:
    """Return a notebook, whose cells IPython runs and whose output it prints.

    Raises:
        RecipeError: It is none.
    """
    try:
        cells = json.loads(text)["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError) as error:
        raise RecipeError(f"{file} is no notebook of Jupyter: {error}") from error
    lines = [line for source in sources if not source.startswith("%%") for line in source.splitlines()]
    python = [line for line in lines if not line.lstrip().startswith(("%", "!", "?"))]
    installs = [
        line.split("install", 1)[1] for line in lines if re.match(r"\s*[%!]\s*(?:pip|uv pip) install", line)
    ]
    packages = [
        word for line in installs for word in line.split() if re.fullmatch(r"[A-Za-z0-9._\[\]=-]+", word)
    ]
    return Program(
        command=f"ipython --colors=NoColor {_as_path(file.name)}{words}",
        base=file.parent,
        file=file.name,
        target=file.with_suffix(".yaml"),
        needed=("ipython", "nbformat", *(word for word in packages if not word.startswith("-"))),
        text="\n".join(python),
    )


_VARIABLE = re.compile(r"\$[({]([A-Za-z_]\w*)[)}]")
MOST_NESTED = 3
"""Variables of a Makefile in others."""


def _makefile(file: Path, text: str, words: str) -> Program:
    """Return a Makefile's target: the one that trains or runs, or the first."""
    targets = re.findall(r"^([A-Za-z0-9][\w.-]*)\s*:(?!=)", text, re.MULTILINE)
    target = next((name for name in ("train", "run", "bench", "all") if name in targets), "")
    chosen = f" {target}" if target and not words else ""
    install = "sudo apt-get update -q && sudo apt-get install -qy make"
    values = dict(re.findall(r"^([A-Za-z_]\w*)[ \t]*[:?]?=[ \t]*(.*?)[ \t]*$", text, re.MULTILINE))
    for _ in range(MOST_NESTED):
        text = _VARIABLE.sub(lambda match: values.get(match[1], match[0]), text)
    program = _shell(file, text, f"make -f {shlex.quote(file.name)}{chosen}{words}", "make.yaml")
    return replace(program, commands=f"command -v make || {{ {install}; }}")


_PYTHON_WORDS = re.compile(
    r"(?:python[0-9.]*|torchrun|accelerate\s+launch|deepspeed|ipython)\b"
    r"(?:[ \t]+(?!-m\b)-[^\s;&|]+(?:[ ][0-9][^\s;&|]*)?)*[ \t]+"
    r"(?:-m[ ]+(?P<module>[A-Za-z_][\w.]*)|(?P<script>'[^'\n]+\.py'|\"[^\"\n]+\.py\"|[\w./-]+\.py))"
)
"""What a shell script runs by Python or a launcher of Python, on lines that are joined."""


def _shell(file: Path, text: str, command: str, target: str) -> Program:
    """Return a shell script, with the Python scripts and modules that it runs."""
    sources: dict[Path, str] = {}
    for match in _PYTHON_WORDS.finditer(text.replace("\\\n", " ")):
        if match["module"]:
            module = match["module"]
            path = own_module(module, [file.parent]) or own_module(f"{module}.__main__", [file.parent])
        else:
            module, path = "", file.parent / match["script"].strip("'\"")
        if path is not None and path.is_file():
            sources[path] = module
    launchers = {"accelerate": "accelerate", "torchrun": "torch", "deepspeed": "deepspeed"}
    needed = [
        name
        for word, name in launchers.items()
        if re.search(rf"(?:^|[@=;&|])\s*{word}\s", text, re.MULTILINE)
    ]
    return Program(
        command=command,
        base=file.parent,
        file=file.name,
        target=file.with_name(target),
        sources=tuple(sources.items()),
        needed=tuple(needed),
        shell=text,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A program as its sources show it.

    Attributes:
        script: Of its scripts and all own modules that these import, in one.
        own: The names of the user's own modules.
        path: Folders below `base` that PYTHONPATH must have for them.
    """

    script: Script
    own: frozenset[str]
    path: tuple[str, ...] = ()


def read_program(program: Program) -> Reading:
    """Read a program's scripts, and the own modules that they import, however deep.

    Raises:
        RecipeError: A script is no Python.
    """
    base = program.base.absolute()
    sources = [(file.absolute(), module) for file, module in program.sources]
    places = [base] if program.text is not None or any(module for _, module in sources) else []
    places += [file.parent for file, _ in sources]
    added: list[Path] = []
    scripts: list[Script] = []

    def own_files(script: Script, folder: Path) -> Iterator[tuple[Path, str]]:
        """Yield the files of the user's own modules that a script imports, with their names."""
        places.extend(root / path for root in (base, folder) for path in script.paths)
        for name in sorted(script.modules):
            source = own_module(name, [*places, *added])
            if source is None and name.partition(".")[0] not in sys.stdlib_module_names:
                added.extend(place for place in (base, base / "src") if own_module(name, [place]))
                source = own_module(name, added)
            if source is not None:
                yield source, name

    if program.text is not None or not sources:
        scripts.append(read_script(program.text or "", program.file))
        sources += own_files(scripts[0], base)
    visited: set[Path] = set()
    for file, module in sources:  # grows
        if file in visited:
            continue
        visited.add(file)
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        try:
            scripts.append(read_script(file.read_text("utf-8", "replace"), str(file), package=package))
        except RecipeError:
            if not scripts:
                raise
            continue  # a module for another version of Python, or a template
        sources += own_files(scripts[-1], file.parent)
    merged = _merge(scripts)
    own = own_names(merged.modules, [*places, *added])
    if program.shell and not merged.gpu and (match := GPU_COMMAND.search(program.shell)):
        merged = replace(merged, gpu=match[0], uses_bf16="bf16" in program.shell.lower())
    return Reading(script=merged, own=own, path=tuple(os.path.relpath(place, base) for place in added))


def _merge(scripts: Sequence[Script]) -> Script:
    """Return the scripts of a program as one: the first says how it is called."""
    first = scripts[0]
    return replace(
        first,
        modules=frozenset().union(*(script.modules for script in scripts)),
        framework=next((script.framework for script in scripts if script.framework), ""),
        implied=tuple({name: None for script in scripts for name in script.implied}),
        throughput=next((script.throughput for script in scripts if script.throughput), None),
        bar=next((script.bar for script in scripts if script.bar), None),
        gpu=next((script.gpu for script in scripts if script.gpu), ""),
        uses_bf16=any(script.uses_bf16 for script in scripts),
        written=tuple({name: None for script in scripts for name in script.written}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTrial:
    """What a program printed while it was tried; `status` is None if it was ended.

    `is_enough`: it was ended as it had shown its throughput. `refused` says why it was not tried.
    """

    lines: tuple[str, ...] = ()
    status: int | None = None
    ran: bool = False
    is_enough: bool = False
    seconds: float = 0.0
    interpreter: str = ""
    refused: str = ""


def trial_for(program: Program, *, allowed: bool | None) -> ScriptTrial:
    """Try a program if that is allowed; on a terminal ask."""
    if allowed is None:
        question = f"Run {program.file} here for {TRIAL_S} s, in a copy of its folder, to see what it prints?"
        allowed = sys.stdin.isatty() and agrees(question)
    return run_trial(program) if allowed else ScriptTrial()


def run_trial(program: Program, *, seconds: float = TRIAL_S, most_s: float = LONGEST_TRIAL_S) -> ScriptTrial:
    """Run a program in a copy of its folder until it ends or the time is up, then end all that it started.

    The copy has what would be sent to an instance, and is removed: what the trial writes is gone with it.

    Args:
        program: What is tried.
        seconds: How long it may run after its first line of output.
        most_s: How long it may run in all.
    """
    reading = read_program(program)
    interpreter = python_for(program.base, reading.script.foreign(reading.own))
    files = list_files(program.base.absolute()) if sent_of(program, reading) == "." else None
    if files is not None:
        try:
            files.check()
        except RecipeError as error:
            return ScriptTrial(refused=f"it was not tried: {error.message}")
    say(f"trying {program.file} with {interpreter}, {most_s:g} s at most ...", err=True)
    with tempfile.TemporaryDirectory(prefix="dlcloud-init-", ignore_cleanup_errors=True) as place:
        folder, scratch = Path(place, "work"), Path(place, "tmp")
        scratch.mkdir()
        _copy(program, files, folder)
        path = f"{Path(interpreter).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        variables = {"PATH": path, "TMPDIR": str(scratch), "MLFLOW_TRACKING_URI": scratch.as_uri()}
        if reading.path:
            variables["PYTHONPATH"] = os.pathsep.join(reading.path)
        process = subprocess.Popen(
            ["bash", "-c", program.command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | _QUIET | variables,
            start_new_session=True,
        )
        assert process.stdout is not None  # noqa: S101  requested as a pipe
        output = _Output(process.stdout)
        began = time.monotonic()
        try:
            while process.poll() is None and not output.is_due(began, seconds, most_s):
                time.sleep(_POLL_S)
            status = process.poll()
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        lasted = time.monotonic() - began
        lines = tuple(output.text().splitlines())
    return ScriptTrial(
        lines=lines,
        status=status,
        ran=True,
        is_enough=output.is_enough,
        seconds=lasted,
        interpreter=interpreter,
    )


class _Output:
    """Collects what a trial prints."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._taken = bytearray()
        self._first: float | None = None
        self._read_up_to = 0
        self._seen = 0
        self._thread = threading.Thread(target=self._take, args=(stream,), name="trial", daemon=True)
        self._thread.start()

    def _take(self, stream: IO[bytes]) -> None:
        while piece := os.read(stream.fileno(), 1 << 16):
            self._first = self._first or time.monotonic()
            if len(self._taken) < MOST_OUTPUT:
                self._taken += piece

    @property
    def is_enough(self) -> bool:
        """True if some lines with a throughput were printed."""
        return self._seen >= ENOUGH

    def is_due(self, began: float, seconds: float, most_s: float) -> bool:
        """True if the trial has shown enough, or the time is up."""
        end = self._taken.rfind(b"\n") + 1
        lines = bytes(self._taken[self._read_up_to : end]).decode("utf-8", "replace").splitlines()
        self._read_up_to = max(self._read_up_to, end)
        self._seen += sum(throughput_of_output([line], bars=False) is not None for line in lines)
        now = time.monotonic()
        is_late = now - began >= most_s or (self._first is not None and now - self._first >= seconds)
        return self.is_enough or is_late

    def text(self) -> str:
        """Return what was printed; a process that left the trial's session may hold the stream open."""
        self._thread.join(timeout=1)
        return bytes(self._taken).decode("utf-8", "replace")


def _copy(program: Program, files: FileSet | None, folder: Path) -> None:
    folder.mkdir()
    if files is None:
        target = folder / program.file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(program.base / program.file, target)
        return
    for entry in files.entries:
        target = folder / entry.name
        if entry.path.is_symlink():
            target.symlink_to(entry.path.readlink())
        elif entry.path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(entry.path, target)


def recipe_of_program(program: Program, trial: ScriptTrial) -> tuple[str, list[str]]:
    """Return the recipe of a program, and what its user should know of it.

    Raises:
        RecipeError: A script of it is no Python.
    """
    reading = read_program(program)
    script = reading.script
    packages = packages_of(program, reading)
    name = re.sub(r"[^a-z0-9-]+", "-", program.target.stem.lower()).strip("-")[:31].strip("-") or "script"
    recipe = ScriptRecipe(
        name=name if name[0].isalpha() else f"run-{name}"[:31],
        script=script,
        command=program.command,
        files=sent_of(program, reading),
        requirements=packages.listed_in or sorted((*packages.pins, *packages.opened)),
        unpinned=packages.unpinned,
        throughput=_throughput(script, trial),
        commands=program.commands,
        path=reading.path,
        schema=SCHEMA_FILE,
        file=_as_path(str(program.target)),
    )
    text = recipe.text()
    read_recipe(replace(recipe, requirements=packages.pins).text(), str(program.target))
    return text, list(_notes(program, reading, recipe, packages, trial))


def _throughput(script: Script, trial: ScriptTrial) -> Throughput | None:
    """Return how the throughput is read: what was seen comes before what the script seems to print."""
    stated = throughput_of_output(trial.lines, bars=False)
    if stated is not None or (trial.ran and trial.status == 0):
        return stated or throughput_of_output(trial.lines)
    return script.throughput or throughput_of_output(trial.lines) or script.bar


def sent_of(program: Program, reading: Reading) -> str:
    """Return what is sent: the script alone if it uses nothing else of its folder."""
    is_alone = len(program.sources) == 1 and not program.shell and not program.sources[0][1]
    is_alone = is_alone or program.text is not None
    text = program.text or program.shell
    for file, _ in program.sources:
        text += file.read_text("utf-8", "replace")
    names = _named_files(program.base, text)
    others = names - {program.file, program.target.name, SCHEMA_FILE, *LISTS, *reading.script.written}
    alone = is_alone and not reading.own and not others and "/" not in program.file
    return program.file if alone else "."


def _named_files(folder: Path, text: str) -> set[str]:
    """Return the files and folders in a folder that a text names in quotes."""
    names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    return {name for name in names if re.search(rf"""["'](?:\./)?{re.escape(name)}(?:["'/])""", text)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """The packages of a program.

    Attributes:
        listed_in: The file that lists them; empty if there is none.
        pins: Pinned as they are installed here.
        opened: Not installed here, and well known: uv chooses their versions before the launch.
        unpinned: Not installed here, and not known.
        unlisted: Imported, and not in the file.
        elsewhere: Installed here from a folder or a repository, with its place: no index has them.
        fault: Why the file cannot be used as it is.
    """

    listed_in: str = ""
    pins: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    unpinned: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()
    elsewhere: tuple[tuple[str, str], ...] = ()
    fault: str = ""


def packages_of(program: Program, reading: Reading) -> Packages:
    """Return the packages of a program: those of its requirements file, or of its imports."""
    modules = reading.script.foreign(reading.own)
    for name in LISTS:
        file = program.base / name
        if file.is_file() and (name != "pyproject.toml" or "[project]" in file.read_text("utf-8", "replace")):
            return _listed(file, modules)
    installed = _versions_in(python_for(program.base, modules), (*modules, *program.needed))
    pins: dict[str, str] = {}
    opened: list[str] = []
    unpinned: list[str] = []
    elsewhere: list[tuple[str, str]] = []
    for module in dict.fromkeys((*modules, *program.needed)):
        distribution = installed.get(module)
        name = DISTRIBUTIONS.get(module, distribution[0] if distribution else module.replace("_", "-"))
        if "==" in module:
            pins[distribution_of(module)] = module
        elif distribution is None:
            (opened if module in KNOWN else unpinned).append(name)
        elif distribution[2]:
            elsewhere.append((name, distribution[2]))
        else:
            pins.setdefault(distribution_of(name), f"{name}=={distribution[1]}")
    return Packages(
        pins=tuple(sorted(pins.values())),
        opened=tuple(sorted(set(opened))),
        unpinned=tuple(sorted(set(unpinned))),
        elsewhere=tuple(elsewhere),
    )


def _listed(file: Path, modules: Sequence[str]) -> Packages:
    """Return the packages of a requirements file, as a recipe that names it reads them."""
    recipe = file.with_name("recipe.yaml")
    head = "name: x\ninstances: {types: t3.micro}\nworkload: {command: x}\n"
    text = f"{head}setup:\n  requirements: {file.name}\n"
    fault = ""
    try:
        read = include_files(text, recipe)
        read_recipe(read, file.name)
    except RecipeError as error:
        fault = error.message.replace(f"{recipe}:5: ", "")
        read = file.read_text("utf-8", "replace")
    named = {distribution_of(word) for word in re.findall(r"[A-Za-z0-9][A-Za-z0-9._-]*", read)}
    imported = [DISTRIBUTIONS.get(module, module.replace("_", "-")) for module in modules]
    unlisted = tuple(name for name in imported if not fault and distribution_of(name) not in named)
    return Packages(listed_in=file.name, unlisted=unlisted, fault=fault)


def _notes(
    program: Program, reading: Reading, recipe: ScriptRecipe, packages: Packages, trial: ScriptTrial
) -> Iterator[str]:
    script = reading.script
    yield f"framework: {script.framework or 'none seen'}; sent: {recipe.files}"
    if script.gpu:
        yield f"it uses a GPU ({script.gpu}): instances.types {recipe.types}"
    if packages.listed_in:
        yield f"packages: those of {packages.listed_in}"
    elif packages.pins:
        yield f"packages: {', '.join(packages.pins)}"
    if packages.fault:
        yield f"{packages.listed_in} cannot be used as it is: {packages.fault}"
    if packages.opened:
        yield f"not installed here, pinned by uv before the launch: {', '.join(packages.opened)}"
    if packages.unpinned:
        yield f"versions are missing of {', '.join(packages.unpinned)}: pin them in the recipe"
    for name, place in packages.elsewhere:
        yield f"{name} is installed here from {place}, not from an index: it is not in the recipe"
    if packages.unlisted:
        names = ", ".join(packages.unlisted)
        yield f"{packages.listed_in} does not list {names}: only a package that is listed can bring it"
    if script.required and program.command.endswith(program.file):
        yield f"it requires {', '.join(script.required)}: add them to workload.command"
    if recipe.files == ".":
        yield from _written_notes(program.base, script.written)
    yield from _trial_notes(trial, script)
    yield _reading_note(script, recipe, trial)


def _written_notes(base: Path, written: Sequence[str]) -> Iterator[str]:
    """Yield which results of earlier runs would be sent, and how to leave them out."""
    folders = [base / name for name in written if (base / name).exists()]
    if not folders:
        return
    sent = list_files(base.absolute()).entries
    for folder in folders:
        name = folder.relative_to(base).as_posix()
        size = sum(entry.size for entry in sent if entry.name == name or entry.name.startswith(f"{name}/"))
        if size:
            ignore = shlex.quote(str(base / IGNORE_FILE))
            way = f"printf '%s\\n' {shlex.quote(f'/{name}')} >> {ignore}"
            yield f"{name} ({format_size(size)}), which the program writes, is sent; to leave it out: {way}"


def _trial_notes(trial: ScriptTrial, script: Script) -> Iterator[str]:
    if trial.refused:
        yield trial.refused
    if not trial.ran or trial.status == 0 or trial.is_enough:
        return
    last = next((line.strip() for line in reversed(trial.lines) if line.strip()), "")
    if trial.status is None:
        ending = f"its last line: {last}" if last else "it had printed nothing by then"
        yield f"the trial was cut off after {trial.seconds:.0f} s; {ending}"
        return
    yield f"the trial, with {trial.interpreter}, ended with status {trial.status}: {last}"
    if script.gpu and shutil.which("nvidia-smi") is None:
        yield "this machine has no GPU, which may be the reason; a rehearsal here would end in the same way"


def _reading_note(script: Script, recipe: ScriptRecipe, trial: ScriptTrial) -> str:
    if script.is_elastic:
        return "it trains by dlcloud.trainer: an elastic training"
    if script.reports:
        return "it reports its throughput by dlcloud_report"
    if (throughput := recipe.throughput) is not None:
        way = f"field {throughput.json_field}" if throughput.json_field else throughput.pattern
        return f"throughput: {throughput.unit} a second, read by {way}"
    hint = "" if trial.ran else f"; --trial runs it for {TRIAL_S} s to see what it prints"
    return f"no throughput seen: whole runs are timed{hint}"


_FIND = """
import importlib.metadata as metadata, json, sys
found, of_modules = {}, None
for name in sys.argv[1:]:
    distribution = None
    try:
        distribution = metadata.distribution(name)
    except Exception:
        if of_modules is None:
            of_modules = getattr(metadata, "packages_distributions", dict)()
        for candidate in of_modules.get(name, ())[:1]:
            distribution = metadata.distribution(candidate)
    if distribution is not None:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        is_elsewhere = "dir_info" in origin or "vcs_info" in origin
        named = distribution.metadata["Name"]
        found[name] = [named, distribution.version, origin["url"] if is_elsewhere else ""]
print(json.dumps(found))
"""


def python_for(folder: Path, modules: Sequence[str]) -> str:
    """Return the interpreter that has most of some modules.

    In this order: the virtual environment in the folder, those on PATH, that of dlcloud itself, which is run
    without its environment being active, too.
    """
    places = [folder.absolute() / name / "bin" for name in (".venv", "venv")]
    places += [Path(name) for name in os.environ.get("PATH", "").split(os.pathsep) if name]
    candidates = [str(place / "python3") for place in places if os.access(place / "python3", os.X_OK)]
    pythons = list(dict.fromkeys([*candidates[:3], sys.executable]))
    if not modules:
        return pythons[0]
    complete = (path for path in pythons if len(_versions_in(path, modules)) == len(modules))
    return next(complete, "") or max(pythons, key=lambda path: len(_versions_in(path, modules)))


@cache
def _find_versions(interpreter: str, names: tuple[str, ...]) -> Mapping[str, tuple[str, str, str]]:
    command = [interpreter, "-c", _FIND, *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        packages: Mapping[str, Sequence[str]] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    return {name: (own, version.partition("+")[0], url) for name, (own, version, url) in packages.items()}


def _versions_in(interpreter: str, names: Sequence[str]) -> Mapping[str, tuple[str, str, str]]:
    """Return the distributions of modules: name, version without +cpu and the like, and origin."""
    return _find_versions(interpreter, tuple(names)) if names else {}
