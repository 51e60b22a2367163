"""How an `up` of a recipe with several Regions leaves one: at a refusal, and after a loss of its instances.

A Region that gives no instances is left for the next one of the plan. If the instances of a run are lost and
its Region gives no others, all Regions are planned again, for what the budget leaves; the one just lost comes
last. While no Region has capacity, the `up` waits, as it does for a replacement in one Region.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from dlcloud.app.context import Context
from dlcloud.elastic.deadline_scaler import carry_deadline
from dlcloud.model.cluster import Cluster, ClusterState
from dlcloud.model.events import Info, Warned
from dlcloud.model.instance import Market
from dlcloud.planning.plan import Plan
from dlcloud.recipe.recipe import Recipe
from dlcloud.runs.replacement import FIRST_WAIT_S, LONGEST_WAIT_S
from dlcloud.scheduling.deadline_scaling import RETURN_S

SECONDS_PER_HOUR = 3600


@dataclass(kw_only=True)
class Moves:
    """The Regions that one `up` can still go to.

    Attributes:
        elsewhere: The plans of other Regions, the cheapest first.
        left: The ids of the clusters that lost their instances.
        left_at: When each Region was last left.
        preferred: The Region for which a training left the last one; empty after a loss.
    """

    context: Context
    elsewhere: list[Plan] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    left_at: dict[str, datetime] = field(default_factory=dict)
    preferred: str = ""
    _began_at: datetime | None = None
    _launched_at: datetime | None = None
    _spent_usd: Decimal = Decimal(0)
    _rounds: int = 0

    def begin(self, cluster: Cluster) -> None:
        """Note that a cluster is up; it keeps the deadline of those that were lost."""
        now = self.context.clock.now()
        self._began_at, self._launched_at, self._rounds = self._began_at or now, now, 0
        if self.left:
            carry_deadline(self.context.clusters, self.left[-1], cluster.cluster_id, now=now)

    def can_leave(self, cluster: Cluster, plan: Plan, recipe: Recipe) -> bool:
        """True if nothing is left of a cluster that was refused or lost, and another Region may be asked."""
        ended = self.context.clusters.find(cluster.cluster_id)
        if ended is None or ended.state is not ClusterState.DOWN or not recipe.regions:
            return False
        if self._launched_at is not None:
            now = self.context.clock.now()
            self.left_at[plan.region] = now
            hours = (now - self._launched_at).total_seconds() / SECONDS_PER_HOUR
            self._spent_usd += (plan.hourly_usd or Decimal(0)) * Decimal(hours)
            self._launched_at = None
            self.left.append(cluster.cluster_id)
            self.elsewhere.clear()
        return self._began_at is not None or bool(self.elsewhere)

    def spot_elsewhere(self, plan: Plan) -> dict[str, float]:
        """Return what spot costs in the other Regions of a plan that this `up` has not left lately."""
        since = self.context.clock.now() - timedelta(seconds=RETURN_S)
        left = {plan.region, *(region for region, left_at in self.left_at.items() if left_at > since)}
        return {
            offer.region: float(offer.price.hourly_usd)
            for offer in plan.regions
            if offer.price is not None and offer.price.market is Market.SPOT and offer.region not in left
        }

    def remaining(self, recipe: Recipe) -> Recipe:
        """Return the recipe with what earlier clusters of this `up` have left of its budget."""
        if self._began_at is None or not self.left:
            return recipe
        hours = (self.context.clock.now() - self._began_at).total_seconds() / SECONDS_PER_HOUR
        budget = recipe.budget
        most = None if budget.max_usd is None else max(Decimal(0), budget.max_usd - self._spent_usd)
        rest = budget.model_copy(update={"max_hours": max(0.0, budget.max_hours - hours), "max_usd": most})
        return recipe.model_copy(update={"budget": rest})

    def following(self, lost: Plan, plan_again: Callable[[], Sequence[Plan]]) -> Plan:
        """Return the plan to carry out next; wait if all Regions were asked since the loss.

        Raises:
            CloudError: Every Region refuses, or the budget leaves no time.
        """
        if self.elsewhere:
            plan = self.elsewhere.pop(0)
            message = f"{lost.region} gives no instances: trying {plan.region}"
            self.context.emit(Warned(message=message))
            return plan
        if self._rounds:
            wait_s = min(FIRST_WAIT_S * 2 ** (self._rounds - 1), LONGEST_WAIT_S)
            self.context.emit(Warned(message=f"no region has capacity; next try in {wait_s:.0f} s"))
            self.context.clock.sleep(wait_s)
        self._rounds += 1
        first, *self.elsewhere[:] = sorted(
            plan_again(), key=lambda plan: (plan.region == lost.region, plan.region != self.preferred)
        )
        if self._rounds == 1:
            message = f"{lost.region} has no capacity any more: continuing in {first.region}"
            self.context.emit(Info(message=message))
        return first
