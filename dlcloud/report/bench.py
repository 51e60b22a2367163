"""A bench as tables: what it is going to do on each type, and what it left out and why."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlcloud.core.cost import exact, money, rounded, total_usd
from dlcloud.core.errors import CloudError
from dlcloud.core.fit import Fit, LeftOut
from dlcloud.core.plan import Plan
from dlcloud.report.table import Cell, Report, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class TypePlan:
    """What is planned for one type.

    Attributes:
        instance_type: Which.
        fit: What runs there, by what the type promises.
        waiting: The works that fit and are still to be done.
        plan: How an instance is had; None where nothing is to be done, or none can be had.
        refused: Why none can be had.
    """

    instance_type: str
    fit: Fit
    waiting: tuple[str, ...]
    plan: Plan | None = None
    refused: CloudError | None = None


def plan_report(planned: Sequence[TypePlan], *, name: str) -> Report:
    """Return what a bench is going to do: a line a type, then what is left out, and why."""
    return Report(
        command="bench",
        records=[_record(each) for each in planned],
        sections=[_plan_section(planned, name), *left_out_sections(_left_out(planned))],
        empty="",
        extra={"left_out": left_out_records(_left_out(planned))},
    )


def left_out_sections(left_out: Iterable[tuple[str, LeftOut]]) -> list[Section]:
    """Return the table of what is not run on a type; none where all is."""
    rows = [(name, each.benchmark, each.setting or "all", each.reason) for name, each in left_out]
    if not rows:
        return []
    section = Section(
        heading="left out",
        titles=("type", "benchmark", "setting", "why"),
        rows=rows,
        wrapped={3: 36},
    )
    return [section]


def left_out_records(left_out: Iterable[tuple[str, LeftOut]]) -> list[Mapping[str, Any]]:
    """Return the same for programs."""
    return [
        {
            "instance_type": name,
            "benchmark": each.benchmark,
            "setting": each.setting or None,
            "reason": each.reason,
        }
        for name, each in left_out
    ]


def _left_out(planned: Iterable[TypePlan]) -> list[tuple[str, LeftOut]]:
    return [(each.instance_type, left) for each in planned for left in each.fit.left_out]


def _plan_section(planned: Sequence[TypePlan], name: str) -> Section:
    notes = []
    if any(each.plan and each.plan.rehearsal for each in planned):
        notes.append("rehearsal on this machine, one type after the other: nothing is billed")
    notes.append(_money([each.plan for each in planned if each.plan is not None]))
    for each in planned:
        notes += [f"{each.instance_type}: {reason}" for reason in (each.plan.reasons if each.plan else ())]
        notes += [
            f"{left.benchmark} {left.setting}".rstrip() + f": {left.reason}" for left in each.fit.advice
        ]
        if each.refused is not None:
            notes.append(f"{each.instance_type} cannot be had: {each.refused.message}")
    return Section(
        heading=f"plan of {name}: every type at once, each terminated as soon as it is done",
        titles=("type", "market", "USD/h", "runs"),
        rows=[_row(each) for each in planned],
        notes=notes,
        numeric=frozenset({2}),
        wrapped={3: 40},
    )


def _row(each: TypePlan) -> tuple[str, ...]:
    if each.plan is None:
        told = "cannot be had" if each.refused is not None else _idle(each)
        return (each.instance_type, "", "", told)
    pool = each.plan.pools[0]
    usd = exact(pool.price.hourly_usd) if pool.price else "unknown"
    return (each.instance_type, pool.market, usd, ", ".join(each.waiting))


def _idle(each: TypePlan) -> str:
    return "nothing fits it" if not each.fit.benchmarks else "all was measured before"


def _money(plans: Sequence[Plan]) -> str:
    if not plans:
        return "nothing is launched"
    life = max(plan.life_minutes for plan in plans)
    ended = f"instances end themselves after {life} minutes, with the launcher gone too"
    hourly = total_usd(plan.hourly_usd for plan in plans)
    worst = total_usd(plan.worst_case_usd for plan in plans)
    if hourly is None or worst is None:
        return f"cost unknown; {ended}"
    return f"{rounded(hourly)} USD/h while all are up; worst case {money(worst)} USD:\n{ended}"


def _record(each: TypePlan) -> dict[str, Cell]:
    plan = each.plan
    pool = plan.pools[0] if plan else None
    return {
        "instance_type": each.instance_type,
        "market": str(pool.market) if pool else None,
        "hourly_usd": plan.hourly_usd if plan else None,
        "worst_case_usd": plan.worst_case_usd if plan else None,
        "price_as_of": pool.price.as_of if pool and pool.price else None,
        "runs": ", ".join(each.waiting),
        "refused": each.refused.message if each.refused else None,
        "rehearsal": plan.rehearsal if plan else None,
    }
