"""The agent of an instance: runs its workers, watches for interruptions, and lets the workers leave in time.

    python3 -m trainer.agent --run RUN --worker NAME --coordinator HOST --folder DIR -- python3 script.py ...

On the coordinator `--lighthouse` is added: the agent runs the lighthouse, too. All files are in the folder:
`records.jsonl` (see `records.py`), `control.json` (see `settings.py`; the controller writes it),
`checkpoints/` and `ledger.json`. SIGTERM lets the workers leave after their step, as an interruption notice
and the control file's `drain` do. The exit status is 0 when the run is done, 10 when the workers have left
because they were asked to, 1 when a worker failed for good.

`OrphanWatch` counts how long the instance has heard nothing of its coordinator or controller. After a while a
standby runs the program that takes the control over (`Successor`): it decides, by what EC2 says, whether this
instance does. If no instance takes over, the instance ends itself (`power_off`): else only its budget would.
"""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from .coordination.ledger import LedgerClient, LedgerError, WrongRunError
from .drain import DRAINED
from .instance.notices import POLL_S, MetadataClient, MetadataError, NoticeTracker, SpotStatus
from .instance.options import Options, parse, promote
from .instance.processes import SupervisedProcess, make_lighthouse, make_workers
from .records import EventName, Records, log_to_stderr
from .settings import Control, ControlFile, ledger_address

TICK_S = 0.1
LEDGER_S = 1.0
STALL_S = 120.0
"""If the workers of this instance have failed for good, its lighthouse stops serving the others after this
long without a committed step."""
LINGER_S = 10.0
"""How long the lighthouse continues after the run is done, for workers that are about to end."""


def main(argv: Sequence[str] | None = None) -> int:
    """Supervise until the run is done or this instance has to go."""
    options = parse(argv)
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "records.jsonl"
    with Records(path=path, run=options.run, worker=options.worker, log=log_to_stderr) as records:
        agent = Agent(
            options=options,
            records=records,
            workers=make_workers(options, records),
            lighthouse=make_lighthouse(options, records) if options.lighthouse else None,
            fetch_status=MetadataClient(options.metadata).fetch,
            make_lighthouse=lambda control: make_lighthouse(promote(options, control), records),
            power_off=partial(power_off, options.folder),
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _frame: agent.ask_to_leave(signal.Signals(number).name))
        status = agent.run()
        records.end(status=status)
    return status


