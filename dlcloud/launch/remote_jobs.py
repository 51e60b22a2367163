"""Programs that run on instances without a session: started once, followed, their results copied here."""

import json
import logging
import re
import secrets
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlcloud.analysis.result import Run, RunState, is_good_end
from dlcloud.launch.setup import FOLDER, JOB
from dlcloud.model.clock import wait_until
from dlcloud.model.cluster import Member
from dlcloud.model.errors import (
    CloudError,
    DlcloudError,
    LostInstanceError,
    RemoteCommandError,
    UnreachableError,
)
from dlcloud.model.events import Info, Warned
from dlcloud.model.job_environment import JobEnvironment
from dlcloud.model.remote import Connection, ResultsLeft
from dlcloud.model.untrusted import parse_json, printable
from dlcloud.recipe.kept_results import GIB, KeptFiles, Written

if TYPE_CHECKING:  # pydantic, which `logs` never needs
    from dlcloud.launch.managed import ManagedCluster

RECORDS = "records.jsonl"
LOG_TIMES = "log.times"
"""How long the log was when, for `logs --since`: templates/job.py writes it."""
MIB = 1 << 20
MOST_FILES = 100_000
MOST_REASONS = 3
RECONNECT_WAIT_S = 60.0
RECONNECT_ROUND_S = 3.0
"""How long an instance is dialled before EC2 is asked whether it still lives."""

FAILED_FOLLOWS = 3
JOB_STATES = {"new", "running", "ended", "lost"}
LARGEST_STATUS = 1 << 31
LONGEST_LINE = 1 << 24
"""Of a run's records, in bytes."""

LOG_TAIL_LINES = 15
LOG_TAIL_BYTES = 1 << 14

HARNESS_PROGRESS = re.compile(r"\[\d+/\d+[],]")
"""How a line of the harness's own progress begins, which comes by its record, too."""

HARNESS_FAILURE = re.compile(r"^failed: ", re.MULTILINE)
"""How the harness prints what failed."""

INHERITED = JobEnvironment()
"""Nothing but what a program inherits from the login."""

