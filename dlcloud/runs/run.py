"""Run a benchmark, or the user's command, on instances: set up, send, run detached, store its results.

For each instance in parallel, `Runner.run_all` sets the instance up, sends the program and the user's files,
stores the run, starts it detached, and follows its records to the end; then it copies the results here. A run
that an earlier `up` left behind is followed, not repeated. Cases that an interrupted run had measured are
sent along, and not measured again. `LiveOutput` joins its progress with the last line that the program
printed.
"""

import json
import logging
import re
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from dlcloud.analysis.result import Run, RunState
from dlcloud.analysis.resume import FinishedCase, finished_cases, resumable_runs
from dlcloud.benchmarks.harness.records import FINISH
from dlcloud.launch.data_access import Storage, peer_of
from dlcloud.launch.managed import ManagedCluster
from dlcloud.launch.preflight import PriceLookup
from dlcloud.launch.remote_jobs import HARNESS_PROGRESS, INHERITED, RemoteJobs, folder_of
from dlcloud.launch.setup import EnvironmentPeer, prepare, requirements_on, send_command
from dlcloud.launch.user_files import Sharing, check_files, send_files
from dlcloud.model.cluster import Member
from dlcloud.model.errors import DlcloudError, InstanceError, LostInstanceError, RemoteCommandError
from dlcloud.model.events import Emit, Info, Progress, Warned, stage
from dlcloud.model.job_environment import JobEnvironment
from dlcloud.model.remote import Connection
from dlcloud.model.untrusted import number_or_none
from dlcloud.recipe.kept_results import NOTHING
from dlcloud.recipe.recipe import Recipe
from dlcloud.recipe.sent_files import FileSet
from dlcloud.runs.checkpoints import REBALANCE, REPLACED, RESIZE, Checkpoints, Copying, first_folder
from dlcloud.runs.program import EARLIER, RunProgram, is_sent, list_package
from dlcloud.runs.race import RaceWatch
from dlcloud.runs.replacement import Interruption, Replacements, Restart
from dlcloud.runs.resizing import POLL_S, Resizing
from dlcloud.system.parallel import CallOutcome, all_or_raise, fan_out


