"""Set workers up on instances, start their agents and follow them, each in a thread of its own."""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dlcloud.core.cluster import Member
from dlcloud.core.errors import DlcloudError
from dlcloud.core.events import Emit
from dlcloud.core.protocols import Clock
from dlcloud.core.recipe import Recipe
from dlcloud.core.remote import Connection
from dlcloud.core.result import Run, RunState, parse_record
from dlcloud.elastic.lead import Coordinator
from dlcloud.elastic.program import CONTROL, PACKAGE, Program
from dlcloud.launch.preflight import PriceLookup
from dlcloud.launch.remote_jobs import RemoteJobs, folder_of
from dlcloud.launch.setup import prepare
from dlcloud.store.runs import Runs

DRAINED = 10
"""Exit status of an agent whose workers left because they were asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsReceived:
    """Records of an instance, new ones."""

    instance_id: str
    records: Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited:
    """The worker on an instance has ended: its run, or why there is none to speak of."""

    instance_id: str
    run: Run | None = None
    error: BaseException | None = None

    @property
    def drained(self) -> bool:
        """Tell whether it left because it was asked to."""
        return self.run is not None and self.run.exit_status == DRAINED


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The agents of one job.

    Args:
        recipe: With the set-up, and what to bring home.
        program: What runs.
        lead: Returns who coordinates, now.
        port: Of the lighthouse.
        image_id: The image that the instances booted, for the record.
        detached: Starts and follows.
        runs: Where runs are remembered.
        quotes: What the instances cost, in both markets.
        clock: For dates.
        emit: Is told of the stages of the set-up.
        post: Takes what happens, from any thread.
    """

    recipe: Recipe
    program: Program
    lead: Callable[[], Coordinator]
    port: int
    image_id: str
    detached: RemoteJobs
    runs: Runs
    quotes: PriceLookup
    clock: Clock
    emit: Emit
    post: Callable[[RecordsReceived | WorkerExited], None]
    _drains: dict[str, str] = field(default_factory=dict, init=False)
    _locks: defaultdict[str, threading.Lock] = field(
        default_factory=lambda: defaultdict(threading.Lock), init=False
    )

    def serve(self, member: Member) -> None:
        """Set an instance up and follow its agent, in a thread; one that runs already is only followed."""
        threading.Thread(
            target=self._serve, args=(member,), name=f"worker {member.instance.instance_id}", daemon=True
        ).start()

    def stored(self, member: Member) -> list[dict[str, Any]]:
        """Return what an agent that is still to be followed had reported to an earlier controller."""
        run = self.detached.find_unfinished(member, self.recipe.name)
        lines = [] if run is None else self.runs.all_lines(run.run_id)
        return [record for line in lines if (record := parse_record(line)) is not None]

    def drain(self, member: Member, cause: str, *, workers: int) -> None:
        """Ask the worker on an instance to leave after its step; one that is not started yet never trains.

        Raises:
            UnreachableError, RemoteCommandError: It could not be asked.
        """
        self._drains[member.instance.instance_id] = cause
        self.inform(member, workers=workers)

    def inform(self, member: Member, *, workers: int) -> bool:
        """Write the control file of an instance; False where no agent is there yet.

        Raises:
            UnreachableError, RemoteCommandError: They could not be told.
        """
        run = self.detached.find_unfinished(member, self.recipe.name)
        if run is None:
            return False
        name = member.instance.instance_id
        with self._locks[name]:  # the last file that is written must be the newest one
            content = self._control(member, self.lead(), workers=workers, drain=self._drains.get(name))
            self.detached.connect(member).send_bytes(content, f"{folder_of(run)}/{CONTROL}")
        return True

    def _serve(self, member: Member) -> None:
        name = member.instance.instance_id
        try:
            connection = self.detached.connect(member)
            run = self.detached.find_unfinished(member, self.recipe.name) or self._send(connection, member)
            self.detached.start(connection, run)
            self.runs.put_prices(run.run_id, self.quotes.of(run.instance_type, run.zone))
            ended = self.detached.follow(
                member, run, lambda records: self.post(RecordsReceived(instance_id=name, records=records))
            )
            if ended.exit_status == DRAINED:
                ended = replace(ended, state=RunState.DONE)
            patterns = self.recipe.keep.files if ended.exit_status == 0 else []
            self.post(
                WorkerExited(instance_id=name, run=self.detached.fetch_results(member, ended, patterns))
            )
        except DlcloudError as error:
            self.post(WorkerExited(instance_id=name, error=error))
        except BaseException as error:  # noqa: BLE001 - a bug in this thread must end the command, not hang it
            self.post(WorkerExited(instance_id=name, error=error))

    def _send(self, connection: Connection, member: Member) -> Run:
        setup_at = self.clock.now()
        python = prepare(
            connection, self.recipe.setup, self.program.requirements, clock=self.clock, emit=self.emit
        )
        run = self.detached.new_run(member, self.recipe.name, image_id=self.image_id, setup_at=setup_at)
        folder = folder_of(run)
        connection.send_tree(PACKAGE, f"{folder}/trainer")
        if self.program.files is not None:
            connection.send_tree(self.program.files, f"{folder}/work")
        lead = self.lead()
        wanted = self._control(member, lead, workers=self.recipe.instances.maximum)
        connection.send_bytes(wanted, f"{folder}/{CONTROL}")
        command = self.program.agent(python, worker=member.instance.instance_id, lead=lead, port=self.port)
        connection.send_bytes(command.encode(), f"{folder}/command")
        self.runs.add(run)
        return run

    def _control(self, member: Member, lead: Coordinator, *, workers: int, drain: str | None = None) -> bytes:
        name = member.instance.instance_id
        return self.program.control(worker=name, workers=workers, lead=lead, port=self.port, drain=drain)
