"""The workload of a recipe as a command runs it: its program, its environment, and their faults."""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from dlcloud.analysis.resume import HOURS_BETWEEN, expected_hours
from dlcloud.app.choice import with_chosen_types
from dlcloud.app.context import Context
from dlcloud.app.packages import pin_packages
from dlcloud.app.recipe_files import MAKEFILES, file_of_recipe, own_names, read_recipe_file
from dlcloud.app.routes import refuse_missing_program
from dlcloud.elastic.agents import program_of as training_of
from dlcloud.elastic.controller import TrainingControl
from dlcloud.elastic.rehearsal import Rehearsal
from dlcloud.elastic.train import train
from dlcloud.launch.data_access import check_data
from dlcloud.launch.launcher import Launcher
from dlcloud.launch.secret_values import SecretLookup
from dlcloud.launch.setup import APT
from dlcloud.launch.user_files import check_files
from dlcloud.local.site_files import Level
from dlcloud.model.cluster import Member
from dlcloud.model.errors import RecipeError
from dlcloud.model.events import Event, Info, Warned
from dlcloud.model.instance import Market
from dlcloud.model.job_environment import JobEnvironment
from dlcloud.model.secret_source import SourceKind
from dlcloud.planning.plan import Plan
from dlcloud.recipe.data import split_uri
from dlcloud.recipe.deadline import check_deadline
from dlcloud.recipe.launchers import find_launcher, find_launcher_of_make, unclear_nodes
from dlcloud.recipe.overrides import Overrides
from dlcloud.recipe.recipe import Recipe, RecipeFile
from dlcloud.recipe.requirements import name_of, notes_of, pip_lines, projects_of
from dlcloud.recipe.script import REPORTER, Script, distribution_of, read_script
from dlcloud.recipe.sent_files import IGNORE_FILE
from dlcloud.recipe.workload import Setup, Workload, read_source
from dlcloud.resources.texts import recipe_data
from dlcloud.runs.checkpoints import describe_checkpoints
from dlcloud.runs.program import RunProgram, describe_tiny, program_of, tiny_form

MOST_PACKAGES = 40


