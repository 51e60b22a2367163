"""Run a program on instances: detached there, its records stored here as they come, its files brought."""

import json
import logging
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from dlcloud.bench.program import EARLIER, RECORDS, Program, travels
from dlcloud.bench.quotes import Quotes
from dlcloud.core.carry import finished_cases, interrupted
from dlcloud.core.cluster import Cluster, Member
from dlcloud.core.errors import CloudError, DlcloudError, InstanceError, RemoteCommandError, UnreachableError
from dlcloud.core.events import Emit, Notice, Progress, Warned, stage
from dlcloud.core.ports import Clock, Cloud
from dlcloud.core.recipe import Recipe
from dlcloud.core.remote import Connection, Dial
from dlcloud.core.result import Run, RunState
from dlcloud.launch.setup import FOLDER, JOB, prepare
from dlcloud.ssh.fanout import all_or_raise, fan_out
from dlcloud.store.paths import Paths
from dlcloud.store.runs import Runs

RECONNECT_WAIT_S = 60.0
RECONNECT_ROUND_S = 3.0
"""How long an instance is dialled before EC2 is asked whether it still lives."""
FAILED_FOLLOWS = 3
LOG_TAIL_LINES = 15

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """Runs the program of one recipe on the instances of one cluster.

    Args:
        cluster: Whose instances.
        recipe: With the set-up, and what to bring home.
        program: What to run.
        image_id: The image that the instances booted, for the record.
        cloud: Is asked whether an instance that does not answer still lives.
        dial: Reaches an instance again when its connection broke.
        runs: Where runs and their records are stored.
        paths: Where the files brought home go.
        clock: For dates and durations.
        emit: Is told of the progress.
        fresh: Measure everything, whatever an interrupted run had measured already.
    """

    cluster: Cluster
    recipe: Recipe
    program: Program
    image_id: str
    cloud: Cloud
    dial: Dial
    runs: Runs
    paths: Paths
    clock: Clock
    emit: Emit
    fresh: bool = False
    _quotes: Quotes = field(init=False)

    def __post_init__(self) -> None:
        """Ask for prices once, for all runs."""
        object.__setattr__(self, "_quotes", Quotes(self.cloud))

    @property
    def workload(self) -> str:
        """Return the name under which its runs are stored."""
        return self.recipe.workload.benchmark or self.recipe.name

    def run_all(self, members: Sequence[Member]) -> list[Run]:
        """Run on every instance at once; a run that an earlier `up` left behind is followed, not repeated.

        Raises:
            InstanceError: Every run failed.
            PartialError: Some runs failed; what the others measured is stored.
        """
        outcomes = fan_out(self._run, members, width=max(1, len(members)))
        return all_or_raise(outcomes, name=lambda member: member.instance.instance_id)

    def _run(self, member: Member) -> Run:
        connection = self._dial(member)
        run = self._unfinished(member)
        if run is None:
            setup_at = self.clock.now()
            python = prepare(
                connection, self.recipe.setup, self.program.requirements, clock=self.clock, emit=self.emit
            )
            run = self._new_run(member, setup_at)
            self._send(connection, run, python)
            self.runs.add(run)
        # A start that was asked for before does nothing: after a crash in between, none is started twice.
        connection.check(f"{JOB} start {_folder(run)}")
        # The program is at work meanwhile: nothing waits for prices.
        self.runs.put_prices(run.run_id, self._quotes.of(run.instance_type, run.zone))
        with stage(self.emit, self.clock, f"running {self.program.name}", instance_id=run.instance_id):
            ended = self._follow(member, run)
        return self._finish(member, ended)

    def _unfinished(self, member: Member) -> Run | None:
        mine = [run for run in self.runs.of_cluster(self.cluster.cluster_id) if run.state is RunState.RUNNING]
        wanted = (member.instance.instance_id, self.workload)
        return next((run for run in mine if (run.instance_id, run.workload) == wanted), None)

    def _new_run(self, member: Member, setup_at: datetime) -> Run:
        instance = member.instance
        return Run(
            run_id=f"{self.cluster.name}-{secrets.token_hex(4)}",
            cluster_id=self.cluster.cluster_id,
            cluster_name=self.cluster.name,
            instance_id=instance.instance_id,
            workload=self.workload,
            cloud=self.cluster.cloud,
            region=self.cluster.region,
            zone=instance.zone,
            instance_type=instance.instance_type,
            market=instance.market,
            image_id=self.image_id,
            hourly_usd=member.hourly_usd,
            price_source=member.price_source,
            price_as_of=member.price_as_of,
            state=RunState.RUNNING,
            started_at=self.clock.now(),
            setup_at=setup_at,
        )

    def _send(self, connection: Connection, run: Run, python: str) -> None:
        connection.send_tree(self.program.package, f"{_folder(run)}/benchmarks", only=travels)
        if self.program.files is not None:
            connection.send_tree(self.program.files, f"{_folder(run)}/work", only=travels)
        earlier = self._earlier(run)
        if earlier:
            connection.send_bytes(earlier, f"{_folder(run)}/{EARLIER}")
        command = self.program.command(python, host=run.instance_id, resume=bool(earlier))
        connection.send_bytes(command.encode(), f"{_folder(run)}/command")

    def _earlier(self, run: Run) -> bytes:
        """Return the records of what interrupted runs had measured; the program checks what of it fits."""
        if self.fresh or not self.program.resumable:
            return b""
        before = interrupted(self.runs.all(), run)
        cases = finished_cases(line for each in before for line in self.runs.all_lines(each.run_id))
        if cases:
            message = f"{len(cases)} case(s) were measured before an interruption, and are sent along"
            self.emit(Notice(message=f"{message}; --fresh measures all anew", instance_id=run.instance_id))
        return "".join(f"{line}\n" for case in cases for line in (case.start, *case.lines)).encode()

    def _follow(self, member: Member, run: Run) -> Run:
        """Store records until the program has ended, whatever happens to the connection meanwhile.

        An instance that goes down ends what runs there a moment before it stops answering, so a command of
        ours that fails is tried again, too, a few times.
        """
        failed = 0
        while True:
            try:
                connection = self._dial(member)
                self._store_stream(connection, run)
                status = json.loads(connection.check(f"{JOB} state {_folder(run)}"))
            except UnreachableError as error:
                self.emit(Warned(message=f"{error.message}; reconnecting", instance_id=run.instance_id))
                self._reconnect(member, run)
                continue
            except RemoteCommandError as error:
                failed += 1
                if failed > FAILED_FOLLOWS:
                    raise
                log.warning("%s: following %s failed: %s", run.instance_id, run.run_id, error.message)
                self.clock.sleep(RECONNECT_ROUND_S)
                continue
            if status["state"] != "running":
                state = RunState.DONE if status["exit_status"] == 0 else RunState.FAILED
                return replace(run, state=state, exit_status=status["exit_status"])

    def _store_stream(self, connection: Connection, run: Run) -> None:
        position = self.runs.stored_bytes(run.run_id)
        pending = b""
        for chunk in connection.stream(f"{JOB} follow {_folder(run)} {RECORDS} {position}"):
            whole, newline, rest = (pending + chunk).rpartition(b"\n")
            pending = rest
            if newline:
                records = self.runs.add_records(run.run_id, position, whole + newline)
                position += len(whole) + 1
                self._tell(run, records)

    def _tell(self, run: Run, records: Sequence[dict[str, Any]]) -> None:
        for record in records:
            if record["record"] == "progress":
                self.emit(
                    Progress(
                        message=str(record.get("message", "")),
                        instance_id=run.instance_id,
                        done=record.get("done"),
                        total=record.get("total"),
                        remaining_s=record.get("remaining_s"),
                    )
                )
            elif record["record"] in {"failure", "skip"}:
                where = " ".join(str(record[key]) for key in ("case", "setting") if record.get(key))
                told = f"{where}: {record.get('message') or record.get('reason')}"
                self.emit(Warned(message=told, instance_id=run.instance_id))

    def _reconnect(self, member: Member, run: Run) -> None:
        """Dial until the instance answers or is gone; a reclaimed one is not dialled for long."""
        deadline = self.clock.monotonic() + RECONNECT_WAIT_S
        while True:
            try:
                self._dial(member, wait_s=RECONNECT_ROUND_S)
            except UnreachableError as error:
                if self._alive(run.instance_id) and self.clock.monotonic() < deadline:
                    continue
                self.runs.end(run.run_id, RunState.LOST, None, self.clock.now())
                raise InstanceError(
                    f"{run.instance_id} is gone; what {run.run_id} had reported is stored ({error.message})"
                ) from error
            return

    def _alive(self, instance_id: str) -> bool:
        try:
            seen = self.cloud.instances(self.cluster.cluster_id)
        except CloudError as error:
            # Where EC2 cannot be asked either, it is our own network that is down, and may come back.
            log.warning("cannot ask whether %s still lives: %s", instance_id, error.message)
            return True
        return any(each.alive for each in seen if each.instance_id == instance_id)

    def _finish(self, member: Member, run: Run) -> Run:
        """Bring home the log and the files asked for, then store how the run ended."""
        folder = self.paths.made(self.paths.run(run.run_id))
        try:
            connection = self._dial(member)
            connection.fetch_files(_folder(run), ["log", RECORDS], folder)
            if self.recipe.keep.files:
                connection.fetch_files(
                    f"{_folder(run)}/work",
                    self.recipe.keep.files,
                    self.paths.made(self.paths.run_files(run.run_id)),
                )
        except DlcloudError as error:
            self.emit(
                Warned(message=f"files were not brought home: {error.message}", instance_id=run.instance_id)
            )
        ended = replace(run, ended_at=self.clock.now())
        self.runs.end(run.run_id, ended.state, ended.exit_status, self.clock.now())
        if ended.state is RunState.FAILED:
            raise RemoteCommandError(
                f"{run.instance_id}: {self.program.name} ended with status {run.exit_status}:\n"
                f"{log_tail(self.paths.run_log(run.run_id))}",
                f"the whole log: dlcloud logs {run.run_id}",
            )
        return ended

    def _dial(self, member: Member, wait_s: float = 0.0) -> Connection:
        return self.dial.dial(member.instance.endpoint(self.cluster.user), wait_s=wait_s)


def log_tail(path: Path) -> str:
    """Return the last lines of a log that was brought home; empty where there is none."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text("utf-8", "replace").splitlines()[-LOG_TAIL_LINES:])


def log_command(run: Run, *, follow: bool) -> str:
    """Return the command that prints a run's log on its instance; with `follow`, until it has ended."""
    return f"{JOB} follow {_folder(run)} log 0" if follow else f"cat {_folder(run)}/log"


def _folder(run: Run) -> str:
    return shlex.quote(f"{FOLDER}/runs/{run.run_id}")
