"""Finish by a deadline for the least money: asks the spot policy, with what has really happened."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from statistics import median

from dlcloud.cloud.storage.buckets import S3Buckets
from dlcloud.elastic.controller import RequestEnded
from dlcloud.elastic.registry import TrainingRegistry
from dlcloud.launch.launcher import Launcher
from dlcloud.model.clock import Clock
from dlcloud.model.errors import CapacityError, CloudError, DlcloudError
from dlcloud.model.events import Emit, Info, Warned
from dlcloud.model.instance import SLOW_BOOT_S, Market, Price
from dlcloud.model.money import REGION_TRAFFIC_USD_PER_GB
from dlcloud.planning.plan import Plan
from dlcloud.planning.storage import GB
from dlcloud.recipe.deadline import Deadline, Work
from dlcloud.recipe.recipe import Recipe
from dlcloud.scheduling.deadline_scaling import (
    LEAVING_S,
    OnDemandRecord,
    follow_targets,
    leave_region,
    pool_of,
    probability_of_deadline,
    spot_pool,
)
from dlcloud.scheduling.outlook import Outlook
from dlcloud.scheduling.policies import POLICIES
from dlcloud.scheduling.policies.situation import (
    REFUSAL_S,
    Availability,
    Policy,
    PoolDecision,
    PoolKey,
    PoolState,
    Situation,
    move_of_state,
)
from dlcloud.scheduling.scaling import (
    FIRST_WAIT,
    LONGEST_WAIT,
    InstanceStage,
    ScalingDecision,
    TrainingInstance,
    choose_coordinator,
    longest_wait,
)
from dlcloud.scheduling.spells import OFF, ON, SpellFit
from dlcloud.store.clusters import DEADLINE, DEADLINE_SET, DECISION, OUTLOOK, Clusters

ASK_EVERY_S = 60.0
"""The policy is asked so often, and whenever a worker or a pool has changed."""

ASSUMED_BOOT_S = SLOW_BOOT_S
"""From a request to training, until it is measured; the copy of the environment from a peer comes on top."""

ASSUMED_SHARE = 0.5
"""The share of the time that the work takes at full size, while its speed is neither given nor measured."""

RESERVE_SHARE = 0.1
"""The time kept for a refusal of on-demand instances is an hour, but at most this share of the whole."""

WORK_TOLERANCE = 0.01

_PRESENT = frozenset({InstanceStage.ARRIVING, InstanceStage.TRAINING, InstanceStage.AT_RISK})

UNKNOWN_USD = 1000.0
"""An hour in a pool without a known price: the policy asks it last."""


class RegionLeftError(CapacityError):
    """No spot pool of the Region has capacity, and the rest of the training costs less in `region`."""

    def __init__(self, message: str, *, region: str) -> None:
        super().__init__(message)
        self.region = region


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Where else a training may continue.

    Args:
        home: The Region of its workers.
        hourly_usd: Returns what spot costs in each Region to which it may move now, as the plan knew it;
            capacity there is believed in.
        newest: Returns the committed steps of the newest checkpoint in S3, and the bytes that have yet to
            reach each of these Regions; one that cannot be asked is left out.
    """

    home: str
    hourly_usd: Callable[[], Mapping[str, float]]
    newest: Callable[[Sequence[str]], tuple[int, Mapping[str, int]]]


