"""A program that runs detached on an instance: its records stored as they come, its files brought home."""

import json
import logging
import secrets
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from dlcloud.core.cluster import Cluster, Member
from dlcloud.core.errors import CloudError, DlcloudError, InstanceError, RemoteCommandError, UnreachableError
from dlcloud.core.events import Emit, Warned
from dlcloud.core.protocols import Clock, Cloud
from dlcloud.core.remote import Connection, Dial
from dlcloud.core.result import Run, RunState
from dlcloud.launch.setup import FOLDER, JOB
from dlcloud.store.paths import Paths
from dlcloud.store.runs import Runs

RECORDS = "records.jsonl"
RECONNECT_WAIT_S = 60.0
RECONNECT_ROUND_S = 3.0
"""How long an instance is dialled before EC2 is asked whether it still lives."""
FAILED_FOLLOWS = 3
LOG_TAIL_LINES = 15

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteJobs:
    """Runs of one cluster's instances, each the command in its folder, started once.

    Args:
        cluster: Whose instances.
        cloud: Is asked whether an instance that does not answer still lives.
        dial: Reaches an instance again when its connection broke.
        runs: Where runs and their records are stored.
        paths: Where the files brought home go.
        clock: For dates and durations.
        emit: Is told what goes wrong.
    """

    cluster: Cluster
    cloud: Cloud
    dial: Dial
    runs: Runs
    paths: Paths
    clock: Clock
    emit: Emit

    def unfinished(self, member: Member, workload: str) -> Run | None:
        """Return the run that an earlier command left behind on an instance."""
        of_cluster = self.runs.of_cluster(self.cluster.cluster_id)
        wanted = (member.instance.instance_id, workload, RunState.RUNNING)
        return next((run for run in of_cluster if (run.instance_id, run.workload, run.state) == wanted), None)

    def new(self, member: Member, workload: str, *, image_id: str, setup_at: datetime) -> Run:
        """Return a run that is about to start; it is not stored yet.

        Args:
            member: Where it runs, with its price.
            workload: The name that it is stored under.
            image_id: The image that the instance booted, for the record.
            setup_at: When the set-up for it began.
        """
        instance = member.instance
        return Run(
            run_id=f"{self.cluster.name}-{secrets.token_hex(4)}",
            cluster_id=self.cluster.cluster_id,
            cluster_name=self.cluster.name,
            instance_id=instance.instance_id,
            workload=workload,
            cloud=self.cluster.cloud,
            region=self.cluster.region,
            zone=instance.zone,
            instance_type=instance.instance_type,
            market=instance.market,
            image_id=image_id,
            hourly_usd=member.hourly_usd,
            price_source=member.price_source,
            price_as_of=member.price_as_of,
            state=RunState.RUNNING,
            started_at=self.clock.now(),
            setup_at=setup_at,
        )

    def start(self, connection: Connection, run: Run) -> None:
        """Start a run; one that was started before goes on, so that after a crash none runs twice."""
        connection.check(f"{JOB} start {folder_of(run)}")

    def follow(self, member: Member, run: Run, tell: Callable[[Sequence[dict[str, Any]]], None]) -> Run:
        """Store records until the program has ended, whatever happens to the connection meanwhile.

        An instance that goes down ends what runs there a moment before it stops answering, so a command of
        ours that fails is tried again, too, a few times.

        Args:
            member: Where it runs.
            run: As it was started.
            tell: Is given the new records, once each.

        Returns:
            The run as it ended, which is not stored yet.

        Raises:
            InstanceError: The instance is gone, or cannot be reached any more; stored as lost.
            RemoteCommandError: It answers, and cannot be asked how the run stands.
        """
        failed = 0
        while True:
            try:
                connection = self.connect(member)
                self._store_stream(connection, run, tell)
                status = json.loads(connection.check(f"{JOB} state {folder_of(run)}"))
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

    def bring_home(self, member: Member, run: Run, patterns: Sequence[str]) -> Run:
        """Bring the log and the files asked for, as far as they can be had, and store how the run ended."""
        folder = self.paths.made(self.paths.run(run.run_id))
        try:
            connection = self.connect(member)
            connection.fetch_files(folder_of(run), ["log", RECORDS], folder)
            if patterns:
                kept = self.paths.made(self.paths.run_files(run.run_id))
                connection.fetch_files(f"{folder_of(run)}/work", patterns, kept)
        except DlcloudError as error:
            self.emit(
                Warned(message=f"files were not brought home: {error.message}", instance_id=run.instance_id)
            )
        ended = replace(run, ended_at=self.clock.now())
        self.runs.end(run.run_id, ended.state, ended.exit_status, self.clock.now())
        return ended

    def failure(self, run: Run, program: str) -> RemoteCommandError:
        """Return the error that tells how a failed run ended, with the end of its log."""
        return RemoteCommandError(
            f"{run.instance_id}: {program} ended with status {run.exit_status}:\n"
            f"{log_tail(self.paths.run_log(run.run_id))}",
            f"the whole log: dlcloud logs {run.run_id}",
        )

    def connect(self, member: Member, wait_s: float = 0.0) -> Connection:
        """Return a connection to an instance.

        Raises:
            UnreachableError, HostKeyError: There is none to be had.
        """
        return self.dial.dial(member.instance.endpoint(self.cluster.user), wait_s=wait_s)

    def _store_stream(
        self, connection: Connection, run: Run, tell: Callable[[Sequence[dict[str, Any]]], None]
    ) -> None:
        position = self.runs.stored_bytes(run.run_id)
        pending = b""
        for chunk in connection.stream(f"{JOB} follow {folder_of(run)} {RECORDS} {position}"):
            whole, newline, rest = (pending + chunk).rpartition(b"\n")
            pending = rest
            if newline:
                records = self.runs.add_records(run.run_id, position, whole + newline)
                position += len(whole) + 1
                tell(records)

    def _reconnect(self, member: Member, run: Run) -> None:
        """Dial until the instance answers or is gone; a reclaimed one is not dialled for long."""
        deadline = self.clock.monotonic() + RECONNECT_WAIT_S
        while True:
            try:
                self.connect(member, wait_s=RECONNECT_ROUND_S)
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


def folder_of(run: Run) -> str:
    """Return a run's folder on its instance, below the login's home."""
    return shlex.quote(f"{FOLDER}/runs/{run.run_id}")


def log_tail(path: Path) -> str:
    """Return the last lines of a log that was brought home; empty where there is none."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text("utf-8", "replace").splitlines()[-LOG_TAIL_LINES:])


def log_command(run: Run, *, follow: bool) -> str:
    """Return the command that prints a run's log on its instance; with `follow`, until it has ended."""
    return f"{JOB} follow {folder_of(run)} log 0" if follow else f"cat {folder_of(run)}/log"
