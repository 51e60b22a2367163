"""Start the trials of an experiment on an instance, each in one exchange with it."""

import threading
from collections import deque
from dataclasses import dataclass, field, replace

from dlcloud.launch.remote_jobs import RECORDS, RemoteJobs, folder_of
from dlcloud.launch.setup import FOLDER, command_files
from dlcloud.model.cluster import Member
from dlcloud.model.errors import UnreachableError
from dlcloud.model.remote import Connection
from dlcloud.recipe.experiment import VALUES_FILE, trial_variables, trial_words
from dlcloud.recipe.recipe import Recipe
from dlcloud.recipe.workload import Setting
from dlcloud.results.result import Run
from dlcloud.results.trials import Trial
from dlcloud.runs.run import Runner

LONGEST_NAME = 40
"""Of a setting, in characters."""


@dataclass(slots=True, kw_only=True)
class HandedTrial:
    """A trial whose run has been handed to an instance.

    Attributes:
        begun_s: When it was handed over, or when the one before it ended; by the monotonic clock.
    """

    trial: Trial
    run: Run
    member: Member
    begun_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Place:
    """An instance of the experiment, or the one that has replaced it.

    Attributes:
        member: The instance; None once it is lost and nothing replaced it.
        unfinished: What an earlier command has left running on it.
        python: The interpreter of its environment; empty until it is set up.
    """

    member: Member | None
    unfinished: deque[HandedTrial] = field(default_factory=deque)
    python: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarter:
    """Sets instances up and starts trials there.

    Args:
        runner: Sets instances up, and has the recipe's program.
        jobs: Of the cluster.
        digest: Of the experiment.
        per_instance: Trials at once on an instance.
        repeats: Runs of the command in each trial.
    """

    runner: Runner
    jobs: RemoteJobs
    digest: str
    per_instance: int
    repeats: int

    def new_run(self, member: Member, trial: Trial) -> Run:
        """Store the run of a trial that is about to be handed over."""
        runner = self.runner
        now = runner.managed.clock.now()
        run = self.jobs.new_run(member, runner.workload, image_id=runner.image_id, setup_at=now)
        run = replace(run, experiment=self.digest, trial=trial.number, trial_values=trial.key)
        runner.managed.store.runs.add(run)
        return run

    def start(self, place: Place, handed: HandedTrial, share: int) -> None:
        """Start a run on one of the shares of its instance; one that was started before goes on.

        Raises:
            InstanceError: The instance is gone, or could not start it.
        """
        while True:
            try:
                connection = self.jobs.connect(handed.member)
                python = self._prepare(connection, place, handed.member)
                layout = self._layout(handed, python, share)
                self.jobs.start(connection, handed.run, self.runner.environment, layout)
            except UnreachableError:
                self.jobs.reconnect(handed.member, handed.run)
            else:
                return

    def _prepare(self, connection: Connection, place: Place, member: Member) -> str:
        """Set an instance up once, and send it what its trials have in common."""
        with place.lock:
            if not place.python:
                python = self.runner.prepare(connection, member)
                connection.check(f"mkdir -p {self._base}/work")
                self.runner.send_files(connection, self._base, member)
                place.python = python
            return place.python

    @property
    def _base(self) -> str:
        return f"{FOLDER}/experiments/{self.digest}"

    def _layout(self, handed: HandedTrial, python: str, share: int) -> dict[str, object]:
        """Return the folder of a run, beside what its instance was sent once."""
        runner, run = self.runner, handed.run
        # Trials of one share run one after the other, also where the next is there already.
        turn = f"../../experiments/{self.digest}/turn-{share}"
        setting = trial_setting(runner.recipe, handed.trial)
        program = runner.program.in_setting(setting, repeats=self.repeats, turn=turn)
        command = program.command(python, host=run.instance_id, share=(share, self.per_instance))
        image, environment = runner.recipe.setup.image, runner.environment
        files = command_files(folder_of(run), command, image=image, environment=environment)
        return {
            "work": f"{self._base}/work",
            "links": {"benchmarks": f"{self._base}/benchmarks"},
            "files": {f"work/{VALUES_FILE}": handed.trial.key, **files},
        }


def trial_setting(recipe: Recipe, trial: Trial) -> Setting:
    """Return the setting of the command that has a trial's values."""
    experiment = recipe.experiment
    has_arguments = experiment is None or experiment.arguments
    is_search = experiment is not None and experiment.search is not None
    records = {"DLCLOUD_RECORDS": RECORDS} if is_search else {}
    return Setting(
        name=trial_name(trial),
        environment={**trial_variables(trial.values, trial.number), **records},
        arguments=trial_words(trial.values) if has_arguments else [],
    )


def trial_recipe(recipe: Recipe, trial: Trial) -> Recipe:
    """Return the recipe of one trial: the command in one setting."""
    settings = [trial_setting(recipe, trial)]
    return recipe.model_copy(update={"workload": recipe.workload.model_copy(update={"settings": settings})})


def trial_name(trial: Trial) -> str:
    """Return the name of a trial's setting in reports: its values, or its number where they are long."""
    text = str(trial)
    return text if len(text) <= LONGEST_NAME else f"trial {trial.number}"
