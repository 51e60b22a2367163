"""Run the trials of an experiment on the instances of a cluster, each instance whenever it is free."""

import shlex
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from dlcloud.launch.container import send_command
from dlcloud.launch.remote_jobs import RemoteJobs, folder_of
from dlcloud.launch.setup import FOLDER
from dlcloud.model.cluster import Member
from dlcloud.model.errors import DlcloudError, InstanceError, PartialError
from dlcloud.model.events import Notice, Progress, Warned
from dlcloud.model.money import member_usd, total_usd
from dlcloud.model.remote import Connection
from dlcloud.recipe.recipe import Recipe
from dlcloud.recipe.workload import Setting
from dlcloud.results.experiment import ExperimentProgress, Trial, TrialState, TrialStatus, best_trial
from dlcloud.results.result import Run, RunState
from dlcloud.runs.experiment_records import ExperimentRecords
from dlcloud.runs.program import RunProgram
from dlcloud.runs.run import Runner
from dlcloud.runs.trial_queue import TrialQueue
from dlcloud.system.parallel import all_or_raise, fan_out

VALUES_FILE = "values.json"
"""In the folder in which a trial's command runs."""

LONGEST_NAME = 40
"""Of a setting, in characters."""

FIRST_FAILURES = 5
"""So many trials given up before any has a result are the program's fault: the others are not run."""

LaunchReplacement = Callable[[Collection[str]], Sequence[Member]]
"""Launches what a cluster lacks, beside the instances with these ids; returns the new ones."""


@dataclass(slots=True, kw_only=True)
class Place:
    """An instance of the experiment, or the one that has replaced it.

    Attributes:
        member: The instance; None once it is lost and nothing replaced it.
        python: The interpreter of its environment; empty until it is set up.
    """

    member: Member | None
    python: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True, kw_only=True)