@dataclass(slots=True, kw_only=True)
class Agent:
    """Supervises the processes of an instance.

    Args:
        lighthouse: On the coordinator.
        make_lighthouse: Makes the lighthouse of an instance that replaces a lost coordinator.
        power_off: Ends the instance; called only with `--end-alone-after`.
    """

    options: Options
    records: Records
    workers: Sequence[SupervisedProcess]
    lighthouse: SupervisedProcess | None
    fetch_status: Callable[[], SpotStatus]
    make_lighthouse: Callable[[Control], SupervisedProcess] | None = None
    power_off: Callable[[], None] | None = None
    poll_s: float = POLL_S
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _statuses: "queue.Queue[SpotStatus | Exception]" = field(default_factory=queue.Queue, init=False)
    _notices: NoticeTracker = field(default_factory=NoticeTracker, init=False)
    _control: ControlFile = field(init=False)
    _leave_cause: str | None = field(default=None, init=False)
    _fault: str = field(default="", init=False)
    _metadata_faults: set[str] = field(default_factory=set, init=False)  # their kinds, since the last answer
    _poller: threading.Thread = field(init=False)
    _ledger_at: float = field(default=0.0, init=False)
    _is_done: bool = field(default=False, init=False)
    _step: int = field(default=0, init=False)
    _stepped_at: float = field(default=0.0, init=False)
    _orphan: "OrphanWatch | None" = field(default=None, init=False)
    _orphaned_at: float | None = field(default=None, init=False)
    _ledger: str = field(default="", init=False)
    _successor: "Successor" = field(init=False)

    def ask_to_leave(self, cause: str) -> None:
        """Leave after this step, the lighthouse included."""
        self._leave_cause = self._leave_cause or cause

    def run(self) -> int:
        """Supervise; return the exit status. No process is left behind."""
        self._control = ControlFile(self.options.folder / "control.json")
        self._ledger = self.options.ledger_address
        self._successor = Successor(program=self.options.successor, records=self.records)
        self._start_poller()
        self._start_orphan_watch()
        try:
            while not self._is_over():
                self._tick()
                self.sleep(TICK_S)
            self._linger()
            return self._exit_status()
        finally:
            for process in self._processes():
                process.close()
            if self._orphaned_at is not None and self.power_off is not None:
                self.power_off()

    def _tick(self) -> None:
        now = self.clock()
        while not self._statuses.empty():
            self._handle_answer(self._statuses.get())
        if not self._poller.is_alive():
            self._record_once("thread", "the thread that polls the metadata service ended; starting it again")
            self._start_poller(wait_s=self.poll_s)
        self._read_control()
        self._drain_in_time()
        self._end_orphan(now)
        alone_s = 0.0 if self._orphan is None else self._orphan.alone_s
        self._successor.poll(alone_s, now, coordinates=self.lighthouse is not None)
        for process in self._processes():
            process.poll(now)
        if self.lighthouse is not None and self.options.engine == "elastic" and now >= self._ledger_at:
            self._ledger_at = now + LEDGER_S
            self._read_ledger(now)

    def _is_over(self) -> bool:
        """True if nothing is left to do: the lighthouse serves the others until the run is done."""
        if not all(worker.has_ended for worker in self.workers):
            return False
        # Torchrun's workers end together: their store is of no more use then.
        has_served = self.lighthouse is None or self.lighthouse.has_ended or self.options.engine == "torchrun"
        return has_served or self._leave_cause is not None or self._is_done or self._is_useless()

    def _exit_status(self) -> int:
        statuses = {worker.status for worker in self.workers}
        if statuses - {0, DRAINED} or (self.lighthouse is not None and self.lighthouse.has_ended):
            return 1
        has_left = self._leave_cause is not None and not self._is_done
        return DRAINED if DRAINED in statuses or has_left else 0

    def _handle_answer(self, answer: SpotStatus | Exception) -> None:
        if isinstance(answer, SpotStatus):
            if self._metadata_faults:
                self.records.event(EventName.METADATA, "the metadata service answers again")
            self._metadata_faults.clear()
            self._handle_status(answer)
        elif isinstance(answer, MetadataError):
            self._record_once("service", str(answer))
            self._handle_status(answer.partial)
        else:
            self._record_once("client", f"the metadata client failed: {answer!r}")

    def _record_once(self, kind: str, cause: str) -> None:
        """Record the first fault of a kind since the metadata service last answered."""
        if kind not in self._metadata_faults:
            self.records.event(EventName.METADATA, cause)
        self._metadata_faults.add(kind)

    def _handle_status(self, status: SpotStatus) -> None:
        if cause := self._notices.note_interruption(status):
            deadline = _isoformat(self._notices.deadline)
            self.records.event(EventName.NOTICE, cause, action=status.action, deadline=deadline)
        if cause := self._notices.note_rebalance(status):
            self.records.event(EventName.REBALANCE, cause, since=_isoformat(status.rebalance))
            if self.options.drain_on_rebalance:
                self._drain(cause)

    def _read_control(self) -> None:
        control = self._control.read()
        fault = self._control.fault or ""
        if fault and fault != self._fault:
            self.records.event(EventName.CONTROL, fault)
        self._fault = fault
        if control.coordinator:
            self._ledger = ledger_address(control.coordinator)
        is_promoted = control.coordinator and control.coordinates and self.lighthouse is None
        if is_promoted and self.make_lighthouse is not None:
            self.lighthouse = self.make_lighthouse(control)
        if control.drain:
            self._drain(control.drain)

    def _drain_in_time(self) -> None:
        """Let the workers leave before the deadline of a notice, and kill those that have not left."""
        deadline = self._notices.deadline
        if deadline is not None:
            left = deadline - datetime.now(UTC)
            if left <= timedelta(seconds=self.options.margin_s):
                self._drain("interruption notice")
            has_workers = not all(worker.has_ended for worker in self.workers)
            if left <= timedelta(seconds=self.options.last_s) and has_workers:
                # Peers notice the end of a process immediately, that of a machine much later.
                for worker in self.workers:
                    worker.kill()
        if self._leave_cause is not None:
            self._drain(self._leave_cause)

    def _drain(self, cause: str) -> None:
        workers = [worker for worker in self.workers if not worker.is_leaving and not worker.has_ended]
        if workers:
            self.records.event(EventName.DRAIN, cause, deadline=_isoformat(self._notices.deadline))
        for worker in workers:
            worker.ask_to_leave()

    def _start_orphan_watch(self) -> None:
        if self.options.end_alone_s is not None:
            self._orphan = OrphanWatch(
                run=self.options.run,
                ledger=lambda: self._ledger,
                control=self.options.folder / "control.json",
                limit_s=self.options.end_alone_s,
            )
            self._orphan.start()

    def _end_orphan(self, now: float) -> None:
        """Let the workers of an orphan leave, and kill those that have not."""
        if self._orphan is None or not self._orphan.is_orphan:
            return
        if self._orphaned_at is None:
            self._orphaned_at = now
            cause = f"neither coordinator nor controller for {self.options.end_alone_s:g} s"
            self.records.event(EventName.ORPHANED, cause)
            self.ask_to_leave(cause)
        if now - self._orphaned_at > self.options.margin_s:
            for worker in self.workers:
                worker.kill()

    def _linger(self) -> None:
        """Keep the lighthouse for a moment, for workers that are about to end."""
        until = self.clock() + LINGER_S
        while self.lighthouse and self._is_done and self._leave_cause is None and self.clock() < until:
            self.lighthouse.poll(self.clock())
            self.sleep(TICK_S)

    def _read_ledger(self, now: float) -> None:
        try:
            entry = LedgerClient(address=self._ledger, run=self.options.run).read()
        except LedgerError:
            return
        self._is_done = self._is_done or entry.done
        if entry.step != self._step:
            self._step, self._stepped_at = entry.step, now

    def _is_useless(self) -> bool:
        """True if the workers here failed for good and no other trains."""
        if not any(worker.status not in {None, 0, DRAINED} for worker in self.workers):
            return False
        return self._step == 0 or self.clock() - self._stepped_at > STALL_S

    def _start_poller(self, wait_s: float = 0.0) -> None:
        self._poller = threading.Thread(
            target=self._poll_metadata, args=(wait_s,), name="metadata", daemon=True
        )
        self._poller.start()

    def _poll_metadata(self, wait_s: float) -> None:
        time.sleep(wait_s)
        while True:
            try:
                self._statuses.put(self.fetch_status())
            except Exception as error:  # noqa: BLE001 - without this thread no notice is ever seen
                self._statuses.put(error)
            time.sleep(self.poll_s)

    def _processes(self) -> list[SupervisedProcess]:
        return [*([self.lighthouse] if self.lighthouse else []), *self.workers]