@dataclass
class RecipeWorkload:
    """The workload of the recipe in `file`; `changes` says what a command has changed of it.

    `choice` says how its types were chosen, if it states requirements.
    """

    context: Context
    file: RecipeFile
    changes: str = ""
    choice: tuple[str, ...] = ()

    @property
    def recipe(self) -> Recipe:
        return self.file.recipe

    def place(self, region: str, second: str = "") -> None:
        """Let the cluster be launched in one of the recipe's regions; a recipe of one region stays there.

        Checkpoints are replicated to the `second` one, by default the first other one that the recipe names.
        """
        recipe = self.recipe
        if recipe.replicated:
            second = second or next(name for name in recipe.regions if name != region)
        if recipe.regions and (region, second or None) != (recipe.region, recipe.replica_region):
            recipe = recipe.in_region(region)
            if recipe.replicated:
                recipe = recipe.model_copy(update={"replica_region": second})
            self.file = replace(self.file, recipe=recipe, text=recipe.to_yaml())

    @property
    def folder(self) -> Path:
        """The folder that the recipe's paths are relative to."""
        return Path(self.file.path).parent

    @property
    def is_elastic(self) -> bool:
        return self.recipe.workload.elastic is not None

    @cached_property
    def program(self) -> RunProgram:
        """The program that the recipe measures."""
        return program_of(self.recipe, self.folder)

    @cached_property
    def environment(self) -> JobEnvironment:
        """The environment of the program, with the values of its secrets."""
        return environment_of(self.context, self.recipe, self.folder)

    def check(self) -> None:
        """Refuse a program at fault, or none for the way in, before anything is asked of a cloud.

        Raises:
            RecipeError: It cannot run.
        """
        refuse_missing_script(self.recipe.workload, self.folder)
        warn_of_script(self.recipe.workload, self.folder, self.context.emit, self.recipe.setup)
        refuse_missing_program(self.recipe.network)
        if self.recipe.data:
            check_data(self.recipe, self.folder)
        refuse_unclear_nodes(self.recipe, self.folder)
        if self.is_elastic:
            training_of(self.recipe, self.folder, run="")
        else:
            _ = self.program

    def check_deadline(self) -> None:
        """Refuse a deadline that a training that begins now cannot meet."""
        check_deadline(
            self.recipe.deadline,
            max_hours=self.recipe.budget.max_hours,
            now=self.context.clock.now(),
            text=self.file.written or self.file.text,
            file=self.file.path,
        )

    def notes(self) -> Iterator[str]:
        """Yield what the plan states of the command's options and of the files that are sent."""
        notes = [f"the recipe is changed by {self.changes}"] if self.changes else []
        notes += self.choice
        if self.recipe.is_one_job and self.recipe.workload.nodes is None and self.recipe.launcher:
            name = self.recipe.launcher.name
            notes.append(f"{name} starts one job over all instances; workload.nodes: each runs one on each")
        if self.recipe.track is not None:
            notes.append(f"recorded on MLflow at {self.recipe.track.mlflow} while results arrive")
        notes += notes_of(self.recipe.setup.requirements)
        if packages := [line for line in self.recipe.setup.requirements if name_of(line)]:
            shown = ", ".join(line.partition(" --hash")[0] for line in packages[:MOST_PACKAGES])
            more = len(packages) - MOST_PACKAGES
            notes.append(f"packages: {shown}{f' and {more} more' if more > 0 else ''}")
        notes += describe_checkpoints(self.context.paths, self.recipe, self.folder)
        if self.recipe.workload.files is not None:
            notes.append(check_files(self.folder / self.recipe.workload.files).describe())
        notes += self._after_interruption()
        if self.recipe.cloud == "local" and APT.search(self.recipe.setup.commands):
            notes.append("not rehearsed: apt of setup.commands; instances here have this machine's programs")
        if self.recipe.cloud == "local" and (loose := self._looseness()):
            notes.append(loose)
        yield from notes

    def _after_interruption(self) -> list[str]:
        """Return whether the command resumes, and what that saves, if it may run on spot."""
        workload, hours = self.recipe.workload, self.recipe.budget.max_hours
        if Market.SPOT not in self.recipe.instances.markets or workload.command is None or self.is_elastic:
            return []
        script = _script_of(workload, self.folder)
        title = script[1].resumes if script is not None else ""
        if workload.resume == "auto" and title:
            way = f"after an interruption it resumes, by {title}"
        elif workload.resume == "auto":
            way = "after an interruption it resumes if it trains by a framework that dlcloud knows"
        elif workload.checkpoints:
            way = "after an interruption it starts again with its checkpoints"
        else:
            way = "starts from the beginning after an interruption"
        resumed, restarted = expected_hours(hours)
        cost = (
            f"{hours:g} h of work at an interruption each {HOURS_BETWEEN:g} h (assumed): about "
            f"{resumed:.1f} h billed if it resumes, {restarted:.1f} h if it starts from the beginning"
        )
        return [f"{way}; {cost}"]

    def _looseness(self) -> str:
        """Return what this rehearsal cannot show, for want of isolation; empty if it can, or is unknown."""
        control = self.context.local_endpoint().control
        level = control.status().get("isolation", {}).get("level") if control.token else None
        if level in {None, Level.NAMESPACES}:
            return ""
        return (
            f"isolation of instances here: {level}; their python3 sees packages of this machine, so that a "
            "missing requirement does not fail here as it does on EC2"
        )

    def rehearsal(self) -> Rehearsal | None:
        """Return the incidents of the recipe, which the local EC2 carries out."""
        if not self.recipe.rehearsal:
            return None
        return Rehearsal(
            incidents=self.recipe.rehearsal,
            types=self.recipe.instances.types,
            faults=self.context.local_endpoint().control,
            emit=self.context.emit,
        )

    def make_buckets(self) -> None:
        """Make the buckets of a rehearsed bundled recipe, with the data that comes with it.

        Raises:
            CloudError: The local EC2 refuses it.
        """
        recipe = self.recipe
        remote = [item.source for item in recipe.data if item.is_remote]
        uris = [*remote, *([recipe.checkpoints] if recipe.checkpoints is not None else [])]
        if recipe.cloud != "local" or self.file.path or not uris:
            return
        buckets = self.context.clouds.cloud(recipe.cloud, recipe.region).buckets
        for bucket in dict.fromkeys(split_uri(uri)[0] for uri in uris):
            if buckets.make(bucket):
                self.context.emit(Info(message=f"made the bucket {bucket} of the rehearsal on the local EC2"))
        for uri in remote:
            missing = {} if buckets.names(uri) else recipe_data(split_uri(uri)[1])
            for name, content in missing.items():
                buckets.put(uri, name, content)

    def last_step(self) -> int:
        """Return the last step of the training if it is stored already; else 0.

        Raises:
            CloudError: Its bucket is missing, or may not be read.
        """
        recipe = self.recipe
        if recipe.checkpoints is None or not self.is_elastic:
            return 0
        buckets = self.context.clouds.cloud(recipe.cloud, recipe.region).buckets
        program = training_of(recipe, self.folder, run="").digest
        return max(buckets.last_step(uri, program) for uri in recipe.checkpoint_places.values())

    def train(self, launcher: Launcher, plan: Plan, members: list[Member], control: TrainingControl) -> None:
        """Train on a cluster that is up; see `dlcloud.elastic.train.train`."""
        train(
            launcher,
            self.recipe,
            members,
            recipe_folder=self.folder,
            plan=plan,
            environment=self.environment,
            control=control,
        )