RecordHandler = Callable[[Sequence[dict[str, Any]]], None]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteJobs:
    """Runs of one cluster's instances: a folder with a command for each, which is started once.

    With `any_may_keep`, an instance without the files that the recipe keeps is no news: another has them.
    With `trusts_records`, a run whose last record says that all is well has ended well, unasked.
    """

    managed: "ManagedCluster"
    any_may_keep: bool = False
    trusts_records: bool = False

    def find_unfinished(self, member: Member, workload: str) -> Run | None:
        """Return the run that an earlier command left behind on an instance."""
        instance_id = member.instance.instance_id
        return next(
            iter(self.managed.store.runs.running(self.managed.cluster_id, instance_id, workload)), None
        )

    def new_run(self, member: Member, workload: str, *, image_id: str, setup_at: datetime) -> Run:
        """Return a run that is about to start; it is not stored yet.

        `workload` is its name in the store; the set-up of the instance began at `setup_at`.
        """
        cluster, instance = self.managed.cluster, member.instance
        return Run(
            run_id=f"{cluster.name}-{secrets.token_hex(4)}",
            cluster_id=cluster.cluster_id,
            cluster_name=cluster.name,
            instance_id=instance.instance_id,
            workload=workload,
            cloud=cluster.cloud,
            region=cluster.region,
            zone=instance.zone,
            instance_type=instance.instance_type,
            market=instance.market,
            image_id=image_id,
            hourly_usd=member.hourly_usd,
            price_source=member.price_source,
            price_as_of=member.price_as_of,
            state=RunState.RUNNING,
            started_at=self.managed.clock.now(),
            setup_at=setup_at,
        )

    def start(
        self,
        connection: Connection,
        run: Run,
        environment: JobEnvironment = INHERITED,
        layout: Mapping[str, object] | None = None,
    ) -> None:
        """Start a run; one that was started before continues, so that after a crash none runs twice.

        `layout` is what `templates/job.py` makes of its folder first.
        """
        start_job(connection, folder_of(run), environment, layout)

    def finish(self, connection: Connection, run: Run, suffix: str) -> None:
        """Ask the program of a run to end after its round, by a file next to its records with this suffix."""
        connection.check(f"touch {folder_of(run)}/{RECORDS}{suffix}")

    def stop(self, connection: Connection, run: Run) -> None:
        """End the program of a run, with its child processes."""
        connection.check(f"{JOB} stop {folder_of(run)}")

    def follow(self, member: Member, run: Run, handle: RecordHandler) -> Run:
        """Store records until the program has ended, whatever happens to the connection meanwhile.

        An instance that goes down ends what runs there a moment before it stops answering, so a command of
        ours that fails is tried again, too, a few times.

        `handle` takes the new records, without repetitions.

        Returns:
            The run as it ended, which is not stored yet.

        Raises:
            InstanceError: The instance is gone, or cannot be reached any more; stored as lost.
            RemoteCommandError: It answers, and cannot be asked for the state of the run.
        """
        failed = 0
        while True:
            try:
                connection = self.connect(member)
                if self._store_stream(connection, run, handle) and self.trusts_records:
                    return replace(run, state=RunState.DONE, exit_status=0)
                answer = connection.check(f"{JOB} state {folder_of(run)}")
                state, exit_status = parse_job_state(answer, run.instance_id)
            except UnreachableError as error:
                if not self.managed.is_ending():
                    message = f"{error.message}; reconnecting"
                    self.managed.emit(Warned(message=message, instance_id=run.instance_id))
                self.reconnect(member, run)
                continue
            except RemoteCommandError as error:
                failed += 1
                if failed > FAILED_FOLLOWS:
                    raise
                log.warning("%s: following %s failed: %s", run.instance_id, run.run_id, error.message)
                self.managed.clock.sleep(RECONNECT_ROUND_S)
                continue
            if state != "running":
                ended = RunState.DONE if exit_status == 0 else RunState.FAILED
                return replace(run, state=ended, exit_status=exit_status)

    def stream_log(self, member: Member, run: Run) -> Iterator[bytes]:
        """Yield what the program of a run prints, in pieces, until it has ended.

        Raises:
            UnreachableError: The connection broke.
        """
        return self.connect(member).stream(log_command(run, follow=True))

    def fetch_results(self, member: Member, run: Run, kept: KeptFiles) -> Run:
        """Download the log and the files that the recipe keeps; store how the run ended.

        What should have been downloaded and was not is noted in `managed.results_left`, for the one who
        terminates the instance.
        """
        paths, clock = self.managed.store.paths, self.managed.clock
        try:
            folder = paths.make_folder(paths.run(run.run_id))
            connection = self.connect(member)
            connection.fetch_files(folder_of(run), ["log", LOG_TIMES, RECORDS], folder)
            self._fetch_kept(connection, run, kept)
        except DlcloudError as error:
            self._leave_results(run, error.message)
        ended = replace(run, ended_at=clock.now())
        self.managed.store.runs.end(run.run_id, ended.state, ended.exit_status, clock.now())
        return ended

    def _fetch_kept(self, connection: Connection, run: Run, kept: KeptFiles) -> None:
        """Download what the program wrote, of what the recipe keeps; emit where it is, and what is not."""
        selection = kept.select(self._written(connection, run, kept))
        folder = self.managed.store.paths.run_files(run.run_id)
        fetched = connection.fetch_listed(f"{folder_of(run)}/work", selection.sizes, folder)
        if fetched.paths:
            mib = sum(path.stat().st_size for path in fetched.paths) / MIB
            size = f" ({mib:,.0f} MiB)" if mib >= 1 else ""
            message = f"{len(fetched.paths)} file(s) downloaded to {folder}{size}"
            self.managed.emit(Info(message=message, instance_id=run.instance_id))
        if selection.unmatched and not self.any_may_keep:
            message = nothing_kept(selection.unmatched)
            self.managed.emit(Warned(message=message, instance_id=run.instance_id))
        if selection.too_large:
            largest = ", ".join(
                f"{printable(name)} {size / GIB:.2f} GiB" for name, size in selection.largest_folders
            )
            limit = f"more than {kept.limit / GIB:g} GiB are not downloaded unless keep.files names them"
            count = len(selection.too_large)
            self._leave_results(run, f"{count} file(s): {limit}; the largest are {largest}")
        if fetched.left:
            reasons = "; ".join([*dict.fromkeys(fetched.left.values())][:MOST_REASONS])
            self._leave_results(run, f"{len(fetched.left)} file(s): {reasons}")

    def _leave_results(self, run: Run, reason: str) -> None:
        """Note and emit that an instance has results which were not downloaded."""
        folder = f"{folder_of(run)}/work"
        if not self.any_may_keep:
            self.managed.results_left[run.instance_id] = ResultsLeft(folder=folder, reason=reason)
        message = f"not downloaded from {folder}: {reason}"
        self.managed.emit(Warned(message=message, instance_id=run.instance_id))

    def not_downloaded(self, connection: Connection, run: Run, kept: KeptFiles) -> dict[str, int]:
        """Return the files of a run that the recipe keeps and that are not here, with their bytes.

        Raises:
            DlcloudError: The instance does not answer.
        """
        selection = kept.select(self._written(connection, run, kept))
        folder = self.managed.store.paths.run_files(run.run_id)
        expected = {**selection.sizes, **selection.too_large}
        return {name: size for name, size in expected.items() if not _is_here(folder / name, size)}

    def _written(self, connection: Connection, run: Run, kept: KeptFiles) -> list[Written]:
        listing = f"{JOB} written {folder_of(run)} {shlex.join(kept.skipped_folders)}"
        return parse_written(connection.check(listing), run.instance_id)

    def error_of(self, run: Run, program: str) -> RemoteCommandError:
        """Return the error for a run that failed, with the end of its log."""
        tail = log_tail(self.managed.store.paths.run_log(run.run_id))
        # Where the harness says how its command ended, its own status says nothing.
        how = "failed" if HARNESS_FAILURE.search(tail) else f"ended with status {run.exit_status}"
        return RemoteCommandError(
            f"{run.instance_id}: {program} {how}:\n{tail}", f"the whole log: dlcloud logs {run.run_id}"
        )

    def connect(self, member: Member, wait_s: float = 0.0) -> Connection:
        return self.managed.connect(member.instance, wait_s)

    def _store_stream(self, connection: Connection, run: Run, handle: RecordHandler) -> bool:
        """Store the records that come; True if the last one says that all is well."""
        runs, is_well = self.managed.store.runs, False
        begin = runs.stored_bytes(run.run_id)
        chunks = connection.stream(f"{JOB} follow {folder_of(run)} {RECORDS} {begin}")
        for position, lines in whole_lines(chunks, begin):
            records = runs.add_records(run.run_id, position, lines)
            handle(records)
            is_well = bool(records) and is_good_end(records[-1])
        return is_well

    def reconnect(self, member: Member, run: Run | None = None) -> None:
        """Dial until the instance answers or is gone; a reclaimed one is not dialled for long.

        Raises:
            LostInstanceError: It is gone; `run`, if there is one, is stored as lost.
        """
        instance_id = member.instance.instance_id
        error = wait_until(
            lambda: self._dial_error(member),
            lambda error: error is None or not self.is_alive(instance_id),
            clock=self.managed.clock,
            timeout_s=RECONNECT_WAIT_S,
            poll_s=0,
        )
        if error is not None:
            stored = ""
            if run is not None:
                self.managed.store.runs.end_lost(run.run_id, self.managed.clock.now())
                stored = f"; what {run.run_id} had reported is stored"
            how = self._end_of(instance_id)
            raise LostInstanceError(f"{instance_id} {how}{stored} ({error.message})") from error

    def _dial_error(self, member: Member) -> UnreachableError | None:
        try:
            self.connect(member, wait_s=RECONNECT_ROUND_S)
        except UnreachableError as error:
            return error
        return None

    def _end_of(self, instance_id: str) -> str:
        """Return how an instance that is gone has ended."""
        try:
            instance = self.managed.describe_instances().get(instance_id)
        except CloudError:
            instance = None
        is_reclaimed = instance is not None and instance.interrupted
        return "was reclaimed by EC2 (a spot interruption)" if is_reclaimed else "is gone"

    def is_alive(self, instance_id: str) -> bool:
        """True unless EC2 says that an instance is shutting down, terminated or unknown."""
        try:
            instance = self.managed.describe_instances().get(instance_id)
        except CloudError as error:
            # Where EC2 cannot be asked either, it is our own network that is down, and may come back.
            log.warning("cannot ask whether %s still lives: %s", instance_id, error.message)
            return True
        return instance is not None and instance.alive


