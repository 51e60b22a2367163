"""What is known of a training, by what its workers report.

Records come from the instances as JSON and are parsed once, into values (`parse_reports`). The
`TrainingRegistry` keeps what follows from them: the state of each instance, the newest step, the coordinator.
`TrainingProgress` shows them to people. The controller alone changes the registry, from its own thread; the
threads of agents and failover read it.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from dlcloud.model.clock import Clock
from dlcloud.model.cluster import Member
from dlcloud.model.events import Emit, Info, Progress, Warned
from dlcloud.model.untrusted import number_or_none
from dlcloud.scheduling.policies.situation import Scaling
from dlcloud.scheduling.scaling import InstanceStage, TrainingInstance
from dlcloud.trainer.records import EventName


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStarted:
    """A worker's process has started; None for a setting that its record does not state.

    Attributes:
        steps: Of the whole run.
        batch: Samples in a step, over all workers.
        samples: In the data set.
    """

    steps: int | None = None
    batch: int | None = None
    samples: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommitted:
    """A step is committed; None for what its record does not state.

    Attributes:
        step: Committed steps, this one included.
        instance_id: Of the worker that took it: the coordinator's file has the steps of the others, too.
        world_size: Workers that took it.
        instances: On which they ran.
        loss: The mean over the samples of all workers.
        seconds: Since the commit before.
        generation: Of the control file that the worker followed.
    """

    step: int
    instance_id: str
    world_size: int | None = None
    instances: int | None = None
    loss: float | None = None
    seconds: float | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReported:
    """Something happened on an instance.

    Attributes:
        cause: For people.
        step: Committed steps of the worker's state; None where the event is not about a state.
    """

    name: EventName
    cause: str = ""
    step: int | None = None


WorkerReport = TrainingStarted | StepCommitted | EventReported


def parse_reports(instance_id: str, records: Iterable[Mapping[str, Any]]) -> list[WorkerReport]:
    """Return what the records in an instance's file report; unknown and malformed ones are left out."""
    reports = (_parse(instance_id, record) for record in records)
    return [report for report in reports if report is not None]


def _parse(instance_id: str, record: Mapping[str, Any]) -> WorkerReport | None:
    match record.get("record"):
        case "start":
            settings = record.get("settings")
            settings = settings if isinstance(settings, dict) else {}
            return TrainingStarted(
                steps=_whole_or_none(settings.get("steps")),
                batch=_whole_or_none(settings.get("batch")),
                samples=_whole_or_none(record.get("samples")),
            )
        case "step":
            return _parse_step(instance_id, record)
        case "event" if record.get("event") in [*EventName]:
            return EventReported(
                name=EventName(record["event"]),
                cause=str(record.get("cause", "")),
                step=_whole_or_none(record.get("step")),
            )
        case _:
            return None


def _parse_step(instance_id: str, record: Mapping[str, Any]) -> StepCommitted | None:
    step = _whole_or_none(record.get("step"))
    if step is None:
        return None
    return StepCommitted(
        step=step,
        # A worker is called by its instance; where an instance has several, ".1" and so on follow.
        instance_id=str(record.get("worker", instance_id)).partition(".")[0],
        world_size=_whole_or_none(record.get("world_size")),
        instances=_whole_or_none(record.get("instances")),
        loss=number_or_none(record.get("loss")),
        seconds=number_or_none(record.get("seconds")),
        generation=_whole_or_none(record.get("generation")) or 0,
    )


def _whole_or_none(value: object) -> int | None:
    return value if type(value) is int else None


