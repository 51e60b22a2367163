"""`dlcloud budget`: the limit of a month, and what is left of it."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from dlcloud.analysis.spending import (
    HomeMonth,
    MonthState,
    PendingPlan,
    costs_of_clusters,
    month_of,
    spent_in,
    still_pending,
    yet_to_cost,
)
from dlcloud.app.context import Context
from dlcloud.app.profiles import configuration_file, forget_configuration, monthly_budget
from dlcloud.app.terminal.notification import notify, stored_target
from dlcloud.app.terminal.screen import say
from dlcloud.cloud.storage.buckets import Ledger, S3Ledger
from dlcloud.model.cluster import DEFAULT_REGION, Cluster
from dlcloud.model.errors import BudgetError, CloudError, DlcloudError, RecipeError, StoreError
from dlcloud.model.events import Warned
from dlcloud.model.money import money, rounded
from dlcloud.planning.plan import Plan
from dlcloud.recipe.profile import MonthlyBudget, read_configuration
from dlcloud.recipe.recipe import Recipe, read_recipe
from dlcloud.report.table import Cell, Format, Report, Section, render
from dlcloud.store.cache import AnswerCache
from dlcloud.store.home import home_id
from dlcloud.system.files import FileLock, write_file

_BLOCK = re.compile(r"^budget:.*\n?(?:[ \t#].*\n?|\n)*", re.MULTILINE)
NONE = "none"


def run(context: Context, *, amount: str, shared: str, rehearsals: bool | None, output: str) -> None:
    """Set the limit of a month, where an amount or a bucket is given, and print the month.

    Raises:
        RecipeError: The amount is none, or the file cannot be changed.
        BudgetError: There is no limit.
    """
    before = monthly_budget()
    if amount == NONE:
        _write(None)
        say(f"{configuration_file()}: no limit of a month", err=True)
        return
    budget = before or MonthlyBudget()
    if amount or shared or rehearsals is not None:
        budget = _changed(budget, amount, shared, rehearsals)
    if budget.monthly_usd is None and budget.shared is None:
        if rehearsals is not None:
            raise RecipeError("no limit of a month is set", "dlcloud budget 500/month sets one")
        empty = "no limit of a month is set: dlcloud budget 500/month sets one"
        say(render(Report(command="budget", records=[], sections=[], empty=empty), Format(output)))
        return
    if budget != before:
        _write(budget)
    cloud = "local" if budget.rehearsals else "aws"
    book = MonthBook(context=context, budget=budget, cloud=cloud, region=_region(context, cloud))
    if amount and budget.shared is not None and budget.monthly_usd is not None:
        book.set_limit(budget.monthly_usd)
    state = book.state()
    book.settle()
    say(render(_report(context, state, budget), Format(output)))


def _region(context: Context, cloud: str) -> str:
    return DEFAULT_REGION if cloud == "local" else context.first_region


def _changed(budget: MonthlyBudget, amount: str, shared: str, rehearsals: bool | None) -> MonthlyBudget:  # noqa: FBT001
    values = budget.model_dump(mode="json", exclude_none=True)
    values |= {"monthly_usd": str(amount_of(amount))} if amount else {}
    values |= {"shared": shared} if shared else {}
    values |= {"rehearsals": rehearsals} if rehearsals is not None else {}
    text = "budget:\n" + "".join(f"  {name}: {_yaml(value)}\n" for name, value in values.items())
    changed = read_configuration(text, "budget").budget
    return changed or MonthlyBudget()


def amount_of(text: str) -> Decimal:
    """Return the USD of `500/month` or `500`.

    Raises:
        RecipeError: It is no amount.
    """
    number = text.removesuffix("/month").removesuffix("USD").strip()
    try:
        usd = Decimal(number)
    except InvalidOperation:
        usd = Decimal(0)
    if not usd.is_finite() or usd <= 0:
        raise RecipeError(f"{text} is no amount of a month", "dlcloud budget 500/month")
    return usd


def _write(budget: MonthlyBudget | None) -> None:
    """Replace the budget in the configuration file; the rest of the file stays as it is."""
    path = configuration_file()
    try:
        text = path.read_text("utf-8") if path.exists() else ""
        text = _BLOCK.sub("", text, count=1)
        if budget is not None:
            values = budget.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
            lines = "".join(f"  {name}: {_yaml(value)}\n" for name, value in values.items())
            text = f"{text.rstrip()}\n" if text.strip() else ""
            text += f"budget:\n{lines}"
        read_configuration(text, str(path))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(path, text)
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot change {path}: {error}", "see docs/profiles.md") from error
    forget_configuration()


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _report(context: Context, state: MonthState, budget: MonthlyBudget) -> Report:
    own = home_id(context.paths)
    share = round(100 * state.spent / state.limit)
    rows = [
        (
            f"{name} (this one)" if name == own else name,
            money(home.spent),
            money(home.committed),
            f"{home.as_of:%Y-%m-%d %H:%M}",
        )
        for name, home in sorted(state.homes.items())
    ]
    billed = (
        "AWS's bill was not asked, or is not known"
        if state.billed is None
        else (f"AWS billed {money(state.billed)} USD so far, about a day behind")
    )
    parts = f"spent {money(state.spent)} ({share} %), may yet cost {money(state.committed)}"
    place = f"shared in {budget.shared}" if budget.shared else "for this home alone: --shared shares it"
    notes = [f"limit {money(state.limit)} USD, {parts}, left {money(state.left)}", billed, place]
    section = Section(
        heading=f"budget of {state.month}",
        titles=("home", "spent USD", "may yet cost USD", "as of"),
        rows=rows,
        notes=notes,
        numeric=frozenset({1, 2}),
    )
    record: dict[str, Cell] = {
        "month": state.month,
        "limit_usd": state.limit,
        "spent_usd": rounded(state.spent, 6),
        "billed_usd": state.billed,
        "committed_usd": rounded(state.committed, 6),
        "left_usd": rounded(state.left, 6),
        "homes": len(state.homes),
        "shared": budget.shared or "",
    }
    return Report(command="budget", records=[record], sections=[section], empty="")


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
        account = self.context.clouds.clients.get(self.cloud, self.region).identity()
        subject = f"billed {account} {month_of(now)}"
        answer = cache.get(subject)
        if answer is not None and now < answer[1] + BILLED_AGE:
            return Decimal(answer[0]) if answer[0] else None
        try:
            usd = self.context.clouds.billing().of_month(now)
        except CloudError as error:
            self.context.emit(Warned(message=f"AWS's bill is not known: {error.message}; {error.hint}"))
            usd = None
        # A refusal is kept, too: each question costs 0.01 USD.
        cache.put(subject, "" if usd is None else str(usd), now)
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
