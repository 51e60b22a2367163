"""The training loop of a worker, and its membership in the run.

Each step: `Membership` agrees with the other workers on who takes part and follows the coordinator; then
`Loop` computes this worker's share, reduces it over all, and commits or rolls back. A step that a worker or a
connection was lost in is rolled back everywhere and taken again. A worker that is asked to leave announces it
with its last step, so that the others do not wait for it. No state is trained on before the ledger has shown
that it is the newest one (`coordination/ledger.py`, the fence).
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import torch

from .batches import WorkerStep
from .checkpoint import Checkpoints
from .compute import Compute, ReducedTotals
from .coordination.ledger import (
    CommitDecision,
    CommitVerdict,
    LedgerReporter,
    WrongRunError,
    check_history,
    check_size,
)
from .coordination.quorum import NoQuorumError
from .drain import Drain, DrainedError
from .engine import Connect, Engine, StepPlace
from .job import TrainingState, WorkerJob
from .records import EventName, History, Records
from .settings import Control, ControlFile, Settings, Timing, ledger_address

ANNOUNCE_S = 10.0
"""A worker that leaves takes one more step to announce it only if steps are shorter."""

DIFFERENT_STATES = "the workers have different states: commits that not all of them made"

FINAL_ATTEMPTS = 3
"""Attempts of the workers to end together, before each ends alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a training.

    Attributes:
        steps: Committed in all.
        first: True for one of the workers only: the one that prints and exports.
        loss: Of the last step; NaN where this worker took none.
    """

    steps: int
    first: bool
    loss: float


@dataclass(slots=True, kw_only=True)
class _Pace:
    """The durations of the last steps, in seconds, and the attempts at the present one."""

    recent: deque[float] = field(default_factory=lambda: deque(maxlen=20))
    committed_at: float = 0.0
    attempts: int = 0

    def limit_s(self, timing: Timing) -> float | None:
        """Time after which a step hangs; None before the first one."""
        return max(timing.stall_s, timing.stall_factor * median(self.recent)) if self.recent else None

    def add(self, now: float) -> float:
        """Count a commit; return the seconds since the one before."""
        seconds, self.committed_at = now - self.committed_at, now
        self.recent.append(seconds)
        self.attempts = 0
        return seconds


@dataclass(slots=True, kw_only=True)
class Loop:
    """The training of one worker.

    Args:
        history: The records of the steps, which `connect` sends to the coordinator.
        connect_to: The same for another coordinator, given its `HOST:PORT`.
    """

    job: WorkerJob
    settings: Settings
    records: Records
    connect: Connect
    reporter: LedgerReporter
    drain: Drain = field(default_factory=Drain)
    history: History = field(default_factory=History)
    connect_to: Callable[[str], Connect] | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _compute: Compute = field(init=False)
    _state: TrainingState = field(init=False)
    _checkpoints: Checkpoints = field(init=False)
    _membership: "Membership" = field(init=False)
    _pace: _Pace = field(default_factory=_Pace, init=False)
    _is_leaving: bool = field(default=False, init=False)
    _loss: float = field(default=float("nan"), init=False)

    def run(self) -> Outcome:
        """Train until the last step.

        Raises:
            DrainedError: The worker was asked to leave, and has.
            AlreadyDoneError: The run was done before.
            WrongRunError: Peers or a checkpoint belong to another run, or to other settings.
        """
        self._prepare()
        self._checkpoints.resume()
        try:
            self._checkpoints.saved_at = self._pace.committed_at = self.clock()
            return self._train()
        finally:
            self._membership.disconnect()
            self._checkpoints.close()
            self.reporter.close()

    def _prepare(self) -> None:
        control = ControlFile(self.settings.control)
        self._compute = Compute(self.job, self.settings.run)
        self._state = TrainingState(self.job, self._compute.fingerprint, self.drain, self.history)
        self._checkpoints = Checkpoints(
            state=self._state,
            settings=self.settings,
            records=self.records,
            control=control,
            reporter=self.reporter,
            clock=self.clock,
        )
        self._membership = Membership(
            state=self._state,
            checkpoints=self._checkpoints,
            control=control,
            records=self.records,
            reporter=self.reporter,
            drain=self.drain,
            connect=self.connect,
            connect_to=self.connect_to,
            coordinator=self.settings.lighthouse or "",
            clock=self.clock,
            sleep=self.sleep,
        )

    def _train(self) -> Outcome:
        attempts = 0
        while True:
            control = self._membership.read_control()
            if self._membership.follow(control):
                self._pace.recent.clear()
            if self.drain.cause and not self._can_announce():
                self._leave(self.drain.cause)
            agreement = self._membership.agree(control)
            if agreement is None:
                continue
            engine, place = agreement
            if engine.step < self.job.steps:
                self._run_step(engine, place, control)
            elif self._final_barrier(engine, place) or (attempts := attempts + 1) == FINAL_ATTEMPTS:
                return self._finish(place)

    def _run_step(self, engine: Engine, place: StepPlace, control: Control) -> None:
        """Compute a step that the workers have agreed on, reduce it, and commit it or roll it back."""
        share = WorkerStep(engine.step, place.rank, place.size)
        is_unchanged = self._membership.is_unchanged(place)
        limit_s = self._pace.limit_s(self.settings.timing) if is_unchanged else None
        self._pace.attempts += 1
        if self.settings.mates > 1:
            # All workers of this instance announce it in the same step, so that they leave together: what
            # counts is what they have agreed on, not when a signal has reached one of them.
            self._is_leaving = place.leaves
            if place.leaves:
                self.drain.request("the workers of this instance leave")
        else:
            self._is_leaving = self.drain.cause is not None
        if self._is_leaving and is_unchanged:
            # No peer fetches state from here in this step: that needs a new quorum.
            engine.depart()
        self._membership.previous = place

        self._compute.begin(share, engine.allreduce, leaving=self._is_leaving, lineage=self._state.lineage)
        totals = self._compute.reduced_totals() if engine.wait(limit_s) else None
        if totals is not None and not totals.same_settings:
            engine.commit(agreed=False)
            raise WrongRunError("a peer trains another run, or this one with other settings; see its script")

        fault = self._find_fault(share, place, totals)
        is_committed = engine.commit(agreed=not fault)
        if totals is None or not is_committed:
            self._roll_back(engine, share, place, fault or "the commit was refused")
            return
        self._state.add_lineage(share.step, totals.nonce)
        if totals.leaving > self._is_leaving:
            leaving = self._membership.announced = totals.leaving - self._is_leaving
            self.records.event(EventName.LEAVING_SEEN, "asked to", step=engine.step, workers=leaving)
        self._finish_step(engine, share, place, control, totals.loss)

    def _find_fault(self, share: WorkerStep, place: StepPlace, totals: ReducedTotals | None) -> str:
        """Return why a step cannot be committed; empty if it can."""
        if totals is None or totals.workers != place.size:
            return "a worker is gone, or hangs"
        if not totals.same_state:
            return DIFFERENT_STATES
        if share.step == 0 and not self.reporter.claim_first_step(totals.nonce + 1):
            # A worker that the lighthouse heard of too late may have committed it.
            return "others have begun the run, or the ledger does not answer"
        return ""

    def _roll_back(self, engine: Engine, share: WorkerStep, place: StepPlace, cause: str) -> None:
        """Leave no trace of a step that was not committed."""
        self._compute.undo()
        self._pace.recent.clear()
        self._membership.distrust()
        self.records.event(EventName.RETRY, cause, step=share.step, size=place.size)
        if cause == DIFFERENT_STATES and place.rank > 0:
            # One state must continue, and that of rank 0 is as good as any.
            engine.reset()
            self._state.reset()

    def _finish_step(
        self, engine: Engine, share: WorkerStep, place: StepPlace, control: Control, loss: float
    ) -> None:
        """Update and report after a commit, while the workers agree on the next step already.

        The record of a step is sent with the request for the next one, so it comes first; a digest in it is
        that of the new state.
        """
        every = self.settings.hash_every
        is_hashed = bool(every) and (share.step + 1) % every == 0
        if is_hashed:
            self._update(share.step, loss)
        self._record(share, place, control, loss, self._state.digest() if is_hashed else None)
        if self._can_announce():
            self._membership.ask(engine)
        if not is_hashed:
            self._update(share.step, loss)
        if self.job.after_step:
            self.job.after_step(self._state.step, loss)
        if self.job.after_commit:
            self.job.after_commit(share, loss)
        if self._checkpoints.is_due():
            self._checkpoints.save_soon()

    def _update(self, step: int, loss: float) -> None:
        """Apply a committed step to model and optimizer."""
        self._compute.apply()
        self._state.set_learning_rates(step)
        if self.job.before_step:
            self.job.before_step()
        self.job.optimizer.step()
        self._state.step, self._loss = step + 1, loss

    def _record(
        self, share: WorkerStep, place: StepPlace, control: Control, loss: float, digest: str | None
    ) -> None:
        """Report a committed step to ledger and records."""
        step = share.step + 1
        if place.rank == 0:
            # The first commit must be known before another start is possible.
            report = self.reporter.report_now if step == 1 else self.reporter.report_soon
            report(step=step)
        attempts, seconds = self._pace.attempts, self._pace.add(self.clock())
        line = self.records.step(
            step=step,
            samples=self._compute.count_samples(share.step),
            share=self._compute.share(share),
            loss=loss,
            world_size=place.size,
            instances=place.instances,
            rank=place.rank,
            quorum=place.quorum,
            generation=control.generation,
            attempts=attempts,
            reduced_bytes=self._compute.reduced_bytes,
            lineage=self._state.lineage,
            parent=self._state.parent,
            seconds=round(seconds, 6),
            hash=digest,
        )
        self.history.add(step, line)

    def _can_announce(self) -> bool:
        """True if this worker can take one more step, in which the others learn that it leaves."""
        pace = self._pace
        is_steady = bool(pace.recent) and not pace.attempts and not self._membership.waiting
        return is_steady and not self._is_leaving and median(pace.recent) < ANNOUNCE_S

    def _leave(self, cause: str) -> None:
        """Leave between two steps: first let the others continue, then wait for the disk."""
        started_at = self.clock()
        self._membership.disconnect()
        if self._state.step > self._checkpoints.saved:
            self._checkpoints.save_soon()
            self._checkpoints.close()
        seconds = round(self.clock() - started_at, 3)
        self.records.event(EventName.DRAINED, cause, step=self._state.step, seconds=seconds)
        raise DrainedError

    def _final_barrier(self, engine: Engine, place: StepPlace) -> bool:
        """End together, so that a worker whose last step failed can still fetch it from a peer."""
        self._membership.previous = place
        engine.allreduce(torch.zeros(1, device=next(self.job.model.parameters()).device))
        agreed = engine.wait(None)
        return engine.commit(agreed=agreed)

    def _finish(self, place: StepPlace) -> Outcome:
        step = self._state.step
        self._checkpoints.save_soon()
        self.reporter.report_now(step=step, done=True)
        self.records.event(EventName.DONE, "the last step is committed", step=step)
        return Outcome(steps=step, first=place.rank == 0, loss=self._loss)


def count_steps(samples: int, batch: int, epochs: int) -> int:
    """Count the steps of this many epochs; an epoch may end with a smaller batch."""
    return -(-samples // batch) * epochs


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
    previous: StepPlace | None = field(default=None, init=False)
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
            engine.ask(leaving=self.drain.cause is not None)

    def agree(self, control: Control) -> tuple[Engine, StepPlace] | None:
        """Agree on the participants of the next step; None: try again."""
        engine = self.engine or self._connect()
        place = None if engine is None else self._begin(engine)
        self._has_asked = False
        if engine is None or place is None or not self._may_commit(engine, place, control):
            return None
        return engine, place

    def is_unchanged(self, place: StepPlace) -> bool:
        """True if the step before had the same workers, so that no newcomer is fetching state."""
        return self.previous is not None and place.quorum == self.previous.quorum

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

    def _begin(self, engine: Engine) -> StepPlace | None:
        started_at = self.clock()
        try:
            # An interrupted wait returns None: no other worker came for a while.
            with self.drain.interruptible(self._has_moved):
                place = engine.begin(leaving=self.drain.cause is not None)
                if place is None:
                    # The others may have continued without this worker, even to the end.
                    self._is_proven = False
                else:
                    self._note_change(place, engine.step, self.clock() - started_at)
                return place
        except NoQuorumError as error:
            # Others may have ended the run meanwhile.
            self._is_proven = False
            self._record_once(EventName.NO_QUORUM, str(error))
            self.sleep(HOLD_S)
        return None

    def _note_change(self, place: StepPlace, step: int, seconds: float) -> None:
        before, size = self.previous, place.size
        if place.healed:
            seconds = round(seconds, 3)
            self.records.event(
                EventName.HEALED, "state from a live peer", step=step, seconds=seconds, size=size
            )
        if before is None:
            self.records.event(EventName.JOINED, "agreed with the others", step=step, size=size)
        elif size < before.size:
            self._note_departures(before.size - size, place.left - before.left, step=step, size=size)

    def _note_departures(self, gone: int, departed: int, *, step: int, size: int) -> None:
        """Record the workers that are gone: those that left without a last step, and those that are lost."""
        unannounced = max(min(gone, departed) - self.announced, 0)
        if unannounced:
            self.records.event(EventName.LEAVING_SEEN, "between two steps", step=step, workers=unannounced)
        lost = gone - self.announced - unannounced
        if lost > 0:
            self.records.event(EventName.LOST, "no sign of life", step=step, workers=lost, size=size)
        self.announced = 0

    def _may_commit(self, engine: Engine, place: StepPlace, control: Control) -> bool:
        """True if this worker may commit the step; waits a moment if it may not yet.

        Raises:
            AlreadyDoneError: The run is done.
        """
        decision = check_size(place.instances, control.minimum)
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
        self._hold(engine, place, decision)
        return False

    def _hold(self, engine: Engine, place: StepPlace, decision: CommitDecision) -> None:
        """Wait for other workers, on a checkpoint."""
        self._is_proven = False
        self.previous = place
        self._record_once(EventName.HOLD, decision.reason)
        if engine.step > self.checkpoints.saved:
            self.checkpoints.save_soon()
        self.sleep(HOLD_S)

    def _record_once(self, event: EventName, cause: str) -> None:
        """Record a condition when it begins, not at every attempt."""
        if cause and cause != self.waiting:
            self.records.event(event, cause, step=self.state.step)
            self.waiting = cause