def read_workload(
    context: Context,
    source: str | Recipe,
    overrides: Overrides | None = None,
    *,
    keep: bool = False,
    pin: bool = True,
) -> RecipeWorkload:
    """Read, change and check a recipe, or one that was read; with `keep` its instances are kept.

    With `pin`, types are chosen for its requirements, which asks EC2, and open versions of its packages are
    pinned, which asks a package index; see `with_chosen_types` and `pin_packages`.

    A recipe for AWS that is to be rehearsed is read in its tiny form; see `dlcloud.runs.program`.

    Raises:
        RecipeError: It is at fault.
    """
    file = read_recipe_file(source) if isinstance(source, str) else file_of_recipe(source)
    recipe, changes = file.recipe, str(overrides or "")
    if overrides is not None and changes:
        if overrides.cloud == "local" and recipe.cloud != "local":
            changes += f" ({describe_tiny(recipe.workload)})"
            recipe = recipe.model_copy(update={"workload": tiny_form(recipe.workload)})
        recipe, text = overrides.apply(recipe)
        file = replace(file, text=text)
    if keep:
        recipe = recipe.model_copy(update={"keep": recipe.keep.model_copy(update={"instances": True})})
    file = replace(file, recipe=recipe)
    choice: tuple[str, ...] = ()
    if pin:
        file, choice = with_chosen_types(context, file)
        file = pin_packages(file, paths=context.paths, emit=context.emit)
    return RecipeWorkload(context=context, file=file, changes=changes, choice=choice)


def environment_of(context: Context, recipe: Recipe, folder: Path) -> JobEnvironment:
    """Return the environment of a recipe's program; files of secrets are relative to `folder`.

    Raises:
        RecipeError, CloudError: Values are missing, or a file with one would be sent with the program.
    """
    lookup = SecretLookup(
        environ=os.environ,
        folder=folder,
        fetch=lambda source: context.clouds.secret_values(recipe.cloud, recipe.region).fetch(source),
    )
    _refuse_sent_secrets(recipe, folder)
    environment = lookup.environment_of(recipe.workload)
    for name in environment.unmasked:
        context.emit(Warned(message=f"secret {name} is too short to be masked where the program prints it"))
    return environment


