"""The limit of a month: no plan starts that could pass it, for everybody who shares its bucket.

Each home keeps its part in a document: what its clusters cost this month, and what they may yet cost. The
document is a file of the home, or an object that homes change in turn, so that two plans at once cannot both
have what is left.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

from dlcloud.app.context import Context
from dlcloud.app.profiles import configuration_file, monthly_budget
from dlcloud.app.terminal.notification import notify, stored_target
from dlcloud.cloud.storage.buckets import Ledger, S3Ledger
from dlcloud.model.cluster import Cluster
from dlcloud.model.errors import BudgetError, CloudError, DlcloudError, StoreError
from dlcloud.model.events import Warned
from dlcloud.model.money import money
from dlcloud.planning.plan import Plan
from dlcloud.recipe.profile import MonthlyBudget
from dlcloud.recipe.recipe import Recipe, read_recipe
from dlcloud.results.spending import (
    HomeMonth,
    MonthState,
    PendingPlan,
    costs_of_clusters,
    month_of,
    spent_in,
    still_pending,
    yet_to_cost,
)
from dlcloud.store.cache import AnswerCache
from dlcloud.store.home import home_id
from dlcloud.system.files import FileLock, write_file

DOCUMENT = "dlcloud-budget.json"
SCHEMA = 1
MONTHS_KEPT = 12
BILLED_AGE = timedelta(hours=12)
"""Cost Explorer is about a day behind, and each question costs 0.01 USD."""


def hold_month(context: Context, plans: Sequence[tuple[Plan, Cluster | None]]) -> None:
    """Refuse plans that could pass the limit of the month; else take what they may cost from what is left.

    Args:
        context: The collaborators.
        plans: With the clusters that they continue; None for new ones.

    Raises:
        BudgetError: They could pass it.
        CloudError: The bucket of the limit does not answer.
    """
    budget = monthly_budget()
    if budget is None or not plans or (plans[0][0].rehearsal and not budget.rehearsals):
        return
    first = plans[0][0]
    book = MonthBook(context=context, budget=budget, cloud=first.cloud, region=first.region)
    book.take(plans)
    context.at_exit(lambda: book.settle({plan.name for plan, _ in plans}))


@dataclass(frozen=True, kw_only=True)
class MonthBook:
    """The document of a limit, from the view of this home."""

    context: Context
    budget: MonthlyBudget
    cloud: str
    region: str

    def state(self) -> MonthState:
        """Return the month, with this home's part as it is now.

        Raises:
            BudgetError: No limit is known.
            CloudError: The bucket does not answer.
        """
        document = self._read()
        return self._state(document, self._own(document))

    def set_limit(self, usd: Decimal) -> None:
        """State the limit in the bucket, for everybody who shares it."""
        self._update(lambda document: {**document, "schema": SCHEMA, "monthly_usd": str(usd)})

    def take(self, plans: Sequence[tuple[Plan, Cluster | None]]) -> None:
        """Add plans to what may yet be spent, if there is enough left; see `hold_month`."""
        costs = [self._cost_of(plan, cluster) for plan, cluster in plans]
        usd = None if None in costs else sum((cost for cost in costs if cost is not None), Decimal(0))
        now = self.context.clock.now()

        def change(document: Ledger) -> Ledger:
            own = self._own(document)
            state = self._state(document, own)
            if reason := state.refusal(usd):
                raise BudgetError(
                    reason, "dlcloud budget shows the month; lower budget.max_usd or max_hours of the recipe"
                )
            new = [
                PendingPlan(name=plan.name, usd=cost or Decimal(0), at=now)
                for (plan, _), cost in zip(plans, costs, strict=True)
            ]
            committed = own.committed + (usd or Decimal(0))
            return self._with_own(document, replace(own, committed=committed, pending=(*own.pending, *new)))

        self._warn_of(self._state(document := self._update(change), self._own(document)))

    def settle(self, names: Collection[str] = ()) -> None:
        """Put down what clusters cost by now, without the plans of these names; never raises."""
        try:
            document = self._update(lambda now: self._with_own(now, self._own(now, without=names)))
            self._warn_of(self._state(document, self._own(document)))
        except DlcloudError as error:
            self.context.emit(Warned(message=f"the budget of the month is not up to date: {error.message}"))

    def _cost_of(self, plan: Plan, cluster: Cluster | None) -> Decimal | None:
        """Return what a plan may cost beyond what is counted of its cluster already; None if unknown."""
        if plan.worst_case_usd is None:
            return None
        counted = Decimal(0) if cluster is None else self._counted(cluster)
        return max(Decimal(0), plan.worst_case_usd - counted)

    def _counted(self, cluster: Cluster) -> Decimal:
        members = {cluster.cluster_id: self.context.clusters.members(cluster.cluster_id)}
        costs = costs_of_clusters([cluster], members, self.context.clock.now())
        return sum((cost.usd or Decimal(0) for cost in costs), self._yet(cluster))

    def _yet(self, cluster: Cluster) -> Decimal:
        budget = _recipe_of(cluster).budget
        members = self.context.clusters.members(cluster.cluster_id)
        return yet_to_cost(
            cluster,
            members,
            max_hours=budget.max_hours,
            max_usd=budget.max_usd,
            now=self.context.clock.now(),
        )

    def _own(self, document: Mapping[str, Any], without: Collection[str] = ()) -> HomeMonth:
        """Return this home's part by its store, with its plans that have no cluster yet."""
        context, now = self.context, self.context.clock.now()
        clusters = [
            cluster
            for cluster in context.clusters.all()
            if self.budget.rehearsals or cluster.cloud != "local"
        ]
        before = self._homes(document).get(home_id(context.paths))
        pending = [plan for plan in (before.pending if before else ()) if plan.name not in without]
        if pending:
            created = [(_recipe_of(cluster).name, cluster.created_at) for cluster in clusters]
            pending = still_pending(pending, created, now)
        members = {cluster.cluster_id: context.clusters.members(cluster.cluster_id) for cluster in clusters}
        active = {cluster.cluster_id for cluster in context.clusters.active()}
        yet = sum((self._yet(one) for one in clusters if one.cluster_id in active), Decimal(0))
        return HomeMonth(
            spent=spent_in(
                costs_of_clusters(clusters, members, now),
                month_of(now),
                rehearsals=self.budget.rehearsals,
            ),
            committed=yet + sum((plan.usd for plan in pending), Decimal(0)),
            pending=tuple(pending),
            as_of=now,
        )

    def _state(self, document: Mapping[str, Any], own: HomeMonth) -> MonthState:
        limits = [
            Decimal(str(limit)) for limit in (self.budget.monthly_usd, document.get("monthly_usd")) if limit
        ]
        if not limits:
            place = self.budget.shared or configuration_file()
            raise BudgetError(f"{place} states no limit of a month", "dlcloud budget 500/month sets one")
        return MonthState(
            month=month_of(self.context.clock.now()),
            limit=min(limits),
            homes={**self._homes(document), home_id(self.context.paths): own},
            billed=self._billed(),
        )

    def _homes(self, document: Mapping[str, Any]) -> dict[str, HomeMonth]:
        month = document.get("months", {}).get(month_of(self.context.clock.now()), {})
        homes = {}
        for name, values in month.items():
            with suppress(ValueError, ArithmeticError, KeyError, TypeError):
                homes[name] = HomeMonth.from_json(values)
        return homes

    def _with_own(self, document: Mapping[str, Any], own: HomeMonth) -> Ledger:
        month = month_of(self.context.clock.now())
        months = dict(document.get("months", {}))
        months[month] = {**months.get(month, {}), home_id(self.context.paths): own.to_json()}
        kept = {name: months[name] for name in sorted(months)[-MONTHS_KEPT:]}
        return {**document, "schema": SCHEMA, "months": kept}

    def _billed(self) -> Decimal | None:
        """Return what AWS billed this month; None where it does not say, as without the permission."""
        if self.cloud != "aws":
            return None
        now, cache = self.context.clock.now(), AnswerCache(self.context.database)
        subject = f"billed {self.context.profile} {month_of(now)}"
        answer = cache.get(subject)
        if answer is not None and now < answer[1] + BILLED_AGE:
            return Decimal(answer[0])
        try:
            usd = self.context.clouds.billing().of_month(now)
        except CloudError:
            return None
        cache.put(subject, str(usd), now)
        return usd

    def _warn_of(self, state: MonthState) -> None:
        """Notify once of each threshold that was passed in this month."""
        path = self.context.paths.budget_notices
        try:
            notices = json.loads(path.read_text("utf-8")) if path.exists() else {}
        except (OSError, ValueError):
            notices = {}
        percent = state.passed(int(notices.get(state.month, 0)))
        if not percent:
            return
        with suppress(OSError):
            write_file(path, json.dumps({state.month: percent}))
        amounts = f"{money(state.spent)} of {money(state.limit)} USD"
        message = f"{percent} % of the budget of {state.month} are spent: {amounts}"
        self.context.emit(Warned(message=message))
        target = stored_target(self.context.paths.home)
        if target and (reason := notify(target, message, "budget")):
            self.context.emit(Warned(message=f"the notification failed ({reason})"))

    def _read(self) -> Ledger:
        if self.budget.shared is not None:
            return self._shared(self.budget.shared).read()
        return self._read_file()

    def _update(self, change: Callable[[Ledger], Ledger]) -> Ledger:
        if self.budget.shared is not None:
            return self._shared(self.budget.shared).update(change)
        paths = self.context.paths
        with FileLock(paths.budget_lock):
            document = change(self._read_file())
            try:
                write_file(paths.budget, json.dumps(document, sort_keys=True))
            except OSError as error:
                raise StoreError(f"cannot write {paths.budget}: {error.strerror}") from error
        return document

    def _read_file(self) -> Ledger:
        path = self.context.paths.budget
        try:
            content = json.loads(path.read_text("utf-8")) if path.exists() else {}
        except (OSError, ValueError) as error:
            raise StoreError(f"cannot read {path}: {error}", f"rm {path}") from error
        return content if isinstance(content, dict) else {}

    def _shared(self, uri: str) -> S3Ledger:
        clients = self.context.clouds.clients.get(self.cloud, self.region)
        return S3Ledger(clients, uri, DOCUMENT)


def _recipe_of(cluster: Cluster) -> Recipe:
    return read_recipe(cluster.recipe_text, cluster.recipe_path)
