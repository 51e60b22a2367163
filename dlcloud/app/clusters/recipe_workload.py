"""The workload of a recipe as a command runs it: its program, its environment, and their faults."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from dlcloud.app.clusters.program_environment import environment_of
from dlcloud.app.clusters.script_check import refuse_missing_script, warn_of_script
from dlcloud.app.context import Context
from dlcloud.app.recipe_files import file_of_recipe, read_recipe_file
from dlcloud.app.routes import refuse_missing_program
from dlcloud.elastic.agents import program_of as training_of
from dlcloud.elastic.controller import TrainingControl
from dlcloud.elastic.rehearsal import Rehearsal
from dlcloud.elastic.train import train
from dlcloud.launch.data_access import check_data
from dlcloud.launch.launcher import Launcher
from dlcloud.launch.user_files import check_files
from dlcloud.local.instance.isolation import Level
from dlcloud.model.cluster import Member
from dlcloud.planning.plan import Plan
from dlcloud.recipe.deadline import check_deadline
from dlcloud.recipe.job_environment import JobEnvironment
from dlcloud.recipe.overrides import Overrides
from dlcloud.recipe.recipe import Recipe, RecipeFile
from dlcloud.runs.program import RunProgram, describe_tiny, program_of, tiny_form

NOTE_WIDTH = 76


@dataclass
class RecipeWorkload:
    """The workload of the recipe in `file`; `changes` says what a command has changed of it."""

    context: Context
    file: RecipeFile
    changes: str = ""

    @property
    def recipe(self) -> Recipe:
        return self.file.recipe

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
        if self.recipe.track is not None:
            notes.append(f"recorded on MLflow at {self.recipe.track.mlflow} while results arrive")
        if self.recipe.workload.files is not None:
            notes.append(check_files(self.folder / self.recipe.workload.files).describe())
        if self.recipe.cloud == "local" and (loose := self._looseness()):
            notes.append(loose)
        yield from (textwrap.fill(note, NOTE_WIDTH, break_on_hyphens=False) for note in notes)

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

    def last_step(self) -> int:
        """Return the last step of the training if it is stored already; else 0.

        Raises:
            CloudError: Its bucket is missing, or may not be read.
        """
        recipe = self.recipe
        if recipe.checkpoints is None:
            return 0
        buckets = self.context.clouds.cloud(recipe.cloud, recipe.region).buckets
        return buckets.last_step(recipe.checkpoints, training_of(recipe, self.folder, run="").digest)

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
    context: Context, source: str | Recipe, overrides: Overrides | None = None, *, keep: bool = False
) -> RecipeWorkload:
    """Read, change and check a recipe, or one that was read; with `keep` its instances are kept.

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
    return RecipeWorkload(context=context, file=replace(file, recipe=recipe), changes=changes)
