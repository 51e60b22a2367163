"""The program of a workload: a bundled benchmark, or the user's command under the same protocol.

`program_of` checks a recipe's workload and returns its program; `RunProgram.command` is the shell command
that runs it. `tiny_form` is what a rehearsal runs; `probe_machine` asks an instance for its hardware before
anything is installed.
"""

import io
import json
import shlex
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path

import dlcloud.benchmarks
from dlcloud.analysis.node_scaling import nodes_name
from dlcloud.benchmarks.catalog import BENCHMARKS
from dlcloud.benchmarks.command.shell import takes_arguments, with_arguments
from dlcloud.benchmarks.harness.benchmark import Benchmark, Parameters
from dlcloud.launch.remote_jobs import RECORDS
from dlcloud.launch.setup import FOLDER, OLDEST_PYTHON
from dlcloud.launch.user_files import check_files, with_projects
from dlcloud.model.errors import RecipeError, RemoteCommandError
from dlcloud.model.instance import hardware_of
from dlcloud.model.remote import Connection, SentFile
from dlcloud.model.untrusted import parse_json
from dlcloud.planning.fit import Machine, machine_of_probe
from dlcloud.recipe.recipe import Recipe
from dlcloud.recipe.requirements import pip_lines
from dlcloud.recipe.workload import Setting, Workload
from dlcloud.ssh.listing import list_entries

EARLIER = "earlier.jsonl"
"""Records of cases that an interrupted run had measured; they are not measured again."""

COMMAND = "command"
"""The bundled program that runs the user's command."""


WHOLE = (0, 1)
"""The only share of an instance that is not divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgram:
    """The program that runs on each instance.

    Attributes:
        name: Name of the benchmark.
        arguments: Arguments of its module.
        requirements: Pinned packages, a line each.
        package: The folder of the benchmarks, copied next to `files`.
        files: The user's file or folder.
    """

    name: str
    arguments: tuple[str, ...]
    requirements: str
    package: Path
    files: Path | None

    @property
    def is_resumable(self) -> bool:
        """True if it can resume an interrupted run: not with files of the user's, which may change."""
        return self.name != COMMAND and self.files is None

    @property
    def user_command(self) -> str:
        """The user's command."""
        return self.arguments[self.arguments.index("--run") + 1]

    @property
    def minimum_python(self) -> str:
        """The oldest Python that it runs on; empty for the user's command, to which the image's belongs."""
        return "" if self.name == COMMAND else OLDEST_PYTHON

    def on_nodes(self, line: str, nodes: int) -> "RunProgram":
        """Return the program for several nodes: `line` starts the user's command on all of them."""
        arguments = list(self.arguments)
        arguments[arguments.index("--run") + 1] = line
        case = arguments.index("--case") + 1
        arguments[case] = nodes_name(arguments[case], nodes)
        # The head itself runs the command in the work folder; of an option the last value counts.
        return replace(self, arguments=(*arguments, "--folder", "."))

    def in_setting(self, setting: Setting, *, repeats: int, turn: str) -> "RunProgram":
        """Return the program for one setting, which is run exactly so often.

        Args:
            setting: The only one.
            repeats: Runs of the command.
            turn: The file that it holds while it runs, relative to the folder of its run.
        """
        arguments = [word for word in self.arguments if word != "--exact"]
        arguments[arguments.index("--repeats") + 1] = str(repeats)
        arguments += ["--exact", "--turn", turn, "--settings", json.dumps([setting.model_dump()])]
        return replace(self, arguments=tuple(arguments))

    def command(self, python: str, *, host: str, resume: bool = False, share: tuple[int, int] = WHOLE) -> str:
        """Return the shell command that runs it, next to the user's files if there are any.

        Args:
            python: The environment's interpreter.
            host: Name of the instance in the records.
            resume: Whether EARLIER lies in the run's folder.
            share: Which of how many shares of the instance's cores and GPUs it has.
        """
        is_outside = self.name != COMMAND and self.files is not None
        up = "../" if is_outside else ""
        words = [python, "-m", BENCHMARKS[self.name].module, "--output", f"{up}{RECORDS}", "--host", host]
        if share != WHOLE:
            words = [python, "-m", "benchmarks.command.share", *map(str, share), *words]
        words += [*(["--resume", f"{up}{EARLIER}"] if resume else []), *self.arguments]
        return f"{'PYTHONPATH=.. ' if is_outside else 'cd .. && '}exec {shlex.join(words)}\n"