def _refuse_sent_secrets(recipe: Recipe, folder: Path) -> None:
    """Refuse a secret's file among the files that are sent, where it would stay."""
    workload = recipe.workload
    sources = [read_source(text) for text in workload.secrets.values()]
    files = [
        folder / Path(source.location).expanduser() for source in sources if source.kind is SourceKind.FILE
    ]
    if not files or workload.files is None:
        return
    sent = {entry.path for entry in check_files(folder / workload.files).entries}
    for file in files:
        if file.resolve() in sent:
            raise RecipeError(
                f"{file} holds a secret and would be sent with workload.files",
                f"keep it elsewhere, or name it in {IGNORE_FILE}",
            )


_SCRIPT = re.compile(r"\bpython[0-9.]*\s+(?:-u\s+)?([\w./-]+\.py)\b")
_PLAIN = re.compile(
    r"(?:(?:python[0-9.]*|bash|sh)\s+(?:-[a-z]+\s+)?(?P<script>[\w./-]+\.(?:py|sh))|\./(?P<program>[\w./-]+))"
    r"(?:\s+[^;&|<>`$()]*)?"
)
"""A command that does nothing but run a script, so that nothing else can make that script."""
_MAKE = re.compile(r"make\b(?:\s+(?:-f|--file)[ =]?(?P<file>[\w./-]+))?(?P<targets>(?:\s+[\w./=-]+)*)")
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


def refuse_unclear_nodes(recipe: Recipe, recipe_folder: Path) -> None:
    """Refuse a launcher of distributed programs that may be meant for each instance, or for all of them.

    Raises:
        RecipeError: The recipe has to say it.
    """
    workload, launcher, count = recipe.workload, recipe.launcher, recipe.instances.maximum
    if workload.nodes is not None or workload.elastic is not None or recipe.experiment is not None:
        return
    if launcher is not None and launcher.over_all is None:
        raise unclear_nodes(launcher.name, count)
    match = _PLAIN.fullmatch((workload.command or "").strip())
    if count == 1 or launcher is not None or workload.files is None:
        return
    if made := _MAKE.fullmatch((workload.command or "").strip()):
        files = recipe_folder / workload.files
        places = [files / name for name in ([made["file"]] if made["file"] else sorted(MAKEFILES))]
        makefile = next((place for place in places if place.is_file()), files)
        if makefile.is_file():
            targets = [word for word in made["targets"].split() if "=" not in word and word[0] != "-"]
            inside = find_launcher_of_make(makefile.read_text("utf-8", "replace"), targets)
            if inside is not None and inside.over_all is not False:
                raise unclear_nodes(inside.name, count)
    if match is None:
        return
    files, name = recipe_folder / workload.files, match["script"] or match["program"]
    script = files / name if files.is_dir() else files
    if script.suffix != ".py" and script.is_file():
        inside = find_launcher(script.read_text("utf-8", "replace"))
        if inside is not None and inside.over_all is not False:
            raise unclear_nodes(inside.name, count)


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
        sources = [recipe_folder / name for name in projects_of(setup.requirements)]
        modules = {
            path.stem for source in sources for place in (source, source / "src") for path in place.glob("*")
        }
        _warn_of_packages(name, facts.packages(own | modules), setup, emit)
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
    listed = {distribution_of(name_of(requirement)) for requirement in pip_lines(setup.requirements)} - {""}
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
    text = "\n".join(module.read_text("utf-8", "replace") for module in {path, *modules})
    try:
        script = read_script(text, path.name)
        places = [folder / name for folder in {files, path.parent} for name in ("", "src", *script.paths)]
        return path.name, script, own_names(script.modules, places) if files.is_dir() else frozenset()
    except RecipeError:
        return None  # a future import in the middle, or another version of Python
