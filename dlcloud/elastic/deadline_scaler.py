"""Finish by a deadline for the least money: asks the spot policy, with what has really happened."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import median

from dlcloud.elastic.pools import PoolHistory
from dlcloud.elastic.registry import WorkerRegistry
from dlcloud.elastic.reports import StepCommitted, TrainingStarted, WorkerReport
from dlcloud.elastic.scaler import RequestEnded
from dlcloud.elastic.speed import SpeedMeter
from dlcloud.model.boots import SLOW_BOOT_S
from dlcloud.model.clock import Clock
from dlcloud.model.events import Emit, Info, Warned
from dlcloud.model.instance import Market
from dlcloud.recipe.deadline import Work
from dlcloud.scheduling.deadline_scaling import (
    OnDemandRecord,
    follow_targets,
    pool_of,
    probability_of_deadline,
)
from dlcloud.scheduling.outlook import Outlook
from dlcloud.scheduling.policies.situation import (
    REFUSAL_S,
    Policy,
    PoolDecision,
    PoolKey,
    PoolState,
    Situation,
)
from dlcloud.scheduling.scaling import ScalingDecision, Worker, WorkerState, choose_coordinator, longest_wait

ASK_EVERY_S = 60.0
"""The policy is asked so often, and whenever a worker or a pool has changed."""

ASSUMED_BOOT_S = SLOW_BOOT_S
"""From a request to training, until it is measured; the copy of the environment from a peer comes on top."""

ASSUMED_SHARE = 0.5
"""The share of the time that the work takes at full size, while its speed is neither given nor measured."""

RESERVE_SHARE = 0.1
"""The time kept for a refusal of on-demand instances is an hour, but at most this share of the whole."""

WORK_TOLERANCE = 0.01

_PRESENT = frozenset({WorkerState.ARRIVING, WorkerState.TRAINING, WorkerState.AT_RISK})

UNKNOWN_USD = 1000.0
"""An hour in a pool without a known price: the policy asks it last."""


@dataclass(slots=True, kw_only=True)
class DeadlineScaler:
    """Decides for one training with a deadline.

    Args:
        began_at: When the time to the deadline began.
        deadline: Absolute.
        work: The recipe's.
        size: The fewest and the most workers.
        base: On-demand instances that always stay.
        policy: Pure; see `core/policies`.
        prices: Returns USD an hour by pool: every pool of the plan, in its order.
        usual_prices: Returns the mean of the last days, of the pools of which it is known.
        registry: The workers, and the committed steps.
        store_outlook: Called with each outlook; `is_decision` if it changed the instances.
        restored: Committed steps of the checkpoint that the workers go on from.
    """

    began_at: datetime
    deadline: datetime
    work: Work
    size: tuple[int, int]
    base: int
    policy: Policy
    prices: Callable[[], Mapping[PoolKey, float]]
    registry: WorkerRegistry
    clock: Clock
    emit: Emit
    store_outlook: Callable[[Outlook, bool], None]
    restored: int = 0
    usual_prices: Callable[[], Mapping[PoolKey, float]] = dict
    meter: SpeedMeter = field(default_factory=SpeedMeter)
    histories: dict[PoolKey, PoolHistory] = field(default_factory=dict)
    _decision: PoolDecision | None = None
    _hope: PoolDecision | None = None
    _situation: Situation | None = None
    _asked_at: datetime | None = None
    _signature: object = None
    _states: dict[str, WorkerState] = field(default_factory=dict)
    _boots_s: list[float] = field(default_factory=list)
    _batch: int | None = None
    _samples: int | None = None
    _recorded: tuple[object, ...] = ()
    _warned: set[str] = field(default_factory=set)

    @property
    def target(self) -> int:
        """The workers that are wanted now."""
        return self.base if self._decision is None else sum(self._decision.targets.values())

    def observe(self, report: WorkerReport) -> None:
        """Take what a worker reports into account: its settings, and how long a step took."""
        match report:
            case StepCommitted():
                self.meter.observe(report)
            case TrainingStarted():
                self._batch = self._batch if report.batch is None else report.batch
                self._samples = self._samples if report.samples is None else report.samples

    def decide(self, workers: Sequence[Worker], *, is_launching: bool) -> ScalingDecision:
        """Return what is to be done now; the policy is asked if something changed, or it is time."""
        now = self.clock.now()
        self._note_changes(workers, now)
        askable = {key for key in self.prices() if self._history(key).is_askable(now)}
        signature = (dict(self._states), is_launching, askable, self.meter.steps_per_second is None)
        if self._decision is None or signature != self._signature or self._is_due(now):
            self._signature, self._asked_at = signature, now
            self._situation = self._describe(
                workers, now, {key for key in askable if key[0] is not Market.SPOT}
            )
            self._decision = self.policy(self._situation)
            self._hope = self.policy(self._describe(workers, now, askable))
            self._warn(now)
            self.store_outlook(self._outlook(now, self._situation, self._decision), False)
        return follow_targets(
            workers,
            self._decision,
            self._hope or self._decision,
            askable=askable,
            is_launching=is_launching,
        )

    def record(self, decision: ScalingDecision) -> None:
        """Store a decision that changes instances, once."""
        key = (decision.market, decision.pools, decision.launch, decision.drain)
        if key == self._recorded or self._situation is None or self._decision is None:
            return
        self._recorded = key
        outlook = self._outlook(self.clock.now(), self._situation, self._decision)
        asked = f"{decision.market} {', '.join(decision.pools)}"
        launch = {asked: decision.launch} if decision.launch else {}
        self.store_outlook(replace(outlook, launch=launch, drain=decision.drain), True)

    def handle_request(self, ended: RequestEnded) -> None:
        """Remember what each pool that was asked has answered."""
        decision, now, market = ended.decision, self.clock.now(), ended.decision.market
        if market is None:
            return
        new = sum(member.instance.market is market for member in ended.new)
        refused = {(refusal.zone, refusal.pool.partition(" ")[0]) for refusal in ended.refusals}
        for name in decision.pools:
            zone, _, instance_type = name.rpartition(" ")
            is_named = (zone, instance_type) in refused or not zone
            history = self._history((market, name))
            if new >= decision.launch:
                history.grant(now)
            elif is_named or not new or len(decision.pools) == 1:
                holds = (market, name) in self._held(self.registry.workers)
                history.refuse(now, final=ended.final_error is not None, holds=holds)
        if new < decision.launch:
            pools = ", ".join(decision.pools)
            text = f"{new} of {decision.launch} {market} instance(s) were launched in {pools}"
            self.emit(Info(message=f"{text}: {self.target} worker(s) were wanted"))
        if ended.error is not None:
            self.emit(Warned(message=str(ended.error)))

    def after_loss(self, made: "DeadlineScaler") -> "DeadlineScaler":
        """Return the scaler `made`, of the next workers after all were lost, with what this one knows."""
        now = self.clock.now()
        for worker in self.registry.workers:
            instance = worker.member.instance
            if instance.market is Market.SPOT and self._states.get(worker.instance_id) in _PRESENT:
                self._history(pool_of(instance)).interrupt(now)
        return replace(
            made,
            meter=self.meter,
            histories=self.histories,
            _boots_s=self._boots_s,
            _batch=self._batch,
            _samples=self._samples,
            _warned=self._warned,
        )

    def _is_due(self, now: datetime) -> bool:
        if self._asked_at is None or self._decision is None:
            return True
        waited_s = (now - self._asked_at).total_seconds()
        return waited_s >= min(ASK_EVERY_S, self._decision.ask_again_s)

    def _history(self, key: PoolKey) -> PoolHistory:
        if key not in self.histories:
            self.histories[key] = PoolHistory(longest_wait=longest_wait(self.deadline - self.began_at))
        return self.histories[key]

    def _note_changes(self, workers: Sequence[Worker], now: datetime) -> None:
        """Measure boots, and remember interruptions, by the changes of workers since the last time."""
        held, lost = self._held(workers), set()
        for key in held:
            if key[0] is Market.SPOT and not self._history(key).has:
                self._history(key).hold(now)
        for worker in workers:
            name, state, instance = worker.instance_id, worker.state, worker.member.instance
            before, self._states[name] = self._states.get(name), state
            if before is WorkerState.ARRIVING and state is WorkerState.TRAINING:
                self._boots_s.append((now - instance.launched_at).total_seconds())
            ends = state in {WorkerState.LEAVING, WorkerState.GONE} and before not in {
                WorkerState.LEAVING,
                WorkerState.GONE,
                None,
            }
            if ends and (self.registry.is_interrupted(name) or state is WorkerState.GONE):
                lost.add(pool_of(instance))
        for key in lost:
            self._history(key).interrupt(now, holds=key in held)

    def _held(self, workers: Sequence[Worker]) -> set[PoolKey]:
        """Return the pools whose instances run, and stay."""
        return {pool_of(worker.member.instance) for worker in workers if worker.stays}

    def _describe(self, workers: Sequence[Worker], now: datetime, askable: set[PoolKey]) -> Situation:
        time_left_s = (self.deadline - now).total_seconds()
        allowed_s = (self.deadline - self.began_at).total_seconds()
        work_s, work_left_s = self._work(allowed_s, time_left_s)
        return Situation(
            work_s=work_s,
            work_left_s=work_left_s,
            allowed_s=allowed_s,
            time_left_s=time_left_s,
            pools=self._pools(workers, now, askable),
            minimum=self.size[0],
            maximum=self.size[1],
            changeover_s=self.meter.changeover_s,
            boot_s=median(self._boots_s) if self._boots_s else min(ASSUMED_BOOT_S, allowed_s * RESERVE_SHARE),
            refusal_s=min(REFUSAL_S, allowed_s * RESERVE_SHARE),
            scaling=self.meter.scaling,
        )

    def _work(self, allowed_s: float, time_left_s: float) -> tuple[float, float]:
        """Return all the work and what is left, in seconds of one worker alone."""
        registry = self.registry
        steps = registry.steps or self.work.steps_of(self._batch, self._samples)
        speed = self.meter.steps_per_second
        left = 1.0 if not steps else max(0.0, 1 - max(registry.step, self.restored) / steps)
        if steps and speed:
            return steps / speed, left * steps / speed
        if self.work.worker_hours is not None:
            work_s = self.work.worker_hours * 3600
            return work_s, left * work_s
        full_speed = self.meter.scaling.speed(self.size[1])
        return allowed_s * ASSUMED_SHARE * full_speed, max(0.0, time_left_s) * ASSUMED_SHARE * full_speed

    def _pools(
        self, workers: Sequence[Worker], now: datetime, askable: set[PoolKey]
    ) -> tuple[PoolState, ...]:
        # A worker of a pool that is not offered any more stays, until the policy lets it go.
        prices = {
            pool_of(w.member.instance): float(w.member.hourly_usd or 0) or UNKNOWN_USD
            for w in workers
            if w.stays
        } | dict(self.prices())
        home = self._home(workers, prices)
        pools = []
        for key, hourly_usd in prices.items():
            here = [w for w in workers if w.stays and pool_of(w.member.instance) == key]
            running = sum(worker.state is WorkerState.TRAINING for worker in here)
            pools.append(
                PoolState(
                    market=key[0],
                    name=key[1],
                    hourly_usd=hourly_usd,
                    obtainable=self.size[1] if key in askable else len(here),
                    running=running,
                    starting=len(here) - running,
                    keep=self.base if key == home else 0,
                    availability=self._history(key).availability(now),
                    usual_usd=self.usual_prices().get(key, 0.0),
                )
            )
        return tuple(pools)

    def _home(self, workers: Sequence[Worker], prices: Mapping[PoolKey, float]) -> PoolKey | None:
        """Return the pool of the coordinator; without one, the cheapest that could give it."""
        coordinator = choose_coordinator(workers)
        if coordinator is not None and pool_of(coordinator.instance) in prices:
            return pool_of(coordinator.instance)
        on_demand = [key for key in prices if key[0] is Market.ON_DEMAND]
        return min(on_demand, key=lambda key: prices[key], default=None)

    def _outlook(self, now: datetime, situation: Situation, decision: PoolDecision) -> Outlook:
        on_demand = [h for key, h in self.histories.items() if key[0] is Market.ON_DEMAND]
        record = OnDemandRecord(
            requests=sum(h.requests for h in on_demand), refusals=sum(h.refused for h in on_demand)
        )
        return Outlook(
            at=now,
            deadline=self.deadline,
            time_left_s=situation.time_left_s,
            work_left_s=situation.work_left_s,
            probability=probability_of_deadline(situation, record),
            is_measured=self.meter.steps_per_second is not None,
            reason=decision.reason,
            targets={" ".join(key): count for key, count in decision.targets.items() if count},
        )

    def _warn(self, now: datetime) -> None:
        """Warn once of a deadline that has passed, and of work that is not what the recipe says."""
        if now >= self.deadline and self.registry.step and not self.registry.done:
            self._warn_once("passed", f"the deadline {self.deadline:%Y-%m-%d %H:%M:%S} UTC has passed")
        steps, stated = self.registry.steps, self.work.steps_of(self._batch, self._samples)
        if steps and stated and abs(steps - stated) > WORK_TOLERANCE * steps:
            message = (
                f"the program trains {steps} steps, deadline.work says {stated}: planning with the program's"
            )
            self._warn_once("work", message)

    def _warn_once(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            self.emit(Warned(message=message))