def _isoformat(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


MARK = "power-off"
"""The file by which a program in a container asks for the end of its instance."""

LOOK_S = 10.0
"""Between two looks."""

MOST_LOOK_S = 60.0
"""A longer time between two is a pause of this machine: its rest does not count."""


@dataclass(slots=True, kw_only=True)
class OrphanWatch:
    """Counts the time without a sign of coordinator or controller, from a thread.

    Args:
        ledger: Returns the present address of the coordinator's ledger.
        control: The control file; the controller writes it, and touches it while there is no coordinator.
        limit_s: After so long the instance is an orphan.
    """

    run: str
    ledger: Callable[[], str]
    control: Path
    limit_s: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _alone_s: float = field(default=0.0, init=False)
    _stamp: int = field(default=-1, init=False)

    @property
    def alone_s(self) -> float:
        """Seconds since the last sign."""
        return self._alone_s

    @property
    def is_orphan(self) -> bool:
        return self._alone_s >= self.limit_s

    def start(self) -> None:
        threading.Thread(target=self._watch, name="orphan", daemon=True).start()

    def look(self, seconds: float) -> None:
        """Look for a sign, this many seconds after the last look."""
        self._alone_s += min(seconds, MOST_LOOK_S)
        if self._has_changed() or self._has_coordinator():
            self._alone_s = 0.0

    def _watch(self) -> None:
        before = self.clock()
        while True:
            self.sleep(LOOK_S)
            now = self.clock()
            self.look(now - before)
            before = now

    def _has_changed(self) -> bool:
        try:
            stamp = self.control.stat().st_mtime_ns
        except OSError:
            return False
        before, self._stamp = self._stamp, stamp
        return stamp != before

    def _has_coordinator(self) -> bool:
        try:
            LedgerClient(address=self.ledger(), run=self.run).read()
        except (LedgerError, WrongRunError):
            return False
        return True


def power_off(folder: Path) -> None:
    """End this instance, which is terminated at shutdown; in a container, by what supervises the run outside.

    Args:
        folder: Of the run. A file `power-off` in it asks for the shutdown once this program has ended.
    """
    words = ["systemctl", "--no-wall", "poweroff", "-i"]  # -i: whatever program locks it
    try:
        done = subprocess.run(words if os.geteuid() == 0 else ["sudo", "-n", *words], check=False)
    except FileNotFoundError:
        done = None
    if done is None or done.returncode:
        (folder / MARK).touch()


ALONE_S = 30.0
"""Without a coordinator for this long an instance that stands by tries to take over. A lighthouse that ended
is started again within a second, and a machine that is paused by its host comes back within a few."""

RETRY_S = 30.0
KILLED = "137"

NAMES, PREFIX = "DLCLOUD_SECRETS", "DLCLOUD_SECRET_"
"""The variable with the names of a program's secrets, and how a controller calls these."""

INHERITED = (
    *("HOME", "LANG", "LOGNAME", "PATH", "TMPDIR", "USER", "XDG_CACHE_HOME"),
    *("AWS_EC2_METADATA_SERVICE_ENDPOINT", "DLCLOUD_ROOT", "DLCLOUD_MINUTE_S"),
)
"""Variables of the instance; the last three are set on the local EC2 only."""


@dataclass(slots=True, kw_only=True)
class Successor:
    """Runs the program of an instance that stands by.

    Args:
        program: It may appear, and be replaced, while the agent runs; None: this instance never stands by.
    """

    program: Path | None
    records: Records
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    _retry_at: float = field(default=0.0, init=False)

    def poll(self, alone_s: float, now: float, *, coordinates: bool) -> None:
        """Start the program if it is due.

        Args:
            alone_s: Seconds since the last sign of coordinator or controller.
            now: Seconds of a monotonic clock.
            coordinates: True if this instance runs the lighthouse.
        """
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._process, self._retry_at = None, now + RETRY_S
        if self.program is None or now < self._retry_at or not self.program.is_file():
            return
        if alone_s >= ALONE_S and not coordinates:
            self._start(self.program, f"no coordinator for {alone_s:.0f} s")
        elif coordinates and self._is_controller_killed(self.program):
            self._start(self.program, "the controller was killed")

    def _start(self, program: Path, cause: str) -> None:
        self.records.event(EventName.TAKE_OVER, cause)
        # Its own session: the end of this agent is not to end it.
        self._process = subprocess.Popen(
            ["sh", str(program.absolute())], env=controller_environment(os.environ), start_new_session=True
        )

    @staticmethod
    def _is_controller_killed(program: Path) -> bool:
        """True if the controller's job began and is gone without having ended itself."""
        folder = program.parents[1] / "runs" / "control"
        try:
            os.kill(int((folder / "pid").read_text()), 0)
        except ProcessLookupError:
            return not (folder / "exit_status").exists() or _status(folder) == KILLED
        except (OSError, ValueError):
            return False
        return _status(folder) == KILLED


def controller_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a controller, from that of a training on the same instance.

    The training's own variables and credentials must not become the controller's; it passes the secrets on to
    the workers that it starts, so it has them under other names.
    """
    secrets = environment.get(NAMES, "").split()
    kept = {name: environment[name] for name in INHERITED if name in environment}
    return kept | {PREFIX + name: environment[name] for name in secrets if name in environment}


def _status(folder: Path) -> str:
    try:
        return (folder / "exit_status").read_text().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
