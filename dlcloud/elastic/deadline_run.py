"""The deadline of one cluster: stored once, so that every controller after the first knows it."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

from dlcloud.elastic.deadline_scaler import UNKNOWN_USD, DeadlineScaler
from dlcloud.elastic.registry import WorkerRegistry
from dlcloud.launch.launcher import Launcher
from dlcloud.model.errors import DlcloudError
from dlcloud.model.events import Info, Warned
from dlcloud.model.instance import Market, Price
from dlcloud.planning.plan import Plan
from dlcloud.recipe.deadline import Deadline
from dlcloud.recipe.recipe import Recipe
from dlcloud.scheduling.deadline_scaling import spot_pool
from dlcloud.scheduling.outlook import Outlook
from dlcloud.scheduling.policies.by_name import POLICIES
from dlcloud.scheduling.policies.situation import PoolKey
from dlcloud.store.clusters import DEADLINE, DEADLINE_SET, DECISION, OUTLOOK

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
    registry: WorkerRegistry,
    restored: int = 0,
) -> DeadlineScaler:
    """Return what decides size and markets of a recipe with a deadline; `pools` with USD an hour.

    `restored` steps are in the checkpoint that the workers go on from.
    """
    began_at, ends_at = _begin(launcher, deadline)
    instances = recipe.instances
    prices = PoolPrices(launcher=launcher, types=tuple(instances.types), prices=pools)
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
    )


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