class Runner:
    """Runs the program of one recipe on the instances of one cluster.

    Args:
        managed: The cluster.
        recipe: The recipe, with the set-up and the files to fetch.
        program: The program to run.
        image_id: The image that the instances booted, for the record.
        fresh: Measure everything, even if an interrupted run had measured it already.
        environment: Of the program.
        recipe_folder: The paths of the recipe's data are relative to it.
        is_live: Show the last line that a command of the user's printed while it runs.
        watch: Of a race: takes the records, and ends the program early.
        replacements: Replaces instances that are reclaimed or lost; None: their runs fail.
        keeps_checkpoints: Keep those that the recipe names, and start from them.
    """

    def __init__(
        self,
        *,
        managed: ManagedCluster,
        recipe: Recipe,
        program: RunProgram,
        image_id: str,
        fresh: bool = False,
        environment: JobEnvironment = INHERITED,
        recipe_folder: Path = Path(),
        is_live: bool = False,
        watch: RaceWatch | None = None,
        replacements: Replacements | None = None,
        keeps_checkpoints: bool = False,
    ) -> None:
        self.managed, self.recipe, self.program, self.environment = managed, recipe, program, environment
        self.image_id, self.fresh, self.is_live, self.watch = image_id, fresh, is_live, watch
        self.replacements = replacements
        self._prices = PriceLookup(managed.cloud.prices)
        self._jobs = RemoteJobs(managed=managed)
        self._sharing = Sharing(allow=self.allow_peers)
        self._storage = Storage(managed=managed, recipe=recipe, recipe_folder=recipe_folder)
        self.checkpoints: Checkpoints | None = None
        if keeps_checkpoints and recipe.workload.checkpoints:
            self.checkpoints = Checkpoints(
                managed=managed,
                recipe=recipe,
                recipe_folder=recipe_folder,
                storage=self._storage,
                fresh=fresh,
            )
        self.resizing: Resizing | None = None
        self._at_work: set[str] = set()  # the ids of instances whose runs are not stored as ended
        # Instances share what is read once for all of them; each has a thread.
        self._files: FileSet | None = None
        self._files_lock = threading.Lock()
        self._earlier: dict[str, list[FinishedCase]] = {}
        self._earlier_lock = threading.Lock()
        self._noticed_at: dict[str, float] = {}
        # By the ids of replacements, until the program starts there, and then by those of runs.
        self._restarts: dict[str, tuple[Restart, Interruption | None]] = {}
        self._started: dict[str, tuple[Restart, Interruption | None]] = {}

    @property
    def workload(self) -> str:
        return self.recipe.workload.benchmark or self.recipe.name

    def run_all(self, members: Sequence[Member]) -> list[Run]:
        """Run on all instances in parallel; a run that an earlier `up` left behind is followed, not repeated.

        Raises:
            InstanceError: Every run failed.
            PartialError: Some runs failed; the results of the others are stored.
        """
        self.expect(len(members))
        self.follow_resizes(members)
        outcomes = self._run_each(members)
        left = [one for one in outcomes if one.error is None and one.value is None]
        runs = all_or_raise(
            [one for one in outcomes if one not in left], name=lambda member: member.instance.instance_id
        )
        return [run for run in runs if run is not None]

    def follow_resizes(self, members: Sequence[Member]) -> None:
        """From now on let `dlcloud resize` change these instances, if their checkpoints are kept."""
        if self.checkpoints is not None and self.replacements is not None:
            self.resizing = Resizing(
                managed=self.managed, recipe=self.recipe, replacements=self.replacements, members=members
            )

    def _run_each(self, members: Sequence[Member]) -> list[CallOutcome[Member, Run | None]]:
        """Run on instances in parallel, and on those that a resize adds; None for those that it ends."""
        running = {member.instance.instance_id for member in members}
        more: list[CallOutcome[Member, Run | None]] = []
        ended = threading.Event()

        def work(member: Member | None) -> Run | None:
            if member is None:
                more.extend(self._resize_until(ended))
                return None
            try:
                return self._run(member)
            finally:
                running.remove(member.instance.instance_id)
                if not running:
                    ended.set()

        watch = [] if self.resizing is None else [None]
        outcomes = fan_out(work, [*members, *watch], width=None, on_interrupt=self.stop_programs)
        pairs = zip(members, outcomes, strict=False)
        more += [CallOutcome(item=member, value=one.value, error=one.error) for member, one in pairs]
        return more

    def _resize_until(self, ended: threading.Event) -> list[CallOutcome[Member, Run | None]]:
        """Change the number of instances as `dlcloud resize` asks; return what became of those it adds."""
        resizing, checkpoints = self.resizing, self.checkpoints
        assert resizing is not None  # noqa: S101 - asked by the caller
        assert checkpoints is not None  # noqa: S101 - as there
        outcomes = []
        while not ended.wait(POLL_S):
            if (size := resizing.requested()) is None:
                continue
            if size > len(resizing.members):
                if new := resizing.grow(size):
                    outcomes += self._run_each(new)
                continue
            leaving = resizing.choose_leaving(size)
            stopped = checkpoints.stop(leaving, RESIZE)
            while stopped & self._at_work:
                ended.wait(POLL_S / 5)
            for member in leaving:
                checkpoints.release(member.instance.instance_id)
            resizing.end(leaving)
        return outcomes

    def expect(self, count: int) -> None:
        """State how many instances will run the program; they may reach each other where they share data."""
        if count > 1 and any(not item.is_remote for item in self.recipe.data):
            self.allow_peers()
        self._sharing.expect(count)

    def allow_peers(self) -> None:
        """Let the instances reach each other."""
        cloud, cluster = self.managed.cloud, self.managed.cluster
        cloud.network.allow_peers(cloud.network.find_group(cluster.cluster_id))

    def _run(self, member: Member) -> Run | None:
        """Run on an instance, or on those that replace it one after the other; None if a resize ends it."""
        retries = self.recipe.workload.retries
        while True:
            instance_id = member.instance.instance_id
            self._at_work.add(instance_id)
            try:
                return self._run_once(member)
            except DlcloudError as error:
                if self.resizing is not None and instance_id in self.resizing.left_ids:
                    return None
                if self.is_lost(member, error):
                    if self.replacements is None:
                        raise
                    member = self.replace(member, error)
                elif self.steps_back(member, error):
                    pass
                elif isinstance(error, RemoteCommandError) and retries:
                    retries -= 1
                    self.emit_retry(error, retries)
                else:
                    raise
            finally:
                self._at_work.discard(instance_id)

    def stop_programs(self) -> None:
        """At Ctrl-C: let programs whose checkpoints are kept stop by themselves, and copy what they saved."""
        if self.checkpoints is not None:
            self.checkpoints.stop_all("Ctrl-C")

    def steps_back(self, member: Member, error: DlcloudError) -> bool:
        """True if a program failed on checkpoints that may be cut off: it runs again on those before."""
        if self.checkpoints is None or not isinstance(error, RemoteCommandError):
            return False
        text = self.checkpoints.step_back(member)
        if text:
            cause = error.message.partition("\n")[0].removesuffix(":")
            self.managed.emit(Warned(message=f"{cause}; {text}", instance_id=member.instance.instance_id))
        return bool(text)

    def replace(self, member: Member, error: DlcloudError) -> Member:
        """Return the instance that takes the place of one that is gone, with its checkpoints.

        Raises:
            DlcloudError: `error`, if the cluster is being terminated: nothing was interrupted then.
        """
        assert self.replacements is not None  # noqa: S101 - asked by the callers
        if self.managed.is_ending():
            raise error
        clock, noticed_at = self.managed.clock, self._noticed_at.get(member.instance.instance_id)
        stopped_at = clock.monotonic()
        interruption = self._note_lost_work(member)
        new = self.replacements.replace(member, error)
        new_id = new.instance.instance_id
        restart = Restart(noticed_at=noticed_at, stopped_at=stopped_at, replaced_at=clock.monotonic())
        restart.seconds["boot"] = self.replacements.boot_s.get(new_id, 0.0)
        self._restarts[new_id] = restart, interruption
        if self.resizing is not None:
            self.resizing.replace(member, new)
        if self.checkpoints is not None:
            self.checkpoints.move(member.instance.instance_id, new.instance.instance_id)
            if self.checkpoints.noticed.get(member.instance.instance_id) == REBALANCE:
                self.managed.shrink([member])  # EC2 may never end it
        return new

    def _note_lost_work(self, member: Member) -> Interruption | None:
        """Store and emit how much work was lost with an instance: after its newest checkpoint, or start."""
        managed, instance_id = self.managed, member.instance.instance_id
        stored = managed.store.runs.of_cluster(managed.cluster_id)
        runs = [run for run in stored if run.instance_id == instance_id]
        if not runs:
            return None  # it was lost before its program started
        run, now = runs[-1], managed.clock.now()
        ends = [one.ended_at for one in stored if one.run_id == run.head_run_id] or [run.ended_at]
        lost_s = max(0.0, ((ends[0] or now) - run.started_at).total_seconds())
        if self.checkpoints is not None:
            lost_s = self.checkpoints.lost_s(instance_id, lost_s)
        hourly_usd = None if member.hourly_usd is None else member.hourly_usd * max(1, run.nodes)
        one = Interruption(
            managed.store.clusters,
            managed.cluster_id,
            instance_id,
            lost_s=lost_s,
            hourly_usd=hourly_usd,
            now=now,
        )
        managed.emit(Info(message=one.summary.describe(), instance_id=instance_id))
        return one

    def emit_retry(self, error: DlcloudError, left: int) -> None:
        """Emit that a program which failed by itself runs again (`workload.retries`)."""
        cause = error.message.partition("\n")[0].removesuffix(":")
        self.managed.emit(Warned(message=f"{cause}; it runs again (retries left: {left})"))

    def is_lost(self, member: Member, error: DlcloudError) -> bool:
        """True if an instance is gone, which is why something failed there."""
        return isinstance(error, LostInstanceError) or not self._jobs.is_alive(member.instance.instance_id)

    def _run_once(self, member: Member) -> Run:
        jobs = self._jobs
        connection = jobs.connect(member)
        run = jobs.find_unfinished(member, self.workload) or self._send(connection, member)
        self.start(connection, run)
        return self.follow(member, run)

    def start(self, connection: Connection, run: Run) -> None:
        """Start the program of a run; after an interruption, emit how long that took, by parts."""
        self._jobs.start(connection, run, self.environment)
        if (restarted := self._restarts.pop(run.instance_id, None)) is not None:
            self._started[run.head_run_id or run.run_id] = restarted
            message = restarted[0].describe_start(self.managed.clock.monotonic())
            self._note_restart(run, message, *restarted)

    def _note_restart(
        self, run: Run, message: str, restart: Restart, interruption: Interruption | None
    ) -> None:
        self.managed.emit(Info(message=message, instance_id=run.instance_id))
        if interruption is not None:
            interruption.note_restart(restart)

    @contextmanager
    def _part_of_restart(self, part: str, instance_id: str) -> Iterator[None]:
        """Count the time of the block as one of `PARTS`, if a replacement is set up in it."""
        clock = self.managed.clock
        began = clock.monotonic()
        yield
        if (restarted := self._restarts.get(instance_id)) is not None:
            seconds = restarted[0].seconds
            seconds[part] = seconds.get(part, 0.0) + clock.monotonic() - began

    def _note_output(self, run: Run, kind: str) -> None:
        """After an interruption, emit when the first output of the program came, or the first throughput."""
        if (restarted := self._started.get(run.run_id)) is not None:
            message = restarted[0].describe_output(kind, self.managed.clock.monotonic())
            self._note_restart(run, message, *restarted)

    def follow(self, member: Member, run: Run) -> Run:
        """Follow a run that was started to its end, and copy its results here.

        Raises:
            RemoteCommandError: It failed.
            InstanceError: Its instance is gone.
        """
        jobs = self._jobs
        # The program runs meanwhile: nothing waits for prices.
        self.put_prices(run)
        emit, clock = self.managed.emit, self.managed.clock
        display = LiveOutput(
            emit=emit,
            instance_id=run.instance_id,
            on_first=partial(self._note_output, run),
            throughput=re.compile(self.recipe.workload.throughput or "(?!)"),
        )
        running = f"running {self.program.name}"
        with stage(emit, clock, running, instance_id=run.instance_id), closing(display):
            if self.is_live and self.recipe.workload.command is not None:
                display.follow(partial(jobs.stream_log, member, run))
            with self._race(member, run), self._copying(member, run) as copying:

                def take(records: Sequence[dict[str, Any]]) -> None:
                    self._take_records(run, records, display)
                    if copying is not None:
                        self._take_notice(member, copying, records)

                ended = jobs.follow(member, run, take)
        if copying is not None and copying.reason and ended.exit_status:
            self._end_interrupted(member, ended, copying.reason)
        ended = jobs.fetch_results(member, ended, self.recipe.kept_files)
        if ended.state is RunState.FAILED:
            raise jobs.error_of(ended, self.program.name)
        if self.checkpoints is not None:
            self.checkpoints.home_of(run.instance_id).clear()
        return ended

    def _copying(self, member: Member, run: Run) -> AbstractContextManager[Copying | None]:
        """Return the context in which the checkpoints of a run are copied away."""
        return nullcontext() if self.checkpoints is None else self.checkpoints.copying(member, run)

    def _take_notice(self, member: Member, copying: Copying, records: Sequence[dict[str, Any]]) -> None:
        """Wake the copying, and at the first notice request the replacement while the program stops."""
        before = copying.reason
        for record in records:
            copying.note(record)
        if copying.reason and not before:
            instance_id = member.instance.instance_id
            message = f"{copying.reason}: its program is asked to stop, and its checkpoints are copied"
            self.managed.emit(Warned(message=message, instance_id=instance_id))
            self.request_replacement(member, copying.reason)

    def request_replacement(self, member: Member, reason: str) -> None:
        """Note that an instance has a notice, and launch what takes its place, if it ends for that."""
        assert self.checkpoints is not None  # noqa: S101 - nothing else tells notices
        if reason in REPLACED:
            self.checkpoints.noticed.setdefault(member.instance.instance_id, reason)
            self._noticed_at.setdefault(member.instance.instance_id, self.managed.clock.monotonic())
            if self.replacements is not None:
                self.replacements.request(member)

    def _end_interrupted(self, member: Member, run: Run, reason: str) -> None:
        """Store the end of a run whose program was asked to stop, with its log; its files unless replaced.

        Raises:
            LostInstanceError: Always, if another instance can take the place; it says why.
            InstanceError: It was another reason.
        """
        kept = NOTHING if reason in REPLACED else self.recipe.kept_files
        self._jobs.fetch_results(member, replace(run, state=RunState.LOST), kept)
        message = f"{run.instance_id}: {reason}; its program has stopped, and its checkpoints are kept"
        if reason in REPLACED:
            raise LostInstanceError(message)
        recipe = shlex.quote(self.managed.cluster.recipe_path or self.recipe.name)
        raise InstanceError(message, f"dlcloud up {recipe} resumes from them")

    def _send(self, connection: Connection, member: Member) -> Run:
        """Set an instance up, send it the program, and store the run that is about to start."""
        setup_at = self.managed.clock.now()
        python = self.prepare(connection, member)
        run = self._jobs.new_run(member, self.workload, image_id=self.image_id, setup_at=setup_at)
        self._send_program(connection, run, member, python)
        self.managed.store.runs.add(run)
        return run

    def prepare(self, connection: Connection, member: Member) -> str:
        """Set an instance up and bring it the data; return the interpreter of the program's environment."""
        with self._part_of_restart("environment", member.instance.instance_id):
            python = prepare(
                connection,
                self.recipe.setup,
                requirements_on(self.managed, member.instance.instance_type, self.program.requirements),
                clock=self.managed.clock,
                emit=self.managed.emit,
                minimum_python=self.program.minimum_python,
            )
            self._storage.bring(connection, member, self._peer(member))
        return python

    def send_files(self, connection: Connection, folder: str, member: Member) -> None:
        """Send the benchmarks and the user's files to a folder on an instance."""
        with self._part_of_restart("environment", member.instance.instance_id):
            self._send_files(connection, folder, member)

    def _send_files(self, connection: Connection, folder: str, member: Member) -> None:
        peer = peer_of(member, partial(self._jobs.connect, member))
        send = partial(self._sharing.send, connection, peer)
        if self._sharing.is_used:
            send(list_package(self.program.package), f"{folder}/benchmarks")
        else:
            connection.send_tree(self.program.package, f"{folder}/benchmarks", only=is_sent)
        if self.program.files is not None:
            clock, emit, source = self.managed.clock, self.managed.emit, self.program.files
            files = self._list_files(source)
            send_files(connection, source, f"{folder}/work", clock=clock, emit=emit, files=files, send=send)
        self._storage.link(connection, f"{folder}/work")

    def _list_files(self, source: Path) -> FileSet:
        """Return the user's files, listed once for all instances."""
        with self._files_lock:
            if self._files is None:
                self._files = check_files(source)
            return self._files

    def place_checkpoints(self, connection: Connection, run: Run) -> None:
        """Put the newest checkpoints into the folder of a run, if there are any kept."""
        if self.checkpoints is not None:
            with self._part_of_restart("checkpoints", run.instance_id):
                self.checkpoints.place(connection, run)

    def _send_program(self, connection: Connection, run: Run, member: Member, python: str) -> None:
        folder = folder_of(run)
        self.send_files(connection, folder, member)
        if self.checkpoints is not None:
            self.place_checkpoints(connection, run)
        elif patterns := self.recipe.workload.checkpoints:
            # A measurement is not resumed; the script finds its empty folder all the same.
            options = {"first": first_folder(patterns), "resume": False, "is_watched": False}
            connection.send_bytes(json.dumps(options).encode(), f"{folder}/checkpoints.json")
        earlier = self._earlier_records(run)
        if earlier:
            connection.send_bytes(earlier, f"{folder}/{EARLIER}")
        command = self.program.command(python, host=run.instance_id, resume=bool(earlier))
        image, environment = self.recipe.setup.image, self.environment
        send_command(connection, folder, command, image=image, environment=environment)

    def put_prices(self, run: Run) -> None:
        """Store the prices of a run's instance type, while its program runs."""
        self.managed.store.runs.put_prices(run.run_id, self._prices.of(run.instance_type, run.zone))

    def _peer(self, member: Member) -> EnvironmentPeer | None:
        """Describe an instance to the others, where they copy a folder of this machine from it."""
        if all(item.is_remote for item in self.recipe.data):
            return None
        return peer_of(member, partial(self._jobs.connect, member))

    def _earlier_records(self, run: Run) -> bytes:
        """Return the records of interrupted runs; the program checks which cases are still valid."""
        if self.fresh or not self.program.is_resumable or self.environment.variables:
            return b""
        with self._earlier_lock:
            if run.instance_type not in self._earlier:
                self._earlier[run.instance_type] = self._find_finished_cases(run)
            cases = self._earlier[run.instance_type]
        if cases:
            message = f"{len(cases)} case(s) were measured before an interruption and are not repeated"
            self.managed.emit(
                Info(message=f"{message}; --fresh measures all again", instance_id=run.instance_id)
            )
        return "".join(f"{line}\n" for case in cases for line in (case.start, *case.lines)).encode()

    def _find_finished_cases(self, like: Run) -> list[FinishedCase]:
        """Read the finished cases of interrupted runs: once for all instances of a type."""
        runs = self.managed.store.runs
        interrupted = resumable_runs(runs.all(), like)
        return finished_cases(line for other in interrupted for line in runs.all_lines(other.run_id))

    def _race(self, member: Member, run: Run) -> AbstractContextManager[None]:
        """Return the context in which a race can end the run: first by its program, then by force."""
        if self.watch is None:
            return nullcontext()
        jobs = self._jobs
        return self.watch.end_early(
            lambda: jobs.finish(jobs.connect(member), run, FINISH),
            lambda: jobs.stop(jobs.connect(member), run),
        )

    def _take_records(self, run: Run, records: Sequence[dict[str, Any]], display: "LiveOutput") -> None:
        if self.watch is not None:
            self.watch.take(records)
        self._emit_records(run, records, display)

    def _emit_records(self, run: Run, records: Sequence[dict[str, Any]], display: "LiveOutput") -> None:
        for record in records:
            if record["record"] == "progress":
                display.show(
                    Progress(
                        message=str(record.get("message", "")),
                        instance_id=run.instance_id,
                        done=number_or_none(record.get("done")),
                        total=number_or_none(record.get("total")),
                        remaining_s=number_or_none(record.get("remaining_s")),
                    )
                )
            elif record["record"] in {"failure", "skip"}:
                where = " ".join(str(record[key]) for key in ("case", "setting") if record.get(key))
                message = f"{where}: {record.get('message') or record.get('reason')}"
                self.managed.emit(Warned(message=message, instance_id=run.instance_id))


