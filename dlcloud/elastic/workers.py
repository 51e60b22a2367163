"""Set up the workers on instances, start their agents and follow them, each from a thread of its own."""

import json
import logging
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from dlcloud.elastic.reports import EventReported, WorkerReport, parse_reports
from dlcloud.elastic.training_program import (
    ALIAS,
    CONTROL,
    PACKAGE,
    Coordinator,
    TrainingProgram,
    control_file,
)
from dlcloud.launch.container import send_command
from dlcloud.launch.data_access import Storage, peer_of
from dlcloud.launch.launcher import Launcher
from dlcloud.launch.packages import requirements_on
from dlcloud.launch.peers import EnvironmentPeer
from dlcloud.launch.preflight import PriceLookup
from dlcloud.launch.remote_jobs import INHERITED, RECORDS, RemoteJobs, folder_of
from dlcloud.launch.setup import OLDEST_PYTHON, prepare
from dlcloud.launch.user_files import send_files
from dlcloud.model.cluster import Member
from dlcloud.model.errors import DlcloudError, RemoteCommandError
from dlcloud.model.remote import Connection
from dlcloud.recipe.job_environment import JobEnvironment
from dlcloud.recipe.recipe import Recipe
from dlcloud.results.result import Run, RunState, parse_record
from dlcloud.trainer.drain import DRAINED
from dlcloud.trainer.records import EventName

NEWEST_BYTES = 1 << 16
"""Of the records of a worker, some hundred steps: how far it is."""