class ExperimentRunner:
    """Runs trials until none is left.

    Args:
        runner: Sets instances up and sends them files.
        records: What is stored of the experiment.
        program_of: Returns the program of a trial.
        queue: The trials that are left.
        launch_replacement: Called when an instance is lost while trials are left.
        on_result: Called with each trial that has a result, as a search wants it.
    """

    runner: Runner
    records: ExperimentRecords
    program_of: Callable[[Recipe], RunProgram]
    queue: TrialQueue
    launch_replacement: LaunchReplacement
    on_result: Callable[[TrialStatus], None] = lambda _: None
    _jobs: RemoteJobs = field(init=False)
    _places: list[Place] = field(init=False, default_factory=list)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _replacing: threading.Lock = field(init=False, default_factory=threading.Lock)
    _statuses: dict[int, TrialStatus] = field(init=False, default_factory=dict)
    _seconds: list[float] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._jobs = RemoteJobs(managed=self.runner.managed, any_may_keep=True)

    def run(self, members: Sequence[Member], statuses: Sequence[TrialStatus]) -> list[TrialStatus]:
        """Run the trials that are left.

        Args:
            members: The instances.
            statuses: Of all trials, as they are stored.

        Returns:
            The status of each trial that has a result, or was given up.

        Raises:
            InstanceError: No instance is left, and trials are.
            PartialError: Trials were given up; the results of the others are stored.
        """
        self._statuses = {status.trial.number: status for status in statuses}
        self._places = [Place(member=member) for member in members]
        self.runner.expect(len(members))
        slots = [(place, slot) for place in self._places for slot in range(self._per_instance)]
        outcomes = fan_out(
            lambda slot: self._serve(*slot), slots, width=len(slots), on_interrupt=self.queue.stop
        )
        ended = [*self._statuses.values()]
        is_left = any(status.state in {TrialState.WAITING, TrialState.RUNNING} for status in ended)
        if self._is_hopeless():
            refuse_failed(ended)
        if is_left or all(outcome.error is not None for outcome in outcomes):
            all_or_raise(outcomes, name=_instance_id)
        refuse_failed(ended)
        return ended

    @property
    def _per_instance(self) -> int:
        return self.records.experiment.per_instance

    def _serve(self, place: Place, slot: int) -> None:
        """Run trials on an instance while there are any."""
        while (trial := self.queue.take()) is not None:
            try:
                member = place.member
                if member is None:
                    self.queue.put_back(trial)
                    return
                self._run_trial(place, member, slot, trial)
            except InstanceError as error:
                self.queue.put_back(trial)
                if not self._replace(place, member, error):
                    raise
            except BaseException:
                self.queue.put_back(trial)
                raise

    def _run_trial(self, place: Place, member: Member, slot: int, trial: Trial) -> None:
        connection = self._jobs.connect(member)
        python = self._prepare(connection, place, member)
        clock = self.runner.managed.clock
        begun = clock.monotonic()
        run = self._find_unfinished(member, trial) or self._new_run(member, trial)
        self._stage(connection, run, trial, python, slot)
        self._jobs.start(connection, run, self.runner.environment)
        self.runner.put_prices(run)
        ended = self._jobs.follow(member, run, lambda _: None)
        ended = self._jobs.fetch_results(member, ended, self.runner.recipe.keep.files)
        self._end(trial, ended, clock.monotonic() - begun)

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
        return f"{FOLDER}/experiments/{self.records.digest}"

    def _find_unfinished(self, member: Member, trial: Trial) -> Run | None:
        """Return the run of a trial that an earlier command left on an instance."""
        status = self._statuses.get(trial.number)
        run = status.run if status is not None and status.state is TrialState.RUNNING else None
        return run if run is not None and run.instance_id == member.instance.instance_id else None

    def _new_run(self, member: Member, trial: Trial) -> Run:
        runner = self.runner
        now = runner.managed.clock.now()
        run = self._jobs.new_run(member, runner.workload, image_id=runner.image_id, setup_at=now)
        run = replace(run, experiment=self.records.digest, trial=trial.number, trial_values=trial.key)
        runner.managed.store.runs.add(run)
        return run

    def _stage(self, connection: Connection, run: Run, trial: Trial, python: str, slot: int) -> None:
        """Make the folder of a run beside what its instance was sent once; a second time changes nothing."""
        folder = folder_of(run)
        text = shlex.quote(trial.key)
        connection.check(
            f"mkdir -p {folder} && ln -sfn ~/{self._base}/benchmarks {folder}/benchmarks && "
            f"{{ test -e {folder}/work || cp -a --reflink=auto {self._base}/work {folder}/work; }} && "
            f"printf %s {text} > {folder}/work/{VALUES_FILE}"
        )
        program = self.program_of(trial_recipe(self.runner.recipe, trial))
        if "--exact" not in program.arguments:
            program = replace(program, arguments=(*program.arguments, "--exact"))
        share = (slot, self._per_instance)
        command = program.command(python, host=run.instance_id, share=share)
        image, environment = self.runner.recipe.setup.image, self.runner.environment
        send_command(connection, folder, command, image=image, environment=environment)

    def _end(self, trial: Trial, run: Run, seconds: float) -> None:
        with self._lock:
            before = self._statuses.get(trial.number)
            failures = (before.failures if before is not None else 0) + (run.state is RunState.FAILED)
            if run.state is RunState.DONE:
                status = TrialStatus(
                    trial=trial,
                    state=TrialState.DONE,
                    run=run,
                    failures=failures,
                    value=self.records.value_of(run),
                )
            else:
                is_last = failures >= self.records.experiment.attempts
                state = TrialState.FAILED if is_last else TrialState.WAITING
                status = TrialStatus(trial=trial, state=state, run=run, failures=failures)
            self._statuses[trial.number] = status
            self._seconds.append(seconds)
        if status.state is TrialState.WAITING:
            self.queue.again(trial)
        else:
            self.on_result(status)
            if self._is_hopeless():
                self.queue.stop()
            self.queue.end(trial)
        self._emit(status, run)

    def _is_hopeless(self) -> bool:
        with self._lock:
            states = [status.state for status in self._statuses.values()]
        return states.count(TrialState.FAILED) >= FIRST_FAILURES and TrialState.DONE not in states

    def _emit(self, status: TrialStatus, run: Run) -> None:
        emit = self.runner.managed.emit
        if status.state is not TrialState.DONE:
            left = self.records.experiment.attempts - status.failures
            then = "it is given up" if status.state is TrialState.FAILED else f"{left} attempt(s) left"
            message = (
                f"trial {status.trial.number} ({status.trial}) failed, {then}: dlcloud logs {run.run_id}"
            )
            emit(Warned(message=message, instance_id=run.instance_id))
        progress = self.progress()
        ended = progress.done + progress.failed
        emit(
            Progress(
                message=progress.describe(), done=ended, total=progress.total, remaining_s=progress.left_s
            )
        )

    def progress(self) -> ExperimentProgress:
        """Return how far the experiment is."""
        with self._lock:
            statuses, seconds = [*self._statuses.values()], [*self._seconds]
        experiment, managed = self.records.experiment, self.runner.managed
        done = sum(status.state is TrialState.DONE for status in statuses)
        failed = sum(status.state is TrialState.FAILED for status in statuses)
        total = max(experiment.count, len(statuses))
        slots = self._per_instance * sum(place.member is not None for place in self._places)
        left_s = None
        if seconds and slots:
            left_s = (total - done - failed) * sum(seconds) / len(seconds) / slots
        now, cluster = managed.clock.now(), managed.cluster
        members = managed.store.clusters.members(cluster.cluster_id)
        return ExperimentProgress(
            total=total,
            done=done,
            running=self.queue.running,
            failed=failed,
            usd=total_usd(member_usd(member, cluster.disk_gib, now) for member in members),
            left_s=left_s,
            best=best_trial(statuses, maximize=experiment.goal == "maximize"),
        )

    def _replace(self, place: Place, lost: Member | None, error: DlcloudError) -> bool:
        """Put another instance in the place of one that is lost; False if there is none."""
        with self._replacing:
            if place.member is not lost:
                return place.member is not None
            place.member, place.python = None, ""
            name = lost.instance.instance_id if lost is not None else ""
            managed = self.runner.managed
            managed.emit(
                Warned(message=f"{error.message}; its trial goes first on the next", instance_id=name)
            )
            connected = [
                other.member.instance.instance_id for other in self._places if other.member is not None
            ]
            try:
                new = self.launch_replacement(connected)
            except DlcloudError as second:
                managed.emit(Warned(message=f"it is not replaced: {second.message}"))
                return False
            if not new:
                return False
            place.member = new[0]
            managed.emit(Notice(message="replaces it", instance_id=new[0].instance.instance_id))
            return True