OWN_LINE = "dlcloud: "
"""How lines begin that dlcloud writes into the output of a program, such as what its hook restored."""
LONGEST_LINE = 200
"""Characters of a line that are shown."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class LiveOutput:
    """Joins the progress of one run with the last line of its program; safe to call from several threads."""

    emit: Emit
    instance_id: str
    on_first: Callable[[str], None] = lambda _: None  # takes "output" and "throughput", each once
    throughput: re.Pattern[str] = re.compile("(?!)")  # matches no line
    _awaited: set[str] = field(init=False, default_factory=lambda: {"output", "throughput"})
    _progress: Progress | None = field(init=False, default=None)
    _line: str = field(init=False, default="")
    _is_over: bool = field(init=False, default=False)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def show(self, progress: Progress) -> None:
        """Emit progress; the line of a part that has ended is not shown next to the next."""
        with self._lock:
            if self._progress is not None and self._progress.message != progress.message:
                self._line = ""
            self._progress = progress
            self._emit()

    def follow(self, stream: Callable[[], Iterable[bytes]]) -> None:
        """Read the program's output in its own thread, which ends with the stream.

        Only the display depends on it: a connection that breaks ends it, and the run continues.
        """
        name = f"output of {self.instance_id}"
        threading.Thread(target=self._read, args=(stream,), name=name, daemon=True).start()

    def feed(self, piece: bytes) -> None:
        """Show the last line of a piece of output; a carriage return ends one, too."""
        text = piece.decode("utf-8", "replace").replace("\r", "\n")
        lines = [
            line.strip() for line in text.split("\n") if line.strip() and not HARNESS_PROGRESS.match(line)
        ]
        printed = [line for line in lines if not line.startswith(OWN_LINE)]
        present = {"output": bool(printed), "throughput": any(map(self.throughput.search, printed))}
        for kind in [name for name in sorted(self._awaited) if present[name]]:
            self._awaited.remove(kind)
            self.on_first(kind)
        if lines:
            with self._lock:
                self._line = (
                    lines[-1] if len(lines[-1]) <= LONGEST_LINE else f"{lines[-1][: LONGEST_LINE - 1]}…"
                )
                self._emit()

    def close(self) -> None:
        """Show nothing more: the run has ended."""
        with self._lock:
            self._is_over = True

    def _read(self, stream: Callable[[], Iterable[bytes]]) -> None:
        try:
            for piece in stream():
                self.feed(piece)
        except (DlcloudError, OSError, EOFError) as error:
            log.info("%s: its output is not shown any more: %s", self.instance_id, error)

    def _emit(self) -> None:
        if self._is_over:
            return
        progress = self._progress or Progress(message="", instance_id=self.instance_id)
        message = ": ".join(part for part in (progress.message, self._line) if part)
        self.emit(replace(progress, message=message))