Revision = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """The instance that runs lighthouse and ledger, and what every worker has to know of it.

    Attributes:
        generation: Failovers before it; 0 is the coordinator that the run began with.
        step: Steps that were committed when it took over.
        minimum: Workers that every step needs.
        least: Committed steps of the newest state of a survivor; no worker trains on an older state.
    """

    member: Member
    generation: int = 0
    step: int = 0
    minimum: int = 1
    least: int = 0

    @property
    def instance_id(self) -> str:
        return self.member.instance.instance_id

    @property
    def revision(self) -> Revision:
        """Changes with every change that the workers have to be informed of."""
        return self.generation, self.least, self.minimum

    @property
    def host(self) -> str:
        """The address for the other instances."""
        return self.member.instance.private_host or self.member.instance.host


STEPS_KEPT = 50
"""Of each number of instances; older ones may be of other instances."""

FEWEST_STEPS = 3
"""A number of instances counts once this many steps with it are measured."""

ASSUMED_CHANGEOVER_S = 10.0
"""The pause of a change until one is measured: the longest that is promised (docs/elastic.md)."""


@dataclass(slots=True)
class SpeedMeter:
    """Measures steps; each counts once, however many workers record it."""

    _step: int = 0
    _size: int = 0
    _seconds: dict[int, deque[float]] = field(default_factory=dict)
    _changes: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))

    def observe(self, report: StepCommitted) -> None:
        """Take a step into account."""
        # By instances: these are what a scaler requests, however many workers each has.
        size, seconds = report.instances or report.world_size or 0, report.seconds or 0.0
        if report.step <= self._step:
            return
        self._step = report.step
        if size < 1 or seconds <= 0:
            return
        if self._size and size != self._size:
            self._changes.append((size, seconds))
        elif self._size:
            # The first step of all includes the start of the program.
            self._seconds.setdefault(size, deque(maxlen=STEPS_KEPT)).append(seconds)
        self._size = size

    @property
    def scaling(self) -> Scaling:
        """The loss by further instances, of the smallest and the largest number that were measured."""
        rates = self._rates()
        if len(rates) < 2:  # noqa: PLR2004  two points make a line
            return Scaling()
        a, b = min(rates), max(rates)
        ratio = rates[b] / rates[a]
        # Solved for the loss: ratio = speed(b) / speed(a), with speed(n) = n / (1 + loss (n - 1)).
        divisor = ratio * a * (b - 1) - b * (a - 1)
        loss = (b - ratio * a) / divisor if divisor > 0 else 1.0
        return Scaling(loss=min(1.0, max(0.0, loss)))

    @property
    def steps_per_second(self) -> float | None:
        """Of one instance alone, by the newest number of them that was measured; None before."""
        rates = self._rates()
        if not rates:
            return None
        size = self._size if self._size in rates else min(rates, key=lambda n: abs(n - self._size))
        return rates[size] / self.scaling.speed(size)

    @property
    def changeover_s(self) -> float:
        """Seconds without progress after a change of the world size."""
        usual = {size: median(seconds) for size, seconds in self._seconds.items()}
        pauses = [max(0.0, seconds - usual[size]) for size, seconds in self._changes if size in usual]
        return median(pauses) if pauses else ASSUMED_CHANGEOVER_S

    def _rates(self) -> dict[int, float]:
        return {
            size: 1 / median(seconds)
            for size, seconds in self._seconds.items()
            if len(seconds) >= FEWEST_STEPS
        }


WAITING_EVENTS = frozenset({EventName.HOLD, EventName.NO_QUORUM})
"""The workers wait for something instead of taking the next step."""

_STATE_AFTER = {
    EventName.DRAIN: InstanceStage.LEAVING,
    EventName.DRAINED: InstanceStage.LEAVING,
    EventName.REBALANCE: InstanceStage.AT_RISK,
    EventName.JOINED: InstanceStage.TRAINING,
}

_ORDER = list(InstanceStage)
"""A state never goes back: a step that is recorded after a notice was committed before it."""


