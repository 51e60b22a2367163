"""Run the trials of an experiment on the instances of a cluster, each instance whenever it is free.

Each share of an instance is a `Lane`, on which one trial runs after the other, each lane in a thread of its
own:

1. `TrialQueue` hands out the next trial; a search is asked for one. Trials that an earlier command left
   running come first, on the instance where they run.
2. `TrialStarter` sets the instance up once (`Place`), and starts the trial in one exchange with it. If trials
   are short, the next one is handed over before the last has ended.
3. The runner follows the trial's records, and ends it if the search prunes it.
4. `Background` copies the results here while the next trial runs; `TrialTally` counts what has ended.

A trial that fails is tried again up to `attempts` times. If an instance is lost, its trials go first on its
replacement.

What must never happen: that a trial runs twice, that a result that is here is measured again, or that lanes
wait for a trial that is not running.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event

from dlcloud.analysis.result import Run, RunState
from dlcloud.analysis.trials import (
    ExperimentProgress,
    Trial,
    TrialState,
    TrialStatus,
    best_trial,
    intermediate_of,
    usd_at_end,
)
from dlcloud.launch.remote_jobs import RECORDS, RemoteJobs, folder_of
from dlcloud.launch.setup import FOLDER, command_files
from dlcloud.model.cluster import Member
from dlcloud.model.errors import DlcloudError, InstanceError, PartialError, UnreachableError
from dlcloud.model.events import Info, Progress, Warned
from dlcloud.model.money import member_usd, total_usd
from dlcloud.model.remote import Connection
from dlcloud.recipe.experiment import FLAGS, VALUES_FILE, trial_variables, trial_words
from dlcloud.recipe.recipe import Recipe
from dlcloud.recipe.workload import Setting
from dlcloud.runs.experiment_records import ExperimentRecords
from dlcloud.runs.run import Runner
from dlcloud.system.parallel import all_or_raise, fan_out

LONGEST_NAME = 40
"""Of a setting, in characters."""

Ask = Callable[[], Trial | None]
FIRST_FAILURES = 5
"""This many trials given up before any has a result are the program's fault: the others are not run."""

SHORT_S = 20.0
"""Of trials that take less on average, an instance has the next one before the last has ended."""

LEFT_AT_FIRST = 4
"""Before it is known how long trials take, that happens only if this many are left for every share."""

LaunchReplacement = Callable[[Collection[str]], Sequence[Member]]
"""Launches what a cluster lacks, next to the instances with these ids; returns the new ones."""