def refuse_failed(statuses: Sequence[TrialStatus]) -> None:
    """Raise if trials were given up.

    Raises:
        InstanceError: All of them.
        PartialError: Some of them.
    """
    failed = [status for status in statuses if status.state is TrialState.FAILED]
    if not failed:
        return
    message = f"{len(failed)} of {len(statuses)} trials failed, the first with {failed[0].trial}"
    run_id = failed[0].run.run_id if failed[0].run is not None else ""
    hint = f"dlcloud logs {run_id} shows why; dlcloud up RECIPE --retry-failed runs them again"
    kind = InstanceError if len(failed) == len(statuses) else PartialError
    raise kind(message, hint)


def trial_recipe(recipe: Recipe, trial: Trial) -> Recipe:
    """Return the recipe of one trial: the command in one setting, the trial's values."""
    experiment = recipe.experiment
    has_arguments = experiment is None or experiment.arguments
    words = [word for name, value in trial.values.items() for word in (f"--{name}", value)]
    variables = {f"DLCLOUD_VALUE_{_variable(name)}": value for name, value in trial.values.items()}
    setting = Setting(
        name=trial_name(trial),
        environment={**variables, "DLCLOUD_VALUES": VALUES_FILE, "DLCLOUD_TRIAL": str(trial.number)},
        arguments=words if has_arguments else [],
    )
    repeats = experiment.repeats if experiment is not None else 1
    workload = recipe.workload.model_copy(update={"settings": [setting], "repeats": repeats})
    return recipe.model_copy(update={"workload": workload})


def trial_name(trial: Trial) -> str:
    """Return the name of a trial's setting in reports: its values, or its number where they are long."""
    text = str(trial)
    return text if len(text) <= LONGEST_NAME else f"trial {trial.number}"


def _variable(name: str) -> str:
    return name.upper().replace("-", "_")


def _instance_id(slot: tuple[Place, int]) -> str:
    member = slot[0].member
    return "its place" if member is None else member.instance.instance_id
