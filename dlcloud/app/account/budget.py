"""`dlcloud budget`: the limit of a month, and what is left of it."""

import re
from decimal import Decimal, InvalidOperation
from pathlib import Path

from dlcloud.app.context import Context
from dlcloud.app.month_budget import MonthBook
from dlcloud.app.profiles import configuration_file, forget_configuration, monthly_budget
from dlcloud.app.terminal.screen import say
from dlcloud.model.cluster import DEFAULT_REGION
from dlcloud.model.errors import RecipeError
from dlcloud.model.money import money, rounded
from dlcloud.recipe.profile import MonthlyBudget, read_configuration
from dlcloud.report.table import Cell, Format, Report, Section, render
from dlcloud.results.spending import MonthState
from dlcloud.store.home import home_id
from dlcloud.system.files import write_file

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
        raise RecipeError("no limit of a month is set", "dlcloud budget 500/month sets one")
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
        Path(path.parent).mkdir(parents=True, exist_ok=True)
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