@dataclass(slots=True)
class TrainingRegistry:
    """The workers of a run.

    Attributes:
        step: Number of committed steps.
        steps: Steps of the whole run; None until it is known.
        loss: Of the newest step.
        world_size: Workers of the newest step.
        waiting: What the workers wait for instead of taking the next step; empty while they train.
        done: True once the last step is committed.
        generation: The newest one of a control file that a worker has followed.
        batch: Samples in a step, over all workers; None until it is known.
        samples: In the data set; None until it is known.
        speed: Measured by the steps.
        coordinator: It coordinates the others; the failover sets it before any agent is served.
    """

    step: int = 0
    steps: int | None = None
    loss: float | None = None
    world_size: int = 0
    waiting: str = ""
    done: bool = False
    generation: int = 0
    batch: int | None = None
    samples: int | None = None
    speed: SpeedMeter = field(default_factory=SpeedMeter)
    coordinator: Coordinator = field(init=False)
    _members: dict[str, Member] = field(default_factory=dict)
    _states: dict[str, InstanceStage] = field(default_factory=dict)
    _steps_held: dict[str, int] = field(default_factory=dict)
    _lighthouses: set[str] = field(default_factory=set)
    _interrupted: set[str] = field(default_factory=set)

    @property
    def instances(self) -> list[TrainingInstance]:
        """All workers that were ever added."""
        return [
            TrainingInstance(member=member, state=self._states[name])
            for name, member in self._members.items()
        ]

    def add(self, member: Member) -> None:
        """Add the worker of a launched instance."""
        self._members.setdefault(member.instance.instance_id, member)
        self._states.setdefault(member.instance.instance_id, InstanceStage.ARRIVING)

    def has(self, instance_id: str) -> bool:
        return instance_id in self._members

    @property
    def followed(self) -> list[str]:
        """Ids of the instances whose agents are followed: all that are not gone."""
        return [name for name, state in list(self._states.items()) if state is not InstanceStage.GONE]

    def is_followed(self, instance_id: str) -> bool:
        return self._states.get(instance_id, InstanceStage.GONE) is not InstanceStage.GONE

    def member(self, instance_id: str) -> Member:
        return self._members[instance_id]

    def state(self, instance_id: str) -> InstanceStage:
        return self._states[instance_id]

    def step_held(self, instance_id: str) -> int | None:
        """Return the committed steps of the state that a worker holds; None if it never had one.

        It is 0 while a worker is restarted, which then has its checkpoint.
        """
        return self._steps_held.get(instance_id)

    def has_run_lighthouse(self, instance_id: str) -> bool:
        return instance_id in self._lighthouses

    def is_interrupted(self, instance_id: str) -> bool:
        """True if the instance has an interruption notice."""
        return instance_id in self._interrupted

    def mark_interrupted(self, instance_id: str) -> None:
        """Note an interruption notice: the instance trains on for a while, and does not stay."""
        self._interrupted.add(instance_id)
        self._advance(instance_id, InstanceStage.INTERRUPTED)

    def mark_leaving(self, instance_id: str) -> None:
        self._advance(instance_id, InstanceStage.LEAVING)

    def mark_gone(self, instance_id: str) -> None:
        self._advance(instance_id, InstanceStage.GONE)

    def observe(self, instance_id: str, report: WorkerReport) -> None:
        """Update from a report of an instance, except for a notice: see `mark_interrupted`."""
        match report:
            case TrainingStarted():
                self.steps = self.steps if report.steps is None else report.steps
                self.batch = self.batch if report.batch is None else report.batch
                self.samples = self.samples if report.samples is None else report.samples
            case StepCommitted():
                self.speed.observe(report)
                self._observe_step(instance_id, report)
            case EventReported():
                self._observe_event(instance_id, report)

    def _observe_event(self, instance_id: str, event: EventReported) -> None:
        self.done = self.done or event.name is EventName.DONE
        if event.name in WAITING_EVENTS:
            self.waiting = event.cause
        elif event.name in {EventName.HEALED, EventName.RESUMED} and event.step is not None:
            self._steps_held[instance_id] = event.step
        elif event.name in {EventName.WORKER_ENDED, EventName.KILLED} and instance_id in self._steps_held:
            self._steps_held[instance_id] = 0
        elif event.name is EventName.LIGHTHOUSE_STARTED:
            self._lighthouses.add(instance_id)
        self._advance(instance_id, _STATE_AFTER.get(event.name, InstanceStage.ARRIVING))

    def _observe_step(self, instance_id: str, report: StepCommitted) -> None:
        if report.instance_id == instance_id:
            self._advance(instance_id, InstanceStage.TRAINING)
            self._steps_held[instance_id] = report.step
        self.generation = max(self.generation, report.generation)
        if report.step > self.step:
            self.step, self.waiting, self.loss = report.step, "", report.loss
            self.world_size = self.world_size if report.world_size is None else report.world_size

    def _advance(self, instance_id: str, state: InstanceStage) -> None:
        if instance_id in self._states:
            self._states[instance_id] = max(self._states[instance_id], state, key=_ORDER.index)