def program_of(recipe: Recipe, recipe_folder: Path) -> RunProgram:
    """Return the program of a recipe.

    Raises:
        RecipeError: An unknown benchmark, a bad parameter, a missing file, or an elastic training.
    """
    workload = recipe.workload
    if workload.elastic is not None:
        raise RecipeError(
            f"{recipe.name} is an elastic training, which is not measured",
            "dlcloud up RECIPE trains it; dlcloud training shows it",
        )
    name = workload.benchmark or COMMAND
    if name not in BENCHMARKS or (workload.benchmark == COMMAND):
        available = ", ".join(sorted(set(BENCHMARKS) - {COMMAND}))
        raise RecipeError(f"workload.benchmark: there is no benchmark {name!r}", f"available: {available}")
    _refuse_lost_arguments(recipe)
    command = with_projects(workload.command or "", recipe, recipe_folder)
    arguments = _command_arguments(recipe.name, workload, command) if command else _parameters(workload)
    _check_arguments(arguments, BENCHMARKS[name])
    files = _files(workload, recipe_folder)
    _check_files(workload, BENCHMARKS[name], files)
    return RunProgram(
        name=name,
        arguments=tuple(arguments),
        # The user's command has no other packages; of several lists, all or none may have hashes.
        requirements="\n".join(
            [
                BENCHMARKS[name].requirements_for(arguments).read_text(),
                *pip_lines(recipe.setup.requirements, with_hashes=name == COMMAND),
            ]
        ),
        package=Path(dlcloud.benchmarks.__file__).parent,
        files=files,
    )


def _check_arguments(arguments: list[str], benchmark: Benchmark) -> None:
    """Have the program's own parser check its arguments before anything is launched."""
    module = import_module(f"dlcloud.{benchmark.module}.settings")
    output = io.StringIO()
    try:
        with redirect_stderr(output), redirect_stdout(output):
            module.parse(arguments)
    except SystemExit as error:
        fault = output.getvalue().strip().rpartition("error: ")[2]
        hint = f"parameters of {benchmark.name}: {', '.join(benchmark.parameters)}"
        raise RecipeError(f"workload: {fault}", hint) from error


def _check_files(workload: Workload, benchmark: Benchmark, files: Path | None) -> None:
    """Check that the files which parameters name are among those sent to the instance."""
    for parameter in (option.name for option in benchmark.options if option.file):
        name = workload.parameters.get(parameter)
        if name is None:
            continue
        if files is None:
            raise RecipeError(
                f"workload.parameters.{parameter}: {name} is not sent to the instance",
                "workload.files names the file or folder to send; the parameter is relative to it",
            )
        folder = files if files.is_dir() else files.parent
        if not (folder / str(name)).exists():
            raise RecipeError(f"workload.parameters.{parameter}: there is no {name} in workload.files")


def _refuse_lost_arguments(recipe: Recipe) -> None:
    """Refuse arguments of settings, trials or the tiny form that no program of a script would get."""
    workload, experiment = recipe.workload, recipe.experiment
    added = {
        "workload.settings": any(setting.arguments for setting in workload.settings),
        "experiment": experiment is not None and bool(experiment.arguments),
        "workload.tiny": bool(workload.tiny),
    }
    key = next((key for key, is_used in added.items() if is_used), None)
    if key is not None and workload.command is not None and not takes_arguments(workload.command):
        raise RecipeError(
            f"workload.command: a script of several lines does not pass on the arguments of {key}",
            'write "$@" where they belong, as in python train.py "$@"'
            + ("; or read the variables of the values and set arguments: no" if key == "experiment" else ""),
        )


def _parameters(workload: Workload) -> list[str]:
    arguments: list[str] = []
    for key, value in workload.parameters.items():
        arguments += [f"--{key}", *([value] if isinstance(value, str) else value)]
    return arguments