@dataclass(slots=True, kw_only=True)
class DeadlineScaler:
    """Decides for one training with a deadline.

    Args:
        began_at: When the time to the deadline began.
        deadline: Absolute.
        work: The recipe's.
        size: The fewest and the most workers.
        base: On-demand instances that always stay.
        policy: Pure; see `scheduling/policies`.
        prices: Returns USD an hour by pool: every pool of the plan, in its order.
        usual_prices: Returns the mean of the last days, of the pools of which it is known.
        registry: The workers, and the committed steps.
        store_outlook: Called with each outlook; `is_decision` if it changed the instances.
        restored: Committed steps of the checkpoint that the workers continue from.
        elsewhere: None for a training that stays in its Region.
    """

    began_at: datetime
    deadline: datetime
    work: Work
    size: tuple[int, int]
    base: int
    policy: Policy
    prices: Callable[[], Mapping[PoolKey, float]]
    registry: TrainingRegistry
    clock: Clock
    emit: Emit
    store_outlook: Callable[[Outlook, bool], None]
    restored: int = 0
    usual_prices: Callable[[], Mapping[PoolKey, float]] = dict
    elsewhere: Elsewhere | None = None
    histories: dict[PoolKey, "PoolHistory"] = field(default_factory=dict)
    _decision: PoolDecision | None = None
    _hope: PoolDecision | None = None
    _situation: Situation | None = None
    _asked_at: datetime | None = None
    _signature: object = None
    _states: dict[str, InstanceStage] = field(default_factory=dict)
    _boots_s: list[float] = field(default_factory=list)
    _recorded: tuple[object, ...] = ()
    _warned: set[str] = field(default_factory=set)

    @property
    def target(self) -> int:
        """The workers that are wanted now."""
        return self.base if self._decision is None else sum(self._decision.targets.values())

    def decide(self, workers: Sequence[TrainingInstance], *, is_launching: bool) -> ScalingDecision:
        """Return what to do now; the policy is asked if something changed, or it is time.

        Raises:
            RegionLeftError: The training should continue in another Region.
        """
        now = self.clock.now()
        self._note_changes(workers, now)
        askable = {key for key in self.prices() if self._history(key).is_askable(now)}
        signature = (dict(self._states), is_launching, askable, self.registry.speed.steps_per_second is None)
        if self._decision is None or signature != self._signature or self._is_due(now):
            self._signature, self._asked_at = signature, now
            self._situation = self._describe(
                workers, now, {key for key in askable if key[0] is not Market.SPOT}
            )
            self._decision = self.policy(self._situation)
            self._hope = self.policy(self._describe(workers, now, askable))
            self._warn(now)
            self.store_outlook(self._outlook(now, self._situation, self._decision), False)
            if self.elsewhere is not None and not is_launching:
                self._leave_if_cheaper(self.elsewhere, self._situation)
        return follow_targets(
            workers,
            self._decision,
            self._hope or self._decision,
            askable=askable,
            is_launching=is_launching,
        )

    def _leave_if_cheaper(self, elsewhere: Elsewhere, situation: Situation) -> None:
        """Ask the policy about other Regions, once every spot pool of this one is known to have nothing.

        Raises:
            RegionLeftError: The move is worth its price, its time, and the steps since the newest checkpoint.
        """
        here = [self._history(key) for key in self.prices() if key[0] is Market.SPOT]
        speed, scaling = self.registry.speed.steps_per_second, situation.scaling
        if not here or not all(history.is_empty for history in here) or speed is None:
            return
        hourly_usd = elsewhere.hourly_usd()
        if not hourly_usd:
            return
        try:
            step, sizes = elsewhere.newest([*hourly_usd])
        except CloudError as error:
            log.warning("the newest checkpoint is not known: %s", error.message)
            return
        lost_s = max(0, self.registry.step - step) / speed / scaling.speed(self.size[1])
        begin_s = LEAVING_S + max(self._boots_s, default=situation.boot_s)
        moves = {}
        for region, size in sizes.items():
            move = move_of_state(size / GB, usd_per_gb=float(REGION_TRAFFIC_USD_PER_GB))
            moves[region] = replace(move, seconds=move.seconds + lost_s + begin_s)
        left = leave_region(
            self.policy,
            situation,
            home=elsewhere.home,
            elsewhere={region: hourly_usd[region] for region in moves},
            moves=moves,
        )
        if left is not None:
            region, decision = left
            message = f"{elsewhere.home} has no spot capacity, leaving it at step {step} for {region}"
            message = f"{message}: {decision.reason}"
            self.emit(Info(message=message))
            raise RegionLeftError(message, region=region)

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
                holds = (market, name) in self._held(self.registry.instances)
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
        for worker in self.registry.instances:
            instance = worker.member.instance
            if instance.market is Market.SPOT and self._states.get(worker.instance_id) in _PRESENT:
                self._history(pool_of(instance)).interrupt(now)
        return replace(
            made,
            histories=self.histories,
            _boots_s=self._boots_s,
            _warned=self._warned,
        )

    def _is_due(self, now: datetime) -> bool:
        if self._asked_at is None or self._decision is None:
            return True
        waited_s = (now - self._asked_at).total_seconds()
        return waited_s >= min(ASK_EVERY_S, self._decision.ask_again_s)

    def _history(self, key: PoolKey) -> "PoolHistory":
        if key not in self.histories:
            self.histories[key] = PoolHistory(longest_wait=longest_wait(self.deadline - self.began_at))
        return self.histories[key]

    def _note_changes(self, workers: Sequence[TrainingInstance], now: datetime) -> None:
        """Measure boots, and remember interruptions, by the changes of workers since the last time."""
        held, lost = self._held(workers), set()
        for key in held:
            if key[0] is Market.SPOT and not self._history(key).has:
                self._history(key).hold(now)
        for worker in workers:
            name, state, instance = worker.instance_id, worker.state, worker.member.instance
            before, self._states[name] = self._states.get(name), state
            if before is InstanceStage.ARRIVING and state is InstanceStage.TRAINING:
                self._boots_s.append((now - instance.launched_at).total_seconds())
            if before in _PRESENT and (self.registry.is_interrupted(name) or state is InstanceStage.GONE):
                lost.add(pool_of(instance))
        for key in lost:
            self._history(key).interrupt(now, holds=key in held)

    def _held(self, workers: Sequence[TrainingInstance]) -> set[PoolKey]:
        """Return the pools whose instances run, and stay."""
        return {pool_of(worker.member.instance) for worker in workers if worker.stays}

    def _describe(
        self, workers: Sequence[TrainingInstance], now: datetime, askable: set[PoolKey]
    ) -> Situation:
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
            changeover_s=self.registry.speed.changeover_s,
            boot_s=median(self._boots_s) if self._boots_s else min(ASSUMED_BOOT_S, allowed_s * RESERVE_SHARE),
            refusal_s=min(REFUSAL_S, allowed_s * RESERVE_SHARE),
            scaling=self.registry.speed.scaling,
        )

    def _work(self, allowed_s: float, time_left_s: float) -> tuple[float, float]:
        """Return all the work and what is left, in seconds of one worker alone."""
        registry = self.registry
        steps = registry.steps or self.work.steps_of(self.registry.batch, self.registry.samples)
        speed = self.registry.speed.steps_per_second
        left = 1.0 if not steps else max(0.0, 1 - max(registry.step, self.restored) / steps)
        if steps and speed:
            return steps / speed, left * steps / speed
        if self.work.worker_hours is not None:
            work_s = self.work.worker_hours * 3600
            return work_s, left * work_s
        full_speed = self.registry.speed.scaling.speed(self.size[1])
        return allowed_s * ASSUMED_SHARE * full_speed, max(0.0, time_left_s) * ASSUMED_SHARE * full_speed

    def _pools(
        self, workers: Sequence[TrainingInstance], now: datetime, askable: set[PoolKey]
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
            running = sum(worker.state is InstanceStage.TRAINING for worker in here)
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

    def _home(self, workers: Sequence[TrainingInstance], prices: Mapping[PoolKey, float]) -> PoolKey | None:
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
            is_measured=self.registry.speed.steps_per_second is not None,
            reason=decision.reason,
            targets={" ".join(key): count for key, count in decision.targets.items() if count},
        )

    def _warn(self, now: datetime) -> None:
        """Warn once of a deadline that has passed, and of work that is not what the recipe says."""
        if now >= self.deadline and self.registry.step and not self.registry.done:
            self._warn_once("passed", f"the deadline {self.deadline:%Y-%m-%d %H:%M:%S} UTC has passed")
        steps, stated = self.registry.steps, self.work.steps_of(self.registry.batch, self.registry.samples)
        if steps and stated and abs(steps - stated) > WORK_TOLERANCE * steps:
            message = (
                f"the program trains {steps} steps, deadline.work says {stated}: planning with the program's"
            )
            self._warn_once("work", message)

    def _warn_once(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            self.emit(Warned(message=message))


@dataclass(slots=True)
class PoolHistory:
    """The recent past of one pool, from its first answer on.

    Attributes:
        longest_wait: After refusals in a row it is asked again after so long at most.
        requests: Answers to requests.
        refused: How many of them gave too few instances.
        interrupted: Instances that were taken back.
        drops: How often some were taken back while others stayed.
    """

    longest_wait: timedelta = LONGEST_WAIT
    requests: int = 0
    refused: int = 0
    interrupted: int = 0
    drops: int = 0
    _since: datetime | None = None
    _changed_at: datetime | None = None
    _has: bool = False
    _available: timedelta = field(default_factory=timedelta)
    _on: SpellFit = field(default_factory=lambda: SpellFit(ON))
    _off: SpellFit = field(default_factory=lambda: SpellFit(OFF))
    _refusals: int = 0
    _retry_at: datetime | None = None
    _denied: bool = False

    def grant(self, now: datetime) -> None:
        """Record that it gave all that was requested."""
        self.requests += 1
        self._refusals, self._retry_at = 0, None
        self._set(has=True, now=now)

    def hold(self, now: datetime) -> None:
        """Record that instances of it run, which it was not asked for here."""
        self._set(has=True, now=now)

    def refuse(self, now: datetime, *, final: bool = False, holds: bool = False) -> None:
        """Record that it gave too few.

        Args:
            now: The time.
            final: It is not asked again.
            holds: Instances of it run: it has no more, but what it gave lasts.
        """
        self.requests += 1
        self.refused += 1
        self._denied = self._denied or final
        self._wait(now, holds=holds)

    def interrupt(self, now: datetime, *, holds: bool = False) -> None:
        """Record that it took instances back: all, or a part, if others of it run (`holds`)."""
        self.interrupted += 1
        self.drops += holds
        self._wait(now, holds=holds)

    @property
    def has(self) -> bool:
        """True if it gave what was requested last, or what it gave lasts."""
        return self._has

    @property
    def is_empty(self) -> bool:
        """True if its last answer, or loss, left nothing of it; False before the first one."""
        return self._changed_at is not None and not self._has

    def is_askable(self, now: datetime) -> bool:
        return not self._denied and (self._retry_at is None or self._retry_at <= now)

    def availability(self, now: datetime) -> Availability:
        if self._since is None or self._changed_at is None:
            return Availability()
        unchanged = now - self._changed_at
        available = self._available + (unchanged if self._has else timedelta())
        return Availability(
            observed_s=(now - self._since).total_seconds(),
            available_s=available.total_seconds(),
            unchanged_s=unchanged.total_seconds(),
            on_factor=self._on.factor(unchanged.total_seconds() if self._has else 0.0),
            off_factor=self._off.factor(0.0 if self._has else unchanged.total_seconds()),
            drops=self.drops,
        )

    def _wait(self, now: datetime, *, holds: bool) -> None:
        doubled = FIRST_WAIT * (1 << min(self._refusals, 10))
        self._refusals += 1
        self._retry_at = now + min(doubled, self.longest_wait)
        self._set(has=holds, now=now)

    def _set(self, *, has: bool, now: datetime) -> None:
        self._since = self._since or now
        if self._changed_at is not None and has == self._has:
            return
        if self._changed_at is not None:
            spell = now - self._changed_at
            (self._on if self._has else self._off).end(spell.total_seconds())
            self._available += spell if self._has else timedelta()
        self._has, self._changed_at = has, now


POLICY = "elastic"
HISTORY = timedelta(days=14)
"""Of spot prices: their mean is what a pool's price is expected to come back to."""
PRICES_EVERY_S = 600.0
"""Spot prices change a few times a day at most (EC2 user guide, "Spot Instance pricing history")."""

_MET, _MISSED = "met", "missed"

log = logging.getLogger(__name__)


def make_scaler(
    launcher: Launcher,
    recipe: Recipe,
    deadline: Deadline,
    *,
    pools: Mapping[PoolKey, float],
    registry: TrainingRegistry,
    restored: int = 0,
    elsewhere: Callable[[], Mapping[str, float]] = dict,
) -> DeadlineScaler:
    """Return what decides size and markets of a recipe with a deadline; `pools` with USD an hour.

    `restored` steps are in the checkpoint that the workers continue from; `elsewhere` returns what spot costs
    in the Regions to which it may move.
    """
    began_at, ends_at = _begin(launcher, deadline)
    instances = recipe.instances
    prices = PoolPrices(launcher=launcher, types=tuple(instances.types), prices=pools)
    uri = recipe.checkpoints
    others = None
    if uri is not None:
        others = Elsewhere(
            home=recipe.region,
            hourly_usd=elsewhere,
            newest=partial(_newest, launcher.cloud.buckets, recipe, uri),
        )
    return DeadlineScaler(
        began_at=began_at,
        deadline=ends_at,
        work=deadline.work,
        size=(instances.minimum, instances.maximum),
        base=instances.on_demand_base,
        policy=POLICIES[POLICY],
        prices=prices,
        usual_prices=lambda: prices.usual,
        registry=registry,
        clock=launcher.clock,
        emit=launcher.emit,
        store_outlook=lambda outlook, is_decision: _store(launcher, outlook, is_decision=is_decision),
        restored=restored,
        elsewhere=others,
    )


def _newest(
    buckets: S3Buckets, recipe: Recipe, uri: str, regions: Sequence[str]
) -> tuple[int, dict[str, int]]:
    """Return the steps of the newest checkpoint, and the bytes that have yet to reach each Region.

    Raises:
        CloudError: The bucket cannot be asked.
    """
    step = buckets.newest_step(uri)
    if not recipe.replicated:
        return step, dict.fromkeys(regions, buckets.newest_size(uri))
    sizes = {}
    for region in regions:
        try:
            sizes[region] = buckets.unmirrored(uri, recipe.checkpoints_in(region))
        except CloudError as error:
            log.warning("checkpoints in %s are left out: %s", region, error.message)
    return step, sizes


def end_deadline(launcher: Launcher) -> None:
    """Record and emit by how much the deadline was met or missed, once the last step is committed."""
    clusters, now = launcher.store.clusters, launcher.clock.now()
    stored = clusters.intents(launcher.cluster_id, DEADLINE)
    deadline = datetime.fromisoformat(stored[-1].detail)
    clusters.end_intent(stored[-1].intent_id, _MET if now <= deadline else _MISSED, now)
    hours = abs((deadline - now).total_seconds()) / 3600
    if now <= deadline:
        launcher.emit(Info(message=f"finished {hours:.2f} h before the deadline"))
    else:
        launcher.emit(Warned(message=f"finished {hours:.2f} h after the deadline"))


def _begin(launcher: Launcher, deadline: Deadline) -> tuple[datetime, datetime]:
    """Return when the time began and when it ends: as stored, or stored now.

    A duration begins with the cluster; on one that was kept and has trained before, now.
    """
    clusters, cluster, now = launcher.store.clusters, launcher.cluster, launcher.clock.now()
    stored = clusters.intents(cluster.cluster_id, DEADLINE)
    if stored and stored[-1].outcome == DEADLINE_SET:
        return stored[-1].begun_at, datetime.fromisoformat(stored[-1].detail)
    began_at = now if stored else cluster.created_at
    ends_at = deadline.at(began_at)
    intent_id = clusters.begin_intent(cluster.cluster_id, DEADLINE, ends_at.isoformat(), began_at)
    clusters.end_intent(intent_id, DEADLINE_SET, now)
    return began_at, ends_at


def carry_deadline(clusters: Clusters, lost_id: str, cluster_id: str, *, now: datetime) -> None:
    """Let the deadline of a cluster that was lost hold for the one that continues its training."""
    for stored in clusters.intents(lost_id, DEADLINE)[-1:]:
        intent_id = clusters.begin_intent(cluster_id, DEADLINE, stored.detail, stored.begun_at)
        clusters.end_intent(intent_id, DEADLINE_SET, now)


def _store(launcher: Launcher, outlook: Outlook, *, is_decision: bool) -> None:
    """Store an outlook: each decision, and of the others the newest one."""
    clusters, cluster_id = launcher.store.clusters, launcher.cluster_id
    if is_decision:
        intent_id = clusters.begin_intent(cluster_id, DECISION, outlook.to_text(), outlook.at)
        clusters.end_intent(intent_id, "decided", outlook.at)
        return
    stored = clusters.intents(cluster_id, OUTLOOK)
    intent_id = stored[-1].intent_id if stored else clusters.begin_intent(cluster_id, OUTLOOK, "", outlook.at)
    clusters.end_intent(intent_id, outlook.to_text(), outlook.at)


@dataclass(slots=True, kw_only=True)
class PoolPrices:
    """The pools of a plan with their prices, asked for again from time to time, from a thread.

    Attributes:
        usual: The mean price of the last days, by pool; empty until the history has come.
    """

    launcher: Launcher
    types: tuple[str, ...]
    prices: Mapping[PoolKey, float]
    usual: Mapping[PoolKey, float] = field(default_factory=dict)
    _asked_at: float | None = None

    def __call__(self) -> Mapping[PoolKey, float]:
        now = self.launcher.clock.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            self._start(self._ask_history)
        if now - self._asked_at >= PRICES_EVERY_S:
            self._asked_at = now
            self._start(self._ask)
        return self.prices

    def _start(self, ask: Callable[[], None]) -> None:
        threading.Thread(target=ask, name="prices", daemon=True).start()

    def _ask_history(self) -> None:
        now = self.launcher.clock.now()
        try:
            history = self.launcher.cloud.prices.spot_history(self.types, now - HISTORY)
        except DlcloudError as error:
            log.warning("usual prices are not known: %s", error.message)
            return
        self.usual = mean_prices(history, now - HISTORY, now)

    def _ask(self) -> None:
        self._ask_history()
        try:
            prices = self.launcher.cloud.prices.find(self.types, [*Market])
        except DlcloudError as error:
            log.warning("prices stay those of before: %s", error.message)
            return
        updated = dict(self.prices)
        for price in prices:
            name = spot_pool(price.zone, price.instance_type)
            key = (price.market, name if price.market is Market.SPOT else price.instance_type)
            if key in updated:
                updated[key] = float(price.hourly_usd)
        self.prices = updated


def mean_prices(history: Sequence[Price], since: datetime, until: datetime) -> dict[PoolKey, float]:
    """Return the mean spot price of each pool over a time, each price weighted by how long it held."""
    changes: dict[PoolKey, list[tuple[datetime, float]]] = {}
    for price in history:
        key = (Market.SPOT, spot_pool(price.zone, price.instance_type))
        changes.setdefault(key, []).append((max(since, price.as_of), float(price.hourly_usd)))
    means = {}
    for key, prices in changes.items():
        ordered = [*sorted(prices), (until, 0.0)]
        usd = sum(usd * (end - begin).total_seconds() for (begin, usd), (end, _) in pairwise(ordered))
        seconds = (until - ordered[0][0]).total_seconds()
        means[key] = usd / seconds if seconds > 0 else ordered[0][1]
    return means


def prices_of(plan: Plan) -> dict[PoolKey, float]:
    """Return USD an hour by pool, for every pool of a plan: spot by zone and type, on-demand by type."""
    prices: dict[PoolKey, float] = {}
    for pool in plan.pools:
        if pool.market is Market.ON_DEMAND:
            usd = UNKNOWN_USD if pool.price is None else float(pool.price.hourly_usd)
            prices.setdefault((Market.ON_DEMAND, pool.instance_type), usd)
            continue
        for zone in pool.zones or (pool.zone,):
            price = pool.price_in(zone)
            usd = UNKNOWN_USD if price is None else float(price.hourly_usd)
            prices[Market.SPOT, spot_pool(zone, pool.instance_type)] = usd
    return prices
