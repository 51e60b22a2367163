"""A worker's membership in its run: the coordinator, the participants of a step, and when to wait."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .checkpoint import Checkpoints
from .control import Control, ControlFile
from .coordination.fence import CommitDecision, CommitVerdict, check_history, check_size
from .coordination.ledger import LedgerReporter
from .coordination.quorum import NoQuorumError
from .drain import Drain
from .engine import Connect, Engine, QuorumMember
from .event_names import EventName
from .job import TrainingState
from .records import Records
from .settings import ledger_address

HOLD_S = 0.25
"""Between two attempts while a worker may not commit."""


class AlreadyDoneError(SystemExit):
    """The run was done before this worker came; ends its script with status 0."""

    def __init__(self) -> None:
        super().__init__(0)


@dataclass(slots=True, kw_only=True)
class Membership:
    """Agrees with the other workers on each step.

    Attributes:
        coordinator: `HOST:PORT` of the lighthouse; empty for a worker that trains alone.
        connect_to: Returns the `connect` of another coordinator, given its `HOST:PORT`.
        engine: The connection to the others; None before the first one and between two.
        previous: This worker's place in the step before.
        announced: Workers that have announced that they leave after the last step.
        waiting: Why this worker waits; empty while it trains.
    """

    state: TrainingState
    checkpoints: Checkpoints
    control: ControlFile
    records: Records
    reporter: LedgerReporter
    drain: Drain
    connect: Connect
    connect_to: Callable[[str], Connect] | None = None
    coordinator: str = ""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    engine: Engine | None = field(default=None, init=False)
    previous: QuorumMember | None = field(default=None, init=False)
    announced: int = field(default=0, init=False)
    waiting: str = field(default="", init=False)
    _has_asked: bool = field(default=False, init=False)  # for the next step: the others count on it
    _is_proven: bool = field(default=False, init=False)  # the ledger allows to train on this state

    def read_control(self) -> Control:
        """Read what the controller wants; it may ask this worker to leave."""
        control = self.control.read()
        self._record_once(EventName.CONTROL, self.control.fault or "")
        if control.drain:
            self.drain.request(control.drain)
        return control

    def follow(self, control: Control) -> bool:
        """Turn to a new coordinator, with the state that is here; False if it is the same one, or not yet."""
        if self._has_asked or not self._has_moved() or control.coordinator is None or self.connect_to is None:
            return False
        self.disconnect()
        self.coordinator, self.connect = control.coordinator, self.connect_to(control.coordinator)
        self.reporter.redirect(ledger_address(control.coordinator))
        cause = f"{control.coordinator} has taken over"
        self.records.event(EventName.COORDINATOR, cause, step=self.state.step, generation=control.generation)
        return True

    def ask(self, engine: Engine) -> None:
        """Ask for the next step before this worker is ready, unless it is to follow a new coordinator."""
        if not self._has_moved():
            self._has_asked = True
            engine.ask()

    def agree(self, control: Control) -> tuple[Engine, QuorumMember] | None:
        """Agree on the participants of the next step; None: try again."""
        engine = self.engine or self._connect()
        member = None if engine is None else self._begin(engine)
        self._has_asked = False
        if engine is None or member is None or not self._may_commit(engine, member, control):
            return None
        return engine, member

    def is_unchanged(self, member: QuorumMember) -> bool:
        """True if the step before had the same workers, so that no newcomer is fetching state."""
        return self.previous is not None and member.quorum == self.previous.quorum

    def distrust(self) -> None:
        """Ask the ledger again before the next commit: other workers may have gone on meanwhile."""
        self._is_proven = False

    def disconnect(self) -> None:
        """Let the others continue without this worker."""
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.close()

    def _has_moved(self) -> bool:
        return self.control.read().coordinator not in {None, self.coordinator}

    def _connect(self) -> Engine | None:
        self._is_proven = False
        try:
            self.engine = self.connect(self.state.step, self.state.load, self.state.save)
        except NoQuorumError as error:
            self._record_once(EventName.NO_QUORUM, str(error))
            self.sleep(HOLD_S)
        return self.engine

    def _begin(self, engine: Engine) -> QuorumMember | None:
        started_at = self.clock()
        try:
            # An interrupted wait returns None: no other worker came for a while.
            with self.drain.interruptible(self._has_moved):
                member = engine.begin()
                if member is None:
                    # The others may have continued without this worker, even to the end.
                    self._is_proven = False
                else:
                    self._note_change(member, engine.step, self.clock() - started_at)
                return member
        except NoQuorumError as error:
            # Others may have ended the run meanwhile.
            self._is_proven = False
            self._record_once(EventName.NO_QUORUM, str(error))
            self.sleep(HOLD_S)
        return None

    def _note_change(self, member: QuorumMember, step: int, seconds: float) -> None:
        before, size = self.previous, member.size
        if member.healed:
            seconds = round(seconds, 3)
            self.records.event(
                EventName.HEALED, "state from a live peer", step=step, seconds=seconds, size=size
            )
        if before is None:
            self.records.event(EventName.JOINED, "agreed with the others", step=step, size=size)
        elif size < before.size:
            self._note_departures(before.size - size, member.left - before.left, step=step, size=size)

    def _note_departures(self, gone: int, departed: int, *, step: int, size: int) -> None:
        """Record the workers that are gone: those that left without a last step, and those that are lost."""
        unannounced = max(min(gone, departed) - self.announced, 0)
        if unannounced:
            self.records.event(EventName.LEAVING_SEEN, "between two steps", step=step, workers=unannounced)
        lost = gone - self.announced - unannounced
        if lost > 0:
            self.records.event(EventName.LOST, "no sign of life", step=step, workers=lost, size=size)
        self.announced = 0

    def _may_commit(self, engine: Engine, member: QuorumMember, control: Control) -> bool:
        """True if this worker may commit the step; waits a moment if it may not yet.

        Raises:
            AlreadyDoneError: The run is done.
        """
        decision = check_size(member.size, control.minimum)
        if decision.verdict is not CommitVerdict.GO or not self._is_proven:
            history = check_history(engine.step, self.reporter.read(), control.least)
            # Where the run is done, no other worker will come.
            if decision.verdict is CommitVerdict.GO or history.verdict is CommitVerdict.END:
                decision = history
        if decision.verdict is CommitVerdict.GO:
            self._is_proven, self.waiting = True, ""
            return True
        engine.commit(agreed=False)
        if decision.verdict is CommitVerdict.END:
            self.records.event(EventName.DONE, decision.reason, step=engine.step)
            raise AlreadyDoneError
        self._hold(engine, member, decision)
        return False

    def _hold(self, engine: Engine, member: QuorumMember, decision: CommitDecision) -> None:
        """Wait for other workers, on a checkpoint."""
        self._is_proven = False
        self.previous = member
        self._record_once(EventName.HOLD, decision.reason)
        if engine.step > self.checkpoints.saved:
            self.checkpoints.save_soon()
        self.sleep(HOLD_S)

    def _record_once(self, event: EventName, cause: str) -> None:
        """Record a condition when it begins, not at every attempt."""
        if cause and cause != self.waiting:
            self.records.event(event, cause, step=self.state.step)
            self.waiting = cause