PROGRESS_EVERY_S = 1.0

MESSAGES = {
    EventName.NOTICE: "is interrupted: {cause}",
    EventName.REBALANCE: "is at risk: {cause}",
    EventName.DRAINED: "has left at step {step}: {cause}",
    EventName.JOINED: "has joined at step {step}",
    EventName.HEALED: "has the state of step {step} from a peer",
    EventName.COORDINATOR: "follows the new coordinator from step {step} on",
    EventName.RESUMED: "resumes from the checkpoint of step {step}",
    EventName.STORED: "the checkpoint of step {step} is stored {cause}",
    EventName.STORE_FAILED: "the checkpoint of step {step} is not stored: {cause}",
    EventName.HOLD: "waiting: {cause}",
    EventName.NO_QUORUM: "waiting: {cause}",
    EventName.DONE: "the last step, {step}, is committed",
}
"""The events that are shown."""

RISK_EVENTS = frozenset({EventName.NOTICE, EventName.REBALANCE, EventName.STORE_FAILED})


@dataclass(slots=True, kw_only=True)
class TrainingProgress:
    """Emits the progress of one training."""

    registry: TrainingRegistry
    clock: Clock
    emit: Emit
    _shown_at: float = field(init=False, default=float("-inf"))
    _waiting: str = field(init=False, default="")
    _last: dict[str, tuple[EventName, int | None]] = field(init=False, default_factory=dict)  # by instance

    def show_event(self, instance_id: str, report: WorkerReport) -> None:
        """Emit an event, if it is shown."""
        if not isinstance(report, EventReported) or report.name not in MESSAGES:
            return
        event = (report.name, report.step)
        if report.step is not None and self._last.get(instance_id) == event:
            return  # the workers of an instance join and leave together: once is enough
        self._last[instance_id] = event
        step = "?" if report.step is None else report.step
        text = MESSAGES[report.name].format(cause=report.cause, step=step)
        # Before the first step it is normal to wait for the others.
        is_halted = report.name in WAITING_EVENTS and self.registry.step > 0
        kind = Warned if report.name in RISK_EVENTS or is_halted else Info
        self.emit(kind(message=text, instance_id=instance_id))

    def show_step(self) -> None:
        """Emit the newest step, and what the workers wait for; at most once a second unless that changes."""
        now, registry = self.clock.monotonic(), self.registry
        is_due = now - self._shown_at >= PROGRESS_EVERY_S or registry.waiting != self._waiting
        if not is_due or not (registry.step or registry.waiting):
            return
        self._shown_at, self._waiting = now, registry.waiting
        loss = "" if registry.loss is None else f", loss {registry.loss:.4g}"
        state = f"waiting: {self._waiting}" if self._waiting else f"{registry.world_size} worker(s)"
        message = f"step {registry.step}{loss}, {state}"
        self.emit(Progress(message=message, done=registry.step, total=registry.steps))
