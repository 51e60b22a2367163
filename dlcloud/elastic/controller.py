"""Watch an elastic job from its first step to its last, and keep it at its size."""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from dlcloud.core.cluster import Cluster, Member
from dlcloud.core.elastic import LaunchRefusals, WorkerState, decide, minimum_workers
from dlcloud.core.errors import DlcloudError, InstanceError
from dlcloud.core.events import Emit, Notice, Progress, Warned
from dlcloud.core.protocols import Clock
from dlcloud.core.recipe import Recipe
from dlcloud.core.resize import coordinator
from dlcloud.elastic.lead import Coordinator
from dlcloud.elastic.rehearsal import Rehearsal
from dlcloud.elastic.succession import CoordinatorFailover, CoordinatorTerminated, Phase
from dlcloud.elastic.team import WorkerRegistry
from dlcloud.elastic.workers import RecordsReceived, WorkerExited, Workers
from dlcloud.launch.launcher import LaunchedMembers

TICK_S = 0.25
TELL_EVERY_S = 1.0
LINGER_S = 30.0
"""How long, after the last step, the workers may take to end and to bring their files home."""

FAILURES = 3
"""So many workers in a row that fail before they train are the program's fault, not their instances'."""

TOLD = {
    "notice": "is interrupted: {cause}",
    "rebalance": "is at risk: {cause}",
    "drained": "has left at step {step}: {cause}",
    "joined": "has joined at step {step}",
    "healed": "has the state of step {step} from a peer",
    "coordinator": "asks the new coordinator from step {step} on",
    "resumed": "goes on from the checkpoint of step {step}",
    "hold": "waiting: {cause}",
    "no_quorum": "waiting: {cause}",
    "done": "the last step, {step}, is committed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleUpFinished:
    """A request for instances has been answered; `error` where it could not even be made."""

    grown: LaunchedMembers | None = None
    error: BaseException | None = None


@dataclass(slots=True, kw_only=True)
class Controller:
    """Keeps one job going.

    Args:
        cluster: Whose instances.
        recipe: With the sizes, and the market.
        make_workers: Given what tells who coordinates, and who takes what happens, returns what serves the
            instances.
        grow: Brings the cluster so many more instances, leaving alone those named.
        end: Ends instances that have left.
        target: Returns how many workers are wanted, now.
        clock: For times.
        emit: Is told what happens.
        rehearsal: What befalls the run.
    """

    cluster: Cluster
    recipe: Recipe
    make_workers: Callable[
        [Callable[[], Coordinator], Callable[[RecordsReceived | WorkerExited], None]], Workers
    ]
    grow: Callable[[int, Sequence[str]], LaunchedMembers]
    end: Callable[[Sequence[Member]], object]
    target: Callable[[], int]
    clock: Clock
    emit: Emit
    rehearsal: Rehearsal | None = None
    team: WorkerRegistry = field(default_factory=WorkerRegistry)
    _workers: Workers = field(init=False)
    _succession: CoordinatorFailover = field(init=False)
    _inbox: "queue.Queue[object]" = field(init=False, default_factory=queue.Queue)
    _following: set[str] = field(init=False, default_factory=set)
    _drained: set[str] = field(init=False, default_factory=set)
    _asking: bool = field(init=False, default=False)
    _refused: LaunchRefusals | None = field(init=False, default=None)
    _look_at: datetime | None = field(init=False, default=None)
    _began: float | None = field(init=False, default=None)
    _done_at: float | None = field(init=False, default=None)
    _told_at: float = field(init=False, default=float("-inf"))
    _waiting: str = field(init=False, default="")
    _failures: int = field(init=False, default=0)

    def run(self, members: Sequence[Member]) -> None:
        """Train to the last step.

        Args:
            members: The instances that are up; agents that run on them already are followed on.

        Raises:
            InstanceError: The coordinator is gone, and nobody else has the model's state.
            RemoteCommandError: The program fails wherever it runs.
        """
        first = coordinator(members)
        if first is None:
            raise InstanceError(f"{self.cluster.name} has no on-demand instance to coordinate the others")
        self._succession = self._make_succession()
        self._workers = self.make_workers(lambda: self._succession.lead, self._inbox.put)
        for member in members:
            self._admit(member)
        self._succession.begin(first, minimum_workers(self.recipe.instances.minimum, self.target()))
        for member in members:
            self._workers.serve(member)
        self._succession.remind()
        while not self._over():
            self._take_all()
            self._act()

    def _make_succession(self) -> CoordinatorFailover:
        return CoordinatorFailover(
            team=self.team,
            following=self._following,
            inform=lambda member: self._workers.inform(member, workers=self.target()),
            end=self.end,
            post=self._inbox.put,
            clock=self.clock,
            emit=self.emit,
        )

    def _admit(self, member: Member) -> None:
        name = member.instance.instance_id
        self.team.admit(member)
        self._following.add(name)
        for record in self._workers.stored(member):
            self.team.take(name, record)

    def _over(self) -> bool:
        if not self.team.done:
            return False
        now = self.clock.monotonic()
        self._done_at = now if self._done_at is None else self._done_at
        training = {
            each.instance_id for each in self.team.workers if each.standing is not WorkerState.ARRIVING
        }
        return not self._following & training or now - self._done_at > LINGER_S

    def _take_all(self) -> None:
        """Wait a moment for something to happen, then take all that has."""
        try:
            happened = [self._inbox.get(timeout=TICK_S)]
        except queue.Empty:
            return
        while not self._inbox.empty():
            happened.append(self._inbox.get())
        for each in happened:
            match each:
                case RecordsReceived():
                    self._take_records(each)
                case WorkerExited():
                    self._take_end(each)
                case ScaleUpFinished():
                    self._take_answer(each)
                case CoordinatorTerminated():
                    self._succession.vacated()

    def _take_records(self, told: RecordsReceived) -> None:
        for record in told.records:
            self.team.take(told.instance_id, record)
            if record.get("record") == "step":
                self._failures = 0
                self._began = self.clock.monotonic() if self._began is None else self._began
            sentence = TOLD.get(str(record.get("event"))) if record.get("record") == "event" else None
            if sentence:
                known = {"cause": record.get("cause", ""), "step": record.get("step", "?")}
                bad = record.get("event") in {"notice", "rebalance", "hold", "no_quorum"}
                self.emit((Warned if bad else Notice)(
                    message=sentence.format(**known), instance_id=told.instance_id
                ))  # fmt: skip
        self._succession.take(told.instance_id, told.records)
        self._tell_progress()

    def _tell_progress(self) -> None:
        now = self.clock.monotonic()
        news = self.team.waiting != self._waiting
        if not (self.team.step or self.team.waiting) or (now - self._told_at < TELL_EVERY_S and not news):
            return
        self._told_at, self._waiting = now, self.team.waiting
        loss = "" if self.team.loss is None else f", loss {self.team.loss:.4g}"
        doing = f"waiting: {self._waiting}" if self._waiting else f"{self.team.world_size} worker(s)"
        message = f"step {self.team.step}{loss}, {doing}"
        self.emit(Progress(message=message, done=self.team.step, total=self.team.steps))

    def _take_end(self, ended: WorkerExited) -> None:
        name = ended.instance_id
        self._following.discard(name)
        self.team.lose(name)
        if ended.error is not None and not isinstance(ended.error, DlcloudError):
            raise ended.error
        if self.team.done or (ended.run is not None and ended.run.exit_status == 0):
            return
        if ended.error is not None:
            self.emit(Warned(message=str(ended.error), instance_id=name))
        coordinated = name == self._succession.lead.instance_id
        if not ended.drained and ended.run is not None:
            # Where it is the coordinator's first worker that fails, waiting for others would be in vain.
            self._count_failure(ended, 1 if coordinated and not self.team.step else FAILURES)
        if coordinated:
            self._succession.lose()
        else:
            self._release(name)
            self._succession.reconsider()

    def _count_failure(self, ended: WorkerExited, most: int) -> None:
        self._failures += 1
        if ended.run is not None and self._failures >= most:
            raise self._workers.detached.error_of(ended.run, self.recipe.name)
        self.emit(Warned(message="its worker failed, and is replaced", instance_id=ended.instance_id))

    def _release(self, name: str) -> None:
        """End an instance that takes no part any more: while it lives, it costs."""
        member = self.team.member(name)
        threading.Thread(target=self._end, args=(member,), name=f"end {name}", daemon=True).start()

    def _end(self, member: Member) -> None:
        try:
            self.end([member])
        except DlcloudError as error:
            self.emit(Warned(message=error.message, instance_id=member.instance.instance_id))

    def _take_answer(self, answer: ScaleUpFinished) -> None:
        self._asking = False
        if answer.error is not None and not isinstance(answer.error, DlcloudError):
            raise answer.error
        new = [] if answer.grown is None else self._newcomers(answer.grown.members)
        for member in new:
            self._admit(member)
        self._succession.fill()
        for member in new:
            self._workers.serve(member)
        if new:
            self._refused = None
            return
        before = 0 if self._refused is None else self._refused.times
        self._refused = LaunchRefusals(times=before + 1, at=self.clock.now())
        why = "" if answer.error is None else f" ({answer.error})"
        wait_s = (self._refused.again_at - self._refused.at).total_seconds()
        staying = sum(worker.stays for worker in self.team.workers)
        message = f"no more instances for now{why}: going on with {staying}, asking again in {wait_s:.0f} s"
        self.emit(Warned(message=message))

    def _newcomers(self, members: Sequence[Member]) -> list[Member]:
        return [each for each in members if not self.team.knows(each.instance.instance_id)]

    def _act(self) -> None:
        if self.team.done or self._succession.phase is Phase.ENDING:
            return
        self._succession.fill()
        if self.rehearsal is not None and self._began is not None:
            since_s = self.clock.monotonic() - self._began
            self.rehearsal.go_on(since_s, self._others(), self._succession.lead.instance_id)
        instances, target = self.recipe.instances, self.target()
        self._follow_target(target)
        move = decide(
            self.team.workers,
            target=target,
            now=self.clock.now(),
            base=instances.on_demand_base,
            rounds=instances.rounds,
            asking=self._asking,
            refused=self._refused,
        )
        self._look_at = move.look_at
        for name in move.drain:
            self._drain(name, target)
        if move.launch:
            self.emit(Notice(message=move.reasons[-1]))
            self._ask(move.launch)

    def _follow_target(self, target: int) -> None:
        """Let a step need no more workers than are asked for."""
        training = sum(worker.standing is WorkerState.TRAINING for worker in self.team.workers)
        minimum = minimum_workers(
            self.recipe.instances.minimum, target, current=self._succession.lead.minimum, training=training
        )
        self._succession.set_minimum(minimum)

    def _others(self) -> list[str]:
        workers = [each for each in self.team.workers if each.standing is WorkerState.TRAINING]
        workers.sort(key=lambda each: (each.member.instance.launched_at, each.instance_id))
        return [each.instance_id for each in workers if each.instance_id != self._succession.lead.instance_id]

    def _drain(self, name: str, target: int) -> None:
        if name in self._drained:
            return
        self._drained.add(name)
        self.emit(Notice(message=f"leaves: {target} worker(s) are wanted", instance_id=name))
        arriving = self.team.standing(name) is WorkerState.ARRIVING
        self.team.leave(name)
        try:
            self._workers.drain(self.team.member(name), "resize", workers=target)
        except DlcloudError as error:
            self.emit(Warned(message=error.message, instance_id=name))
            arriving = True
        if arriving:
            self._release(name)

    def _ask(self, count: int) -> None:
        """Ask for instances in a thread: the others go on meanwhile."""
        self._asking = True
        known = [each.instance_id for each in self.team.workers]
        threading.Thread(target=self._grow, args=(count, known), name="grow", daemon=True).start()

    def _grow(self, count: int, known: Sequence[str]) -> None:
        try:
            self._inbox.put(ScaleUpFinished(grown=self.grow(count, known)))
        except BaseException as error:  # noqa: BLE001 - the controller's own thread decides what it means
            self._inbox.put(ScaleUpFinished(error=error))