@dataclass(slots=True, kw_only=True)
class ExperimentRunner:
    """Runs trials until none is left.

    Args:
        runner: Sets instances up and sends them files.
        records: What is stored of the experiment.
        queue: The trials that are left.
        launch_replacement: Called when an instance is lost while trials are left.
        on_result: Called with each trial that has a result, as a search wants it.
        is_behind: Called with a trial's number, a step and its metric so far; True ends the trial.
    """

    runner: Runner
    records: ExperimentRecords
    queue: "TrialQueue"
    launch_replacement: LaunchReplacement
    on_result: Callable[[TrialStatus], None] = lambda _: None
    is_behind: Callable[[int, int, float], bool] = lambda *_: False
    _jobs: RemoteJobs = field(init=False)
    _starter: "TrialStarter" = field(init=False)
    _tally: "TrialTally" = field(init=False)
    _places: list["Place"] = field(init=False, default_factory=list)
    _replacing: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._jobs = RemoteJobs(managed=self.runner.managed, any_may_keep=True, trusts_records=True)
        self._starter = TrialStarter(
            runner=self.runner,
            jobs=self._jobs,
            digest=self.records.digest,
            per_instance=self.records.experiment.per_instance,
            repeats=self.records.experiment.repeats,
        )

    def run(self, members: Sequence[Member], statuses: Sequence[TrialStatus]) -> list[TrialStatus]:
        """Run the trials that are left.

        Args:
            members: The instances.
            statuses: Of all trials, as they are stored; those that run are followed where they run.

        Returns:
            The status of each trial that has a result, or was given up.

        Raises:
            InstanceError: No instance is left, and trials are.
            PartialError: Trials were given up; the results of the others are stored.
        """
        self._tally = TrialTally(statuses, maximize=self.records.experiment.goal == "maximize")
        self._places = [Place(member=member) for member in members]
        self._find_unfinished(statuses)
        self.runner.expect(len(members))
        lanes = [
            Lane(place=place, share=share)
            for place in self._places
            for share in range(self.records.experiment.per_instance)
        ]
        outcomes = fan_out(self._serve, lanes, width=None, on_interrupt=self.queue.stop)
        ended = self._tally.statuses()
        if self._is_hopeless():
            refuse_failed(ended)
        is_left = self._tally.count(TrialState.WAITING, TrialState.RUNNING)
        if is_left or all(outcome.error is not None for outcome in outcomes):
            all_or_raise(outcomes, name=_instance_id)
        refuse_failed(ended)
        return ended

    def _find_unfinished(self, statuses: Sequence[TrialStatus]) -> None:
        """Give each instance the trials that an earlier command has left running there."""
        places = {place.member.instance.instance_id: place for place in self._places if place.member}
        running = [
            (status.run, status.trial)
            for status in statuses
            if status.state is TrialState.RUNNING and status.run is not None
        ]
        for run, trial in sorted(running, key=lambda item: item[0].started_at):
            place = places[run.instance_id]
            if place.member is not None:
                place.unfinished.append(HandedTrial(trial=trial, run=run, member=place.member))

    def _serve(self, lane: "Lane") -> None:
        """Run trials on a share of an instance while there are any."""
        try:
            while self._run_next(lane):
                pass
            lane.background.wait()
        except BaseException:
            self._give_back(lane.handed)
            raise

    def _run_next(self, lane: "Lane") -> bool:
        """Run one trial, and hand the next one over meanwhile; False if there is none."""
        member = lane.place.member
        try:
            if not lane.handed and not self._take(lane):
                return False
            current = lane.handed[0]
            member = current.member
            self._take_early(lane)
            is_pruned = Event()
            handle = partial(self._prune, current, is_pruned)
            ended = self._jobs.follow(member, current.run, handle)
            if is_pruned.is_set() and ended.state is not RunState.DONE:
                ended = replace(ended, state=RunState.PRUNED)
            seconds = self.runner.managed.clock.monotonic() - current.begun_s
            lane.handed.remove(current)
            self._begin_waiting(lane)
            lane.background.begin(partial(self._finish, current, ended, seconds))
        except InstanceError as error:
            self._give_back(lane.handed)
            if not self._replace(lane.place, member, error):
                raise
        return True

    def _take(self, lane: "Lane") -> bool:
        """Hand the next trial over to the instance of a lane; False if none is left, or no instance."""
        place = lane.place
        if place.unfinished:
            self._hand_over(lane, place.unfinished.popleft())
            return True
        trial = self.queue.take()
        if trial is None:
            return False
        member = place.member
        if member is None:
            self.queue.put_back(trial)
            return False
        self._hand_over(lane, self._new(member, trial))
        return True

    def _take_early(self, lane: "Lane") -> None:
        """Hand a further trial over, if trials are short and enough are left for every other lane."""
        mean_s = self._tally.mean_s
        # A search chooses the next one from the result of this one.
        if len(lane.handed) > 1 or self.records.experiment.search is not None or lane.place.unfinished:
            return
        if mean_s is not None and mean_s > SHORT_S:
            return
        lanes = len(self._places) * self.records.experiment.per_instance
        trial = self.queue.take_early(leave=lanes * (1 if mean_s is not None else LEFT_AT_FIRST))
        if trial is not None:
            self._hand_over(lane, self._new(lane.handed[0].member, trial))

    def _new(self, member: Member, trial: Trial) -> "HandedTrial":
        try:
            return HandedTrial(trial=trial, run=self._starter.new_run(member, trial), member=member)
        except BaseException:
            self.queue.put_back(trial)
            raise

    def _hand_over(self, lane: "Lane", handed: "HandedTrial") -> None:
        lane.handed.append(handed)
        handed.begun_s = self.runner.managed.clock.monotonic()
        self._starter.start(lane.place, handed, lane.share)

    def _prune(
        self, handed: "HandedTrial", is_pruned: Event, records: Sequence[Mapping[str, object]]
    ) -> None:
        """Pass on what a trial says of its metric so far; end it if its search says so."""
        for value in filter(None, map(intermediate_of, records)):
            if not is_pruned.is_set() and self.is_behind(handed.trial.number, *value):
                is_pruned.set()
                self._jobs.stop(self._jobs.connect(handed.member), handed.run)

    def _begin_waiting(self, lane: "Lane") -> None:
        """Take note that the trial that waited for the one before it begins."""
        managed = self.runner.managed
        for handed in lane.handed:
            handed.begun_s = managed.clock.monotonic()
            handed.run = replace(handed.run, started_at=managed.clock.now())
            managed.store.runs.put_start(handed.run.run_id, handed.run.started_at)

    def _finish(self, handed: "HandedTrial", run: Run, seconds: float) -> None:
        """Bring the results of a run home and store how it ended."""
        try:
            self.runner.put_prices(run)
            ended = self._jobs.fetch_results(handed.member, run, self.runner.recipe.kept_files)
            self._end(handed.trial, ended, seconds)
        except BaseException:
            self.queue.stop()  # its trial counts as running: none waits for it
            raise

    def _give_back(self, handed: list["HandedTrial"]) -> None:
        """Put trials back to the front of the line, except those whose result is here already."""
        managed = self.runner.managed
        while handed:
            lost, now = handed.pop(), managed.clock.now()
            state = managed.store.runs.end_lost(lost.run.run_id, now)
            if state is RunState.DONE:
                run = replace(lost.run, state=state, exit_status=0, ended_at=now)
                self._end(lost.trial, run, managed.clock.monotonic() - lost.begun_s)
            else:
                self.queue.put_back(lost.trial)

    def _end(self, trial: Trial, run: Run, seconds: float) -> None:
        before = self._tally.find(trial.number)
        failures = (before.failures if before is not None else 0) + (run.state is RunState.FAILED)
        if run.state is RunState.DONE:
            state, value = TrialState.DONE, self.records.value_of(run)
        elif run.state is RunState.PRUNED:
            state, value = TrialState.PRUNED, None
        else:
            is_last = failures >= self.records.experiment.attempts
            state, value = TrialState.FAILED if is_last else TrialState.WAITING, None
        status = TrialStatus(trial=trial, state=state, run=run, failures=failures, value=value)
        self._tally.put(status, seconds)
        if state is TrialState.WAITING:
            self.queue.again(trial)
        else:
            self.on_result(status)
            if self._is_hopeless():
                self.queue.stop()
            self.queue.end(trial)
        self._emit(status, run)

    def _is_hopeless(self) -> bool:
        return self._tally.count(TrialState.FAILED) >= FIRST_FAILURES and not self._tally.count(
            TrialState.DONE
        )

    def _emit(self, status: TrialStatus, run: Run) -> None:
        emit = self.runner.managed.emit
        if status.state is TrialState.PRUNED:
            message = f"trial {status.trial.number} ({status.trial}) is pruned: it lags behind the others"
            emit(Info(message=message, instance_id=run.instance_id))
        elif status.state is not TrialState.DONE:
            left = self.records.experiment.attempts - status.failures
            then = "it is given up" if status.state is TrialState.FAILED else f"{left} attempt(s) left"
            message = (
                f"trial {status.trial.number} ({status.trial}) failed, {then}: dlcloud logs {run.run_id}"
            )
            emit(Warned(message=message, instance_id=run.instance_id))
        progress = self.progress()
        ended = progress.done + progress.failed + progress.pruned
        emit(
            Progress(
                message=progress.describe(),
                done=ended,
                total=progress.total,
                remaining_s=progress.left_s,
                rows=progress.rows(),
            )
        )

    def progress(self) -> ExperimentProgress:
        """Return how far the experiment is."""
        tally, managed = self._tally, self.runner.managed
        done, failed = tally.count(TrialState.DONE), tally.count(TrialState.FAILED)
        pruned = tally.count(TrialState.PRUNED)
        total = max(self.records.experiment.count, tally.known)
        lanes = self.records.experiment.per_instance * sum(place.member is not None for place in self._places)
        mean_s = tally.mean_s
        now, cluster = managed.clock.now(), managed.cluster
        members = managed.store.clusters.members(cluster.cluster_id)
        usd = total_usd(member_usd(member, cluster.disk_gib, now) for member in members)
        left_s = None
        if mean_s is not None and lanes:
            left_s = (total - done - failed - pruned) * mean_s / lanes
        return ExperimentProgress(
            total=total,
            done=done,
            running=min(self.queue.running, lanes),
            failed=failed,
            pruned=pruned,
            usd=usd,
            left_s=left_s,
            best=tally.best,
            end_usd=usd_at_end(members, usd, left_s, disk_gib=cluster.disk_gib, region=cluster.region),
        )

    def _replace(self, place: "Place", lost: Member | None, error: DlcloudError) -> bool:
        """Put another instance in the place of one that is lost; False if there is none."""
        with self._replacing:
            if place.member is not lost:
                return place.member is not None
            place.member, place.python = None, ""
            self._give_back([*place.unfinished])
            place.unfinished.clear()
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
            managed.emit(Info(message="replaces it", instance_id=new[0].instance.instance_id))
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