def _command_arguments(name: str, workload: Workload, command: str) -> list[str]:
    """Return the arguments of the bundled program that runs the user's command in the run's work folder."""
    arguments = ["--run", command, "--folder", "work", "--unit", workload.unit, "--case", name]
    arguments += ["--repeats", str(workload.repeats), *(["--exact"] if workload.repeats == 1 else [])]
    if workload.throughput:
        arguments += ["--throughput", workload.throughput]
    if workload.json_field:
        arguments += ["--json-field", workload.json_field]
    if workload.facts:
        arguments += ["--facts", json.dumps(workload.facts)]
    arguments += [f"--{flag}" for flag in ("reported", "final") if getattr(workload, flag)]
    if workload.settings:
        arguments += ["--settings", json.dumps([setting.model_dump() for setting in workload.settings])]
    return arguments


def _files(workload: Workload, recipe_folder: Path) -> Path | None:
    if workload.files is None:
        return None
    path = recipe_folder / workload.files
    if not path.exists():
        raise RecipeError(
            f"workload.files: {path} does not exist", "the path is relative to the recipe's folder"
        )
    check_files(path)
    return path


@cache
def list_package(package: Path) -> tuple[SentFile, ...]:
    """Return the files of a program's package that are sent."""
    return tuple(
        replace(entry, size=entry.path.stat().st_size) for entry in list_entries(package, only=is_sent)
    )


def is_sent(path: Path) -> bool:
    """True if a file of a program is sent to the instance."""
    return "__pycache__" not in path.parts


PROBE = f"{FOLDER}/probe"


def probe_machine(connection: Connection, program: RunProgram, *, instance_type: str) -> Machine:
    """Return the machine that an instance reports.

    Args:
        connection: Connection to the instance.
        program: Any bundled program; they are sent together.
        instance_type: Its type, for messages.

    Raises:
        RemoteCommandError: Its report cannot be read.
    """
    instance_id = connection.endpoint.instance_id
    connection.send_tree(program.package, f"{PROBE}/benchmarks", only=is_sent)
    report = connection.check(f"cd {shlex.quote(PROBE)} && python3 -m benchmarks.harness.hardware")
    try:
        hardware = hardware_of({"hardware": parse_json(report.decode("utf-8", "replace"))})
    except (ValueError, AttributeError, TypeError) as error:
        raise RemoteCommandError(f"{instance_id}: bad report of its hardware: {report[-200:]!r}") from error
    return machine_of_probe(f"{instance_id} ({instance_type})", hardware)


PROGRAMS = frozenset({"engine"})
"""Parameters that choose which programs are measured."""


def has_tiny_form(workload: Workload) -> bool:
    """True if a benchmark, or the recipe of a command, says what makes it short."""
    benchmark = BENCHMARKS.get(workload.benchmark or "")
    return bool(workload.tiny if benchmark is None else benchmark.tiny)


def tiny_form(workload: Workload) -> Workload:
    """Return the tiny form of a workload.

    A benchmark takes the parameters of its own tiny form, but keeps the engines of the recipe; a command runs
    once instead of `repeats` times, with the arguments of `workload.tiny` appended.
    """
    benchmark = BENCHMARKS.get(workload.benchmark or "")
    if benchmark is not None:
        parameters = {**workload.parameters, **_tiny_parameters(benchmark, workload)}
        return workload.model_copy(update={"parameters": parameters})
    command = with_arguments(workload.command or "", workload.tiny)
    return workload.model_copy(update={"command": command, "repeats": 1, "tiny": []})


def describe_tiny(workload: Workload) -> str:
    """Return what the tiny form changes of a workload."""
    benchmark = BENCHMARKS.get(workload.benchmark or "")
    if benchmark is not None:
        values = {
            name: value if isinstance(value, str) else " ".join(value)
            for name, value in _tiny_parameters(benchmark, workload).items()
        }
        return f"its tiny form: {', '.join(f'{name} {value}' for name, value in values.items())}"
    arguments = f"with {shlex.join(workload.tiny)}" if workload.tiny else "as it is (no workload.tiny)"
    return f"its tiny form: the command {arguments}" + ("" if workload.elastic else ", once")


def _tiny_parameters(benchmark: Benchmark, workload: Workload) -> Parameters:
    """Return what the tiny form sets: the recipe's programs are what is rehearsed."""
    return {
        name: value
        for name, value in benchmark.tiny.items()
        if name not in PROGRAMS or name not in workload.parameters
    }