def start_job(
    connection: Connection,
    folder: str,
    environment: JobEnvironment,
    layout: Mapping[str, object] | None = None,
) -> None:
    """Start the job of a folder on an instance; its environment goes through the connection to its memory."""
    if environment or layout:
        connection.check(f"{JOB} start {folder} -", stdin=environment.encode(layout))
    else:
        connection.check(f"{JOB} start {folder}")


def whole_lines(chunks: Iterable[bytes], position: int) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines of a stream, several at a time, with the position of the first.

    A line longer than LONGEST_LINE is left out: no record is that long, and memory stays bounded.
    """
    pending: list[bytes] = []
    is_cut = False
    for chunk in chunks:
        head, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            pending.append(chunk)
            if sum(map(len, pending)) > LONGEST_LINE:
                position += sum(map(len, pending))
                pending, is_cut = [], True
            continue
        lines = b"".join([*pending, head, newline])
        if is_cut:
            end, _, lines = lines.partition(b"\n")
            position += len(end) + 1
        if lines:
            yield position, lines
        position += len(lines)
        pending, is_cut = [rest], False


def parse_job_state(answer: bytes, instance_id: str) -> tuple[str, int | None]:
    """Return the state of a job (new, running, ended or lost), and its exit status once it has ended.

    Raises:
        RemoteCommandError: The instance answers nothing of the kind.
    """
    try:
        status = parse_json(answer.decode("utf-8", "replace"))
        state, exit_status = status["state"], status.get("exit_status")
    except (ValueError, TypeError, KeyError, AttributeError):
        state = exit_status = None
    is_status = exit_status is None or (type(exit_status) is int and abs(exit_status) <= LARGEST_STATUS)
    if not isinstance(state, str) or state not in JOB_STATES or not is_status:
        raise RemoteCommandError(f"{instance_id}: unexpected job status: {answer[:200]!r}")
    return state, exit_status


def parse_written(answer: bytes, instance_id: str) -> list[Written]:
    """Return the files that `templates/job.py written` lists.

    Raises:
        RemoteCommandError: The instance answers nothing of the kind, or lists too many.
    """
    try:
        listed = [
            Written(name=name, size=size, other=other)
            for name, size, other in json.loads(answer)  # names as they are: the files are requested by them
        ]
    except (ValueError, TypeError, RecursionError):
        listed = [Written(name="", size=-1)]
    is_text = all(isinstance(file.name, str) and isinstance(file.other, str) for file in listed)
    if not is_text or not all(type(file.size) is int and file.size >= 0 for file in listed):
        raise RemoteCommandError(f"{instance_id}: unexpected list of files: {answer[:200]!r}")
    if len(listed) > MOST_FILES:
        message = f"{instance_id}: the run wrote {len(listed)} files; at most {MOST_FILES} are downloaded"
        raise RemoteCommandError(message, "write them as one archive")
    return listed


def _is_here(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def folder_of(run: Run) -> str:
    """Return a run's folder on its instance, below the login's home."""
    return shlex.quote(f"{FOLDER}/runs/{run.run_id}")


def log_tail(path: Path) -> str:
    """Return the last lines of a stored log, repeated ones once, without progress; empty without a log."""
    if not path.exists():
        return ""
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
        lines = printable(log.read().decode("utf-8", "replace")).splitlines()
    lines = [line for line in lines if not HARNESS_PROGRESS.match(line)]
    return "\n".join([*dict.fromkeys(lines)][-LOG_TAIL_LINES:])


def nothing_kept(patterns: Sequence[str]) -> str:
    """Return the warning that no file was there for some patterns."""
    return f"no file that the run wrote matches {', '.join(patterns)} (keep.files)"


def log_command(run: Run, *, follow: bool, tail: int | None = None, since_s: int | None = None) -> str:
    """Return the command that prints a run's log on its instance.

    Args:
        run: The run.
        follow: Print until it has ended.
        tail: Only the last lines; with `follow`, these first.
        since_s: Only what was printed in this many seconds, to some seconds; with `follow`, this first.
    """
    if since_s is not None:
        times = f"cat {folder_of(run)}/{LOG_TIMES} 2>/dev/null"
        newest = f"awk -v t=$(( $(date +%s) - {since_s} )) '$1 <= t {{s = $2}} END {{print s + 0}}'"
        begin = f"$({times} | {newest})"
        if follow:
            return f"{JOB} follow {folder_of(run)} log {begin}"
        return f"tail -c +$(( {begin} + 1 )) {folder_of(run)}/log"
    log = f"{folder_of(run)}/log"
    last = f"tail -n {tail} {log}"
    if not follow:
        return f"cat {log}" if tail is None else last
    begin = "0" if tail is None else f"$(( $(wc -c < {log}) - $({last} | wc -c) ))"
    return f"{JOB} follow {folder_of(run)} log {begin}"