def _instance_id(lane: "Lane") -> str:
    member = lane.place.member
    return "its place" if member is None else member.instance.instance_id


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
        per_instance: Trials at the same time on an instance.
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
        """Start a run on one of the shares of its instance; one that was started before continues.

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
        """Return the folder of a run, next to what its instance was sent once."""
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
    is_search = experiment is not None and experiment.search is not None
    records = {"DLCLOUD_RECORDS": RECORDS} if is_search else {}
    return Setting(
        name=trial_name(trial),
        environment={**trial_variables(trial.values, trial.number), **records},
        arguments=trial_words(trial.values, FLAGS if experiment is None else experiment.arguments),
    )


def trial_recipe(recipe: Recipe, trial: Trial) -> Recipe:
    """Return the recipe of one trial: the command in one setting."""
    settings = [trial_setting(recipe, trial)]
    return recipe.model_copy(update={"workload": recipe.workload.model_copy(update={"settings": settings})})


def trial_name(trial: Trial) -> str:
    """Return the name of a trial's setting in reports: its values, or its number where they are long."""
    text = str(trial)
    return text if len(text) <= LONGEST_NAME else f"trial {trial.number}"


def no_more() -> None:
    """Return None: there is no further trial."""


class TrialQueue:
    """Safe to use from several threads.

    Args:
        trials: Those that wait, in order.
        ask: Returns a further trial when none waits, as a search does; None when there is no more.
        running: The numbers of those that run already.
    """

    def __init__(self, trials: Iterable[Trial], ask: Ask = no_more, *, running: Iterable[int] = ()) -> None:
        self._waiting = deque(trials)
        self._ask = ask
        self._running = set(running)
        self._changed = threading.Condition()
        self._is_stopped = False

    @property
    def running(self) -> int:
        return len(self._running)

    def take(self) -> Trial | None:
        """Return the next trial, which is running from now on; None once none is left.

        It waits while others run: one whose instance is lost comes back.
        """
        with self._changed:
            while not self._is_stopped:
                trial = self._waiting.popleft() if self._waiting else self._ask()
                if trial is not None:
                    self._running.add(trial.number)
                    return trial
                if not self._running:
                    return None
                self._changed.wait()
            return None

    def take_early(self, *, leave: int) -> Trial | None:
        """Return the next trial, which counts as running from now on, if more than `leave` of them wait."""
        with self._changed:
            if self._is_stopped or len(self._waiting) <= leave:
                return None
            trial = self._waiting.popleft()
            self._running.add(trial.number)
            return trial

    def end(self, trial: Trial) -> None:
        """Take note that a trial runs no more."""
        with self._changed:
            self._running.discard(trial.number)
            self._changed.notify_all()

    def put_back(self, trial: Trial) -> None:
        """Put a trial that was running at the front of the line."""
        with self._changed:
            self._running.discard(trial.number)
            self._waiting.appendleft(trial)
            self._changed.notify_all()

    def again(self, trial: Trial) -> None:
        """Put a trial that has failed at the end of the line."""
        with self._changed:
            self._running.discard(trial.number)
            self._waiting.append(trial)
            self._changed.notify_all()

    def stop(self) -> None:
        """Hand out no further trial."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()


class TrialTally:
    """What is known of each trial, and how many have ended; safe to use from several threads.

    Args:
        statuses: Of all trials that are known, as they are stored.
        maximize: Whether the largest metric is best.
    """

    def __init__(self, statuses: Iterable[TrialStatus], *, maximize: bool) -> None:
        self._by_number = {status.trial.number: status for status in statuses}
        self._counts = Counter(status.state for status in self._by_number.values())
        self._maximize = maximize
        self._best = best_trial(self._by_number.values(), maximize=maximize)
        self._seconds, self._ended = 0.0, 0
        self._lock = threading.Lock()

    def find(self, number: int) -> TrialStatus | None:
        with self._lock:
            return self._by_number.get(number)

    def put(self, status: TrialStatus, seconds: float) -> None:
        """Take note of a trial that has ended after some seconds."""
        with self._lock:
            before = self._by_number.get(status.trial.number)
            if before is not None:
                self._counts[before.state] -= 1
            self._by_number[status.trial.number] = status
            self._counts[status.state] += 1
            candidates = [self._best, status] if self._best is not None else [status]
            self._best = best_trial(candidates, maximize=self._maximize)
            self._seconds += seconds
            self._ended += 1

    def count(self, *states: TrialState) -> int:
        """Return how many trials are in one of these states."""
        with self._lock:
            return sum(self._counts[state] for state in states)

    @property
    def known(self) -> int:
        """How many trials are known."""
        return len(self._by_number)

    @property
    def best(self) -> TrialStatus | None:
        return self._best

    @property
    def mean_s(self) -> float | None:
        """The seconds of a trial, on average; None before the first."""
        with self._lock:
            return self._seconds / self._ended if self._ended else None

    def statuses(self) -> list[TrialStatus]:
        """Return the status of every trial, in order."""
        with self._lock:
            return [status for _, status in sorted(self._by_number.items())]


class Background:
    """Does one piece of work at a time; its error is raised where the next one is handed to it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Begin a piece of work once the one before has ended; raises the error of that one."""
        self.wait()

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 raised again by wait(), in the caller's thread
                self._error = error

        # A daemon: after a Ctrl-C the interpreter does not wait for an instance that hangs.
        self._thread = threading.Thread(target=run, name="dlcloud-results", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until it has ended; raises its error."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error


@dataclass(slots=True, kw_only=True)
class Lane:
    """A share of an instance, on which one trial runs after the other.

    Attributes:
        share: Its number.
        handed: Its trials, the one that runs first.
        background: Stores the results of the one before.
    """

    place: Place
    share: int
    handed: list[HandedTrial] = field(default_factory=list)
    background: Background = field(default_factory=Background)