REACH_S = 10.0
"""How long a new controller waits for an instance that may be gone, too."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportsReceived:
    """New reports of an instance."""

    instance_id: str
    reports: Sequence[WorkerReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited:
    """The worker on an instance has ended: its run, or the error for which there is none."""

    instance_id: str
    run: Run | None = None
    error: BaseException | None = None

    @property
    def has_finished(self) -> bool:
        """True if the worker ended because its training did."""
        return self.run is not None and self.run.exit_status == 0

    @property
    def is_drained(self) -> bool:
        """True if the worker left because it was asked to."""
        return self.run is not None and self.run.exit_status == DRAINED


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The agents of one training.

    Args:
        coordinator: Returns the present coordinator.
        image_id: The image of the instances, for the stored run.
        prices: Of the instances, in both markets.
        post: Receives what happens, from any thread.
        has_taken_over: True for a controller that took over from one that was lost.
        storage: The data and the buckets of the recipe.
        environment: Of the workers.
        restored: Committed steps of the checkpoint in S3 that the training goes on from.
    """

    launcher: Launcher
    recipe: Recipe
    program: TrainingProgram
    coordinator: Callable[[], Coordinator]
    image_id: str
    prices: PriceLookup
    post: Callable[[ReportsReceived | WorkerExited], None]
    storage: Storage
    environment: JobEnvironment = INHERITED
    restored: int = 0
    has_taken_over: bool = False
    _peers: dict[str, Member] = field(default_factory=dict, init=False)  # that have the environment
    _drains: dict[str, str] = field(default_factory=dict, init=False)
    _locks: defaultdict[str, threading.Lock] = field(
        default_factory=lambda: defaultdict(threading.Lock), init=False
    )

    @property
    def _jobs(self) -> RemoteJobs:
        return RemoteJobs(managed=self.launcher, any_may_keep=True)

    def serve(self, member: Member) -> None:
        """Set up an instance and follow its agent, from a thread; a running agent is only followed."""
        name = f"worker {member.instance.instance_id}"
        threading.Thread(target=self._serve, args=(member,), name=name, daemon=True).start()

    def read_past(self, member: Member) -> list[WorkerReport]:
        """Return what an agent that is to be followed on has reported before.

        That is what it sent to an earlier controller; if that one was lost with its store, also the newest
        that lies on the instance.
        """
        run = self._jobs.find_unfinished(member, self.recipe.name)
        if run is None:
            return []
        lines = list(self.launcher.store.runs.all_lines(run.run_id))
        if self.has_taken_over:
            lines += self._read_newest(member, run)
        records = [record for line in lines if (record := parse_record(line)) is not None]
        return parse_reports(run.instance_id, records)

    def has_run(self, member: Member) -> bool:
        """True if an agent was started on an instance."""
        return self._jobs.find_unfinished(member, self.recipe.name) is not None

    def _read_newest(self, member: Member, run: Run) -> list[str]:
        """Return the newest whole lines of the records on an instance; none where it does not answer."""
        try:
            answer = self._jobs.connect(member, REACH_S).run(
                f"tail -c {NEWEST_BYTES} {folder_of(run)}/{RECORDS}"
            )
        except DlcloudError as error:
            log.warning("cannot read the records of %s: %s", run.instance_id, error.message)
            return []
        return answer.stdout.decode("utf-8", "replace").split("\n")[1:-1]

    def error_of(self, run: Run) -> RemoteCommandError:
        """Return the error of a run that failed, with the end of its log."""
        return self._jobs.error_of(run, self.recipe.name)

    def drain(self, member: Member, cause: str) -> None:
        """Ask the worker on an instance to leave after its step; raises as `write_control` does."""
        self._drains[member.instance.instance_id] = cause
        self.write_control(member)

    def write_control(self, member: Member) -> bool:
        """Write the control file of an instance; False where no agent is there yet.

        Raises:
            UnreachableError, RemoteCommandError: It could not be written.
        """
        run = self._jobs.find_unfinished(member, self.recipe.name)
        if run is None:
            return False
        with self._locks[member.instance.instance_id]:  # the newest content must be written last
            self._send_control(self._jobs.connect(member), member, run)
        return True

    def remind(self, member: Member) -> None:
        """Let an instance know that its controller lives; raises as `write_control` does."""
        run = self._jobs.find_unfinished(member, self.recipe.name)
        if run is not None:
            self._jobs.connect(member).check(f"touch -c {folder_of(run)}/{CONTROL}")

    def _send_control(self, connection: Connection, member: Member, run: Run) -> None:
        name = member.instance.instance_id
        content = control_file(self.coordinator(), worker=name, drain=self._drains.get(name))
        connection.send_bytes(content, f"{folder_of(run)}/{CONTROL}")

    def _serve(self, member: Member) -> None:
        name = member.instance.instance_id
        jobs, runs = self._jobs, self.launcher.store.runs
        try:
            connection = jobs.connect(member)
            run = jobs.find_unfinished(member, self.recipe.name) or self._send(connection, member)
            self._peers[name] = member
            jobs.start(connection, run, self.environment)
            runs.put_prices(run.run_id, self.prices.of(run.instance_type, run.zone))
            ended = jobs.follow(member, run, partial(self._receive, name))
            if ended.exit_status == DRAINED:
                ended = replace(ended, state=RunState.DONE)
            patterns = self.recipe.keep.files if ended.exit_status == 0 else []
            self.post(WorkerExited(instance_id=name, run=jobs.fetch_results(member, ended, patterns)))
        except BaseException as error:  # noqa: BLE001 - a bug in this thread must end the command, not hang it
            self.post(WorkerExited(instance_id=name, error=error))
        finally:
            self._peers.pop(name, None)
            self.storage.forget(name)

    def _receive(self, name: str, records: Sequence[dict[str, Any]]) -> None:
        reports = parse_reports(name, records)
        if any(isinstance(report, EventReported) and report.name is EventName.NOTICE for report in reports):
            self._peers.pop(name, None)  # it would end during a copy
            self.storage.forget(name)
        self.post(ReportsReceived(instance_id=name, reports=reports))

    def _peers_of(self, member: Member) -> list[EnvironmentPeer]:
        """Return the instances that can give a new one their environment: those in its zone first.

        Traffic between zones is billed, and the coordinator has enough to do. Several newcomers ask in
        different orders.
        """
        first, zone = self.coordinator().instance_id, member.instance.zone
        others = list(self._peers.values())
        random.shuffle(others)
        others.sort(key=lambda peer: (peer.instance.zone != zone, peer.instance.instance_id == first))
        return [
            EnvironmentPeer(
                instance_id=peer.instance.instance_id,
                host=peer.instance.private_host or peer.instance.host,
                connect=partial(self._jobs.connect, peer),
            )
            for peer in others
        ]

    def _send(self, connection: Connection, member: Member) -> Run:
        """Send program, control file and command; return the run, which is not started yet."""
        launcher, recipe, program = self.launcher, self.recipe, self.program
        setup_at = launcher.clock.now()
        python = prepare(
            connection,
            recipe.setup,
            requirements_on(launcher, member.instance.instance_type, program.requirements),
            clock=launcher.clock,
            emit=launcher.emit,
            minimum_python=OLDEST_PYTHON,
            peers=self._peers_of(member),
        )
        self.storage.bring(connection, member, peer_of(member, partial(self._jobs.connect, member)))
        run = self._jobs.new_run(member, recipe.name, image_id=self.image_id, setup_at=setup_at)
        folder = folder_of(run)
        connection.send_tree(PACKAGE, f"{folder}/trainer")
        connection.send_bytes(ALIAS, f"{folder}/dlcloud/__init__.py")
        if program.files is not None:
            work = f"{folder}/work"
            send_files(connection, program.files, work, clock=launcher.clock, emit=launcher.emit)
        self.storage.link(connection, f"{folder}/work")
        self._send_control(connection, member, run)
        coordinator, name = self.coordinator(), member.instance.instance_id
        if name == coordinator.instance_id and 0 < coordinator.step <= self.restored:
            self.storage.restore(connection, coordinator.step, f"{folder}/checkpoints")
        command = program.agent(python, worker=name, coordinator=coordinator, upload=self._upload(connection))
        image, environment = recipe.setup.image, self.environment
        send_command(connection, folder, command, image=image, environment=environment)
        launcher.store.runs.add(run)
        return run

    def _upload(self, connection: Connection) -> list[str]:
        """Return the options by which an instance stores checkpoints in S3; none where it stores none."""
        target = self.recipe.checkpoints
        if target is None:
            return []
        tool = self.storage.tool_of(connection, target)
        return ["--to", target, "--tool", tool["tool"], "--variables", json.dumps(tool["variables"])]
