"""The elastic loop: agree, compute a share, sum, commit; or undo, and agree anew."""

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import torch

from . import checkpoint
from .batches import Turn
from .compute import Compute
from .control import Control, ControlFile
from .drain import Drain, DrainedError
from .engine import Connect, Engine, Member, State
from .errors import NoQuorumError, StrangerError
from .exchange import Sums
from .fence import Gathering, Judgement, Verdict, judge_history, judge_size
from .job import Job
from .ports import ledger_beside
from .posting import Posting
from .records import Event, Records
from .sampler import key
from .settings import Settings

HOLD_S = 0.25
"""Between two looks while a worker may not commit."""

ANNOUNCE_S = 10.0
"""A worker that is to leave takes one more step to announce it only if steps are shorter."""

APART = "the workers have different states: commits that not all of them made"

FAREWELLS = 3
"""Times that workers try to end together before each ends alone."""


class AlreadyDoneError(SystemExit):
    """The run was over before this worker came; ends its script with status 0."""

    def __init__(self) -> None:
        super().__init__(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How training ended.

    Attributes:
        steps: Committed in all.
        first: True for one of the workers only: the one to print and export.
        loss: Of the last step; NaN where none was taken here.
    """

    steps: int
    first: bool
    loss: float


@dataclass(slots=True, kw_only=True)
class _Pace:
    """How long steps take, and what became of the last one."""

    recent: deque[float] = field(default_factory=lambda: deque(maxlen=20))
    committed_at: float = 0.0
    attempts: int = 0
    member: Member | None = None

    def limit_s(self, member: Member, settings: Settings) -> float | None:
        """Return when a step takes too long; None where somebody may be taking state, or nothing is known."""
        timing = settings.timing
        if not self.recent or self.member is None or member.quorum != self.member.quorum:
            return None
        return max(timing.stall_s, timing.stall_factor * median(self.recent))


@dataclass(slots=True, kw_only=True)
class Loop:
    """One worker's training.

    Args:
        job: What is trained.
        settings: Where the others are.
        records: Told what happens.
        connect: Joins the others.
        posting: The ledger.
        drain: Whether to leave.
        elsewhere: Given `HOST:PORT` of another lighthouse, returns what joins the others there.
        clock: Seconds from any start, never backwards.
        sleep: Waits so many seconds.
    """

    job: Job
    settings: Settings
    records: Records
    connect: Connect
    posting: Posting
    drain: Drain = field(default_factory=Drain)
    elsewhere: Callable[[str], Connect] | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _compute: Compute = field(init=False)
    _control: ControlFile = field(init=False)
    _engine: Engine | None = field(default=None, init=False)
    _coordinator: str = field(default="", init=False)
    _pace: _Pace = field(default_factory=_Pace, init=False)
    _writer: checkpoint.Writer | None = field(default=None, init=False)
    _rates: list[float] = field(default_factory=list, init=False)
    _gathering: Gathering = field(default_factory=Gathering, init=False)
    _proven: bool = field(default=False, init=False)
    _leaving: bool = field(default=False, init=False)
    _announced: int = field(default=0, init=False)
    _told: str = field(default="", init=False)
    _saved: int = field(default=0, init=False)
    _saved_at: float = field(default=0.0, init=False)
    _loss: float = field(default=float("nan"), init=False)
    _step: int = field(default=0, init=False)
    _lineage: int = field(default=0, init=False)

    def run(self) -> Outcome:
        """Train until the last step.

        Raises:
            DrainedError: The worker was asked to leave, and has.
            AlreadyDoneError: The run was over before.
            StrangerError: Peers or a checkpoint are of another run, or of other settings.
        """
        self._compute = Compute(self.job, self.settings.run)
        self._control = ControlFile(self.settings.control)
        self._rates = [group["lr"] for group in self.job.optimizer.param_groups]
        if folder := self.settings.checkpoints:
            self._writer = checkpoint.Writer(folder=folder, wrote=self._wrote, failed=self._not_written)
        self._coordinator = (self.settings.lighthouse or "").removeprefix("http://")
        self._resume()
        try:
            self._saved_at = self._pace.committed_at = self.clock()
            return self._train()
        finally:
            self._part()
            if self._writer is not None:
                self._writer.close()
            self.posting.close()

    def _train(self) -> Outcome:
        farewells = 0
        while True:
            wanted = self._look()
            self._follow(wanted)
            if self.drain.cause and not self._may_announce():
                self._leave(self.drain.cause)
            engine = self._engine or self._join()
            member = None if engine is None else self._agree(engine)
            if engine is None or member is None or not self._may_commit(engine, member, wanted):
                continue
            if engine.step < self.job.steps:
                self._take(engine, member, wanted)
            elif self._farewell(engine, member) or (farewells := farewells + 1) == FAREWELLS:
                return self._done(member)

    def _look(self) -> Control:
        """Read what the controller wants."""
        wanted = self._control.read()
        self._tell_once(Event.CONTROL, self._control.fault or "")
        if wanted.drain:
            self.drain.request(wanted.drain)
        return wanted

    def _follow(self, wanted: Control) -> None:
        """Turn to a coordinator that has taken over: with the state that is here, so that nothing is lost."""
        if not self._has_moved() or wanted.coordinator is None or self.elsewhere is None:
            return
        self._part()
        self._coordinator, self.connect = wanted.coordinator, self.elsewhere(wanted.coordinator)
        self.posting.move(ledger_beside(wanted.coordinator))
        self._pace.recent.clear()
        cause = f"{wanted.coordinator} has taken over"
        self.records.event(Event.COORDINATOR, cause, step=self._step, generation=wanted.generation)

    def _has_moved(self) -> bool:
        """Tell whether the controller names another coordinator than the one that is asked."""
        return self._control.read().coordinator not in {None, self._coordinator}

    def _join(self) -> Engine | None:
        """Join the others; None: look again."""
        self._proven = False
        try:
            self._engine = self.connect(self._step, self._load, self._save)
        except NoQuorumError as error:
            self._tell_once(Event.NO_QUORUM, str(error))
            self.sleep(HOLD_S)
        return self._engine

    def _part(self) -> None:
        """Let the others go on without this worker."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _may_announce(self) -> bool:
        """Tell whether to take one more step, in which the others learn that this worker leaves after it."""
        pace = self._pace
        steady = bool(pace.recent) and not pace.attempts and not self._told
        return steady and not self._leaving and median(pace.recent) < ANNOUNCE_S

    def _agree(self, engine: Engine) -> Member | None:
        """Find out who takes part in the next step; None: look again."""
        began = self.clock()
        try:
            # Returns nothing where it is broken off: then nobody came for a while.
            with self.drain.waiting(self._has_moved):
                member = engine.begin()
                if member is None:
                    # Perhaps the others went on without this worker, even to the end.
                    self._proven = False
                else:
                    self._note_change(member, engine.step, self.clock() - began)
                return member
        except NoQuorumError as error:
            # While nothing was heard, others may have ended the run.
            self._proven = False
            self._tell_once(Event.NO_QUORUM, str(error))
            self.sleep(HOLD_S)
        return None

    def _note_change(self, member: Member, step: int, seconds: float) -> None:
        before = self._pace.member
        if member.healed:
            self.records.event(
                Event.HEALED, "state from a live peer", step=step, seconds=round(seconds, 3), size=member.size
            )
        if before is None:
            self.records.event(Event.JOINED, "agreed with the others", step=step, size=member.size)
        elif self._gathering.note((before.quorum, before.size), (member.quorum, member.size), self.clock()):
            self._proven = False
        elif (gone := before.size - member.size) > self._announced:
            lost = gone - self._announced
            self.records.event(Event.LOST, "no sign of life", step=step, workers=lost, size=member.size)
        if before is not None and member.size < before.size:
            self._announced = 0

    def _may_commit(self, engine: Engine, member: Member, wanted: Control) -> bool:
        judged = judge_size(member.size, wanted.minimum)
        if judged.verdict is Verdict.GO:
            judged = self._gathering.judge(member.size, self.clock())
        if judged.verdict is not Verdict.GO or not self._proven:
            history = judge_history(engine.step, self.posting.read(), wanted.least)
            # Where the others have ended the run, nobody will come any more.
            if judged.verdict is Verdict.GO or history.verdict is Verdict.END:
                judged = history
        if judged.verdict is Verdict.GO:
            self._proven, self._told = True, ""
            return True
        engine.commit(agreed=False)
        if judged.verdict is Verdict.END:
            self.records.event(Event.DONE, judged.reason, step=engine.step)
            raise AlreadyDoneError
        self._hold(engine, member, judged)
        return False

    def _hold(self, engine: Engine, member: Member, judged: Judgement) -> None:
        """Wait for others, on a checkpoint."""
        self._proven = False
        self._pace.member = member
        self._tell_once(Event.HOLD, judged.reason)
        if engine.step > self._saved and self._writer is not None:
            self._save_soon(engine.step)
        self.sleep(HOLD_S)

    def _take(self, engine: Engine, member: Member, wanted: Control) -> None:
        """Take a step, or undo it."""
        turn = Turn(engine.step, member.rank, member.size)
        self._pace.attempts += 1
        limit_s = self._pace.limit_s(member, self.settings)
        leaving = self._leaving = self.drain.cause is not None
        if leaving and self._pace.member and member.quorum == self._pace.member.quorum:
            # Nobody takes state from here in this step: that needs a new quorum.
            engine.depart()
        self._pace.member = member
        self._compute.begin(turn, engine.sum, leaving=leaving, lineage=self._lineage)
        summed = engine.wait(limit_s)
        sums = self._compute.sums() if summed else None
        if sums is not None and not sums.kin:
            engine.commit(agreed=False)
            raise StrangerError("a peer trains another run, or this one with other settings; see its script")
        fault = self._fault(turn, member, sums)
        committed = engine.commit(agreed=not fault)
        if sums is None or not committed:
            self._undo(engine, turn, member, fault or "the commit was refused")
            return
        self._lineage = key(self._lineage, turn.step, sums.nonce) >> 31
        if sums.leaving > leaving:
            self._announced = sums.leaving - leaving
            self.records.event(Event.LEAVING_SEEN, "asked to", step=engine.step, workers=self._announced)
        self._update(turn, member, sums.loss, wanted)

    def _fault(self, turn: Turn, member: Member, sums: Sums | None) -> str:
        """Return why a step cannot be committed; empty where it can."""
        if sums is None or sums.workers != member.size:
            return "a worker is gone, or hangs"
        if not sums.united:
            return APART
        if turn.step == 0 and not self.posting.claim(sums.nonce + 1):
            # A worker that the lighthouse found too late may have gone first.
            return "others have begun the run, or the ledger is away"
        return ""

    def _undo(self, engine: Engine, turn: Turn, member: Member, cause: str) -> None:
        """Leave no trace of a step that was not committed."""
        self._compute.undo()
        self._pace.recent.clear()
        self._proven = False
        self.records.event(Event.RETRY, cause, step=turn.step, size=member.size)
        if cause == APART and member.rank > 0:
            # One state must go on, and the one of rank 0 is as good as any.
            engine.forget()
            self._step, self._lineage = 0, 0

    def _update(self, turn: Turn, member: Member, loss: float, wanted: Control) -> None:
        """Apply what was committed, and say so."""
        self._compute.apply()
        for group, rate in zip(self.job.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * (self.job.schedule(turn.step) if self.job.schedule else 1.0)
        if self.job.before_step:
            self.job.before_step()
        self.job.optimizer.step()
        self._step, self._loss = turn.step + 1, loss
        self._tell_ledger(member)
        self._record(turn, member, wanted)
        if self.job.after_step:
            self.job.after_step(self._step, loss)
        # The first one at once: a run that has begun must never be without any.
        due = not self._saved or self.clock() - self._saved_at >= self.settings.checkpoint_s
        if self._writer and due:
            self._save_soon(self._step)

    def _record(self, turn: Turn, member: Member, wanted: Control) -> None:
        now = self.clock()
        seconds, self._pace.committed_at = now - self._pace.committed_at, now
        every = self.settings.hash_every
        digest = self._digest() if every and self._step % every == 0 else None
        self.records.step(
            step=self._step,
            samples=self._compute.samples(turn.step),
            share=self._compute.share(turn),
            loss=self._loss,
            world_size=member.size,
            rank=member.rank,
            quorum=member.quorum,
            generation=wanted.generation,
            attempts=self._pace.attempts,
            lineage=self._lineage,
            seconds=round(seconds, 6),
            hash=digest,
        )
        self._pace.recent.append(seconds)
        self._pace.attempts = 0

    def _digest(self) -> str:
        # Not the lineage: it tells runs apart that come to the same.
        state = self._save()
        return checkpoint.digest_of({name: state[name] for name in ("step", "model", "optimizer")})

    def _tell_ledger(self, member: Member) -> None:
        if member.rank == 0:
            # The first commit must be known before there can be a second start.
            tell = self.posting.now if self._step == 1 else self.posting.soon
            tell(step=self._step)

    def _farewell(self, engine: Engine, member: Member) -> bool:
        """End together, so that one whose last step failed can still take it from a peer."""
        self._pace.member = member
        engine.sum(torch.zeros(1, device=next(self.job.model.parameters()).device))
        agreed = engine.wait(None)
        return engine.commit(agreed=agreed)

    def _done(self, member: Member) -> Outcome:
        if self._writer is not None:
            self._save_soon(self._step)
        self.posting.now(step=self._step, done=True)
        self.records.event(Event.DONE, "the last step is committed", step=self._step)
        return Outcome(steps=self._step, first=member.rank == 0, loss=self._loss)

    def _leave(self, cause: str) -> None:
        """Leave at this boundary; the others are let go first, then the disk is waited for."""
        began = self.clock()
        self._part()
        if self._writer is not None and self._step > self._saved:
            self._save_soon(self._step)
            self._writer.close()
        seconds = round(self.clock() - began, 3)
        self.records.event(Event.DRAINED, cause, step=self._step, seconds=seconds)
        raise DrainedError

    def _resume(self) -> None:
        found = checkpoint.newest(self.settings.checkpoints) if self.settings.checkpoints else None
        if found is not None:
            self._load(found[1])
            self._saved = self._step
            self.records.event(Event.RESUMED, "a checkpoint", step=self._step)

    def _save_soon(self, step: int) -> None:
        if self._writer is not None:
            self._writer.submit(step, checkpoint.copied(self._save()))
            self._saved, self._saved_at = step, self.clock()

    def _wrote(self, step: int, path: os.PathLike[str]) -> None:
        self.records.event(Event.CHECKPOINT, "durable", step=step, path=os.fspath(path))
        if self.settings.durable or self._control.read().coordinates:
            self.posting.soon(checkpoint=step)

    def _not_written(self, step: int, error: OSError) -> None:
        self.records.event(Event.CHECKPOINT_FAILED, str(error), step=step)

    def _save(self) -> State:
        return {
            "fingerprint": self._compute.fingerprint,
            "step": self._step,
            "lineage": self._lineage,
            "model": self.job.model.state_dict(),
            "optimizer": self.job.optimizer.state_dict(),
        }

    def _load(self, state: State) -> None:
        if state.get("fingerprint") != self._compute.fingerprint:
            raise StrangerError(
                "this state is of another run, or of other settings (batch, seed, shards, data set, model)"
            )
        with self.drain.whole():
            self.job.model.load_state_dict(state["model"])
            self.job.optimizer.load_state_dict(state["optimizer"])
            self._step, self._lineage = state["step"], state["lineage"]

    def _tell_once(self, event: Event, cause: str) -> None:
        """Record what lasts when it begins, not every time it is met."""
        if cause and cause != self._told:
            self.records.event(event, cause, step=self._step)
            self._told = cause


def steps_of(samples: int, batch: int, epochs: int) -> int:
    """Return how many steps so many epochs have; each ends with a smaller batch where one is left over."""
    return -(-samples // batch) * epochs
