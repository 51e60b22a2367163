"""The agent of an instance: runs its workers, watches for the end of the instance, lets them leave in time.

    python3 -m trainer.agent --run RUN --worker NAME --coordinator HOST --folder DIR -- python3 script.py ...

On the coordinator `--lighthouse` is added: the agent runs the lighthouse, too. Everything lies in the folder:
`records.jsonl` (what `records.py` says), `control.json` (what `control.py` says, written by the controller),
`checkpoints/` and `ledger.json`. SIGTERM makes the workers leave after their step, as an interruption notice
and the controller's `drain` do. It ends with 0 when the run is done, 10 when it was asked to leave and has, 1
when a worker failed for good.
"""

import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from .agent_options import Options, parse, promoted
from .agent_processes import lighthouse, workers
from .children import Child
from .control import Control, ControlFile
from .drain import DRAINED
from .ledger import LedgerClient, LedgerError
from .notices import POLL_S, Metadata, MetadataError, Sighting, Watch
from .ports import ledger_beside
from .records import Event, Records

TICK_S = 0.1
LEDGER_S = 1.0
LINGER_S = 10.0
"""How long the lighthouse outlives a run that is done, so that nobody is left in the dark."""


def main(argv: Sequence[str] | None = None) -> int:
    """Supervise until the run is done or this instance has to go."""
    options = parse(argv)
    options.folder.mkdir(parents=True, exist_ok=True)
    tell = _tell
    with Records(
        path=options.folder / "records.jsonl", run=options.run, worker=options.worker, tell=tell
    ) as records:
        agent = Agent(
            options=options,
            records=records,
            workers=workers(options, records),
            lighthouse=lighthouse(options, records) if options.lighthouse else None,
            look=Metadata(options.metadata).look,
            promote=lambda wanted: lighthouse(promoted(options, wanted), records),
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _frame: agent.ask_to_leave(signal.Signals(number).name))
        status = agent.run()
        records.end(status=status)
    return status


@dataclass(slots=True, kw_only=True)
class Agent:
    """Watches and supervises.

    Args:
        options: As given.
        records: Told what happens.
        workers: The processes that train.
        lighthouse: On the coordinator.
        promote: Returns the lighthouse of an instance that is to take over from a lost coordinator.
        look: Asks the metadata service.
        poll_s: Seconds between two looks.
        clock, now, sleep: The time, injected for tests.
    """

    options: Options
    records: Records
    workers: Sequence[Child]
    lighthouse: Child | None
    look: Callable[[], Sighting]
    promote: Callable[[Control], Child] | None = None
    poll_s: float = POLL_S
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    sleep: Callable[[float], None] = time.sleep
    _seen: "queue.Queue[Sighting | MetadataError]" = field(default_factory=queue.Queue, init=False)
    _watch: Watch = field(default_factory=Watch, init=False)
    _control: ControlFile = field(init=False)
    _leave: str | None = field(default=None, init=False)
    _quit: bool = field(default=False, init=False)
    _fault: str = field(default="", init=False)
    _blind: bool = field(default=False, init=False)
    _ledger_at: float = field(default=0.0, init=False)
    _done: bool = field(default=False, init=False)
    _ledger: str = field(default="", init=False)

    def ask_to_leave(self, cause: str) -> None:
        """Leave after this step, the lighthouse included."""
        self._leave, self._quit = self._leave or cause, True

    def run(self) -> int:
        """Supervise; no process is left behind."""
        self._control = ControlFile(self.options.folder / "control.json")
        self._ledger = self.options.ledger_address
        threading.Thread(target=self._poll, name="metadata", daemon=True).start()
        try:
            while not self._over():
                self._turn()
                self.sleep(TICK_S)
            self._linger()
            return self._status()
        finally:
            for child in self._children():
                child.close()

    def _turn(self) -> None:
        now = self.clock()
        while not self._seen.empty():
            self._take_note(self._seen.get())
        self._read_control()
        self._mind_the_deadline()
        for child in self._children():
            child.tend(now)
        if self.lighthouse is not None and self.options.engine == "elastic" and now >= self._ledger_at:
            self._ledger_at = now + LEDGER_S
            self._done = self._done or self._run_is_done()

    def _over(self) -> bool:
        """Tell whether nothing is left to do: the lighthouse is for the others, until the run is done."""
        if not all(worker.over for worker in self.workers):
            return False
        # Torchrun's workers end together: what they met at is of no more use then.
        served = self.lighthouse is None or self.lighthouse.over or self.options.engine == "torchrun"
        return served or self._quit or self._done

    def _status(self) -> int:
        statuses = {worker.status for worker in self.workers}
        if statuses - {0, DRAINED} or (self.lighthouse is not None and self.lighthouse.over):
            return 1
        return DRAINED if DRAINED in statuses or (self._quit and not self._done) else 0

    def _take_note(self, seen: Sighting | MetadataError) -> None:
        if isinstance(seen, MetadataError):
            if not self._blind:
                self.records.event(Event.METADATA, str(seen))
            self._blind = True
            return
        if self._blind:
            self.records.event(Event.METADATA, "the metadata service answers again")
        self._blind = False
        if cause := self._watch.interruption(seen):
            self.records.event(Event.NOTICE, cause, action=seen.action, deadline=_text(seen.at))
        if cause := self._watch.rebalance(seen):
            self.records.event(Event.REBALANCE, cause, since=_text(seen.rebalance))
            if self.options.drain_on_rebalance:
                self._drain(cause)

    def _read_control(self) -> None:
        wanted = self._control.read()
        fault = self._control.fault or ""
        if fault and fault != self._fault:
            self.records.event(Event.CONTROL, fault)
        self._fault = fault
        if wanted.coordinator and wanted.coordinates and self.lighthouse is None and self.promote is not None:
            self._ledger = ledger_beside(wanted.coordinator)
            self.lighthouse = self.promote(wanted)
        if wanted.drain:
            self._drain(wanted.drain)

    def _mind_the_deadline(self) -> None:
        """Let the workers leave in time, and end the ones that did not."""
        deadline = self._watch.deadline
        if deadline is not None:
            left = deadline - self.now()
            if left <= timedelta(seconds=self.options.margin_s):
                self._drain("interruption notice")
            if left <= timedelta(seconds=self.options.last_s) and not all(each.over for each in self.workers):
                # A process that ends now is noticed by its peers at once; a machine that is gone, much later.
                for worker in self.workers:
                    worker.kill()
        if self._leave is not None:
            self._drain(self._leave)

    def _drain(self, cause: str) -> None:
        waiting = [worker for worker in self.workers if not worker.asked and not worker.over]
        if waiting:
            self.records.event(Event.DRAIN, cause, deadline=_text(self._watch.deadline))
        for worker in waiting:
            worker.ask_to_leave()

    def _linger(self) -> None:
        """Keep the lighthouse a little for those who are about to end."""
        began = self.clock()
        while self.lighthouse and self._done and not self._quit and self.clock() - began < LINGER_S:
            self.lighthouse.tend(self.clock())
            self.sleep(TICK_S)

    def _run_is_done(self) -> bool:
        try:
            return LedgerClient(address=self._ledger, run=self.options.run).read().done
        except LedgerError:
            return False

    def _poll(self) -> None:
        while True:
            try:
                self._seen.put(self.look())
            except MetadataError as error:
                self._seen.put(error)
            time.sleep(self.poll_s)

    def _children(self) -> list[Child]:
        return [*([self.lighthouse] if self.lighthouse else []), *self.workers]


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
