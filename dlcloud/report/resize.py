"""A resize as a table: which instances stay, end and are launched, with prices."""

from collections.abc import Sequence

from dlcloud.core.cluster import Member
from dlcloud.core.cost import money, rounded
from dlcloud.core.instance import Market
from dlcloud.core.plan import Plan
from dlcloud.core.resize import Resize
from dlcloud.report.table import Cell, Report, Section


def resize_report(
    decision: Resize, plan: Plan | None, cluster: str = "", done: Sequence[Member] | None = None
) -> Report:
    """Return what is to be done, or what was.

    Args:
        decision: Which instances end, how many are launched.
        plan: From which pools; None where none is launched.
        cluster: The cluster's name.
        done: The instances that the cluster has afterwards; None while nothing was done.
    """
    records = [_of_member("end" if done is None else "ended", member) for member in decision.end]
    if done is not None:
        records += [_of_member("up", member) for member in done]
    elif plan is not None:
        records += _of_pools(decision, plan)
    section = Section(
        heading=_heading(decision, cluster, done),
        titles=("action", "instance", "type", "market", "zone", "USD/h"),
        rows=[tuple("" if value is None else str(value) for value in each.values()) for each in records],
        notes=_notes(decision, plan, done),
        numeric=frozenset({5}),
    )
    return Report(
        command="resize",
        records=records,
        sections=[section] if records else [],
        empty=_heading(decision, cluster, done),
        extra={
            "resize": {
                "cluster": cluster,
                "target": decision.target,
                "present": decision.present,
                "launch": decision.launch,
                "launch_on_demand": decision.on_demand,
                "end": [member.instance.instance_id for member in decision.end],
                "done": done is not None,
                "hourly_usd": plan.hourly_usd if plan else None,
                "worst_case_usd": plan.worst_case_usd if plan else None,
                "life_minutes": plan.life_minutes if plan else None,
                "reasons": [*decision.reasons, *(plan.reasons if plan else ())],
            }
        },
    )


def _heading(decision: Resize, cluster: str, done: Sequence[Member] | None) -> str:
    name = f"{cluster}: " if cluster else ""
    if done is not None:
        return f"{name}{len(done)} instance(s) are up"
    if decision.nothing:
        return f"{name}{decision.present} instance(s) are up; nothing is to be done"
    return f"{name}{decision.present} instance(s) are up, {decision.target} are to be"


def _of_member(action: str, member: Member) -> dict[str, Cell]:
    instance = member.instance
    return {
        "action": action,
        "instance_id": instance.instance_id,
        "instance_type": instance.instance_type,
        "market": str(instance.market),
        "zone": instance.zone,
        "hourly_usd": member.hourly_usd,
    }


def _of_pools(decision: Resize, plan: Plan) -> list[dict[str, Cell]]:
    """Return the pools that are asked, in their order; how many each gives, EC2 decides."""
    asked = set(plan.rounds) | ({Market.ON_DEMAND} if decision.on_demand else set())
    return [
        {
            "action": "launch from",
            "instance_id": "",
            "instance_type": pool.instance_type,
            "market": str(pool.market),
            "zone": pool.zone or "any",
            "hourly_usd": pool.price.hourly_usd if pool.price else None,
        }
        for pool in plan.pools
        if pool.market in asked
    ]


def _notes(decision: Resize, plan: Plan | None, done: Sequence[Member] | None) -> list[str]:
    if done is not None:
        return []
    notes = []
    if decision.launch:
        notes.append(f"{decision.launch} to be launched")
    notes += decision.reasons
    if plan is not None:
        notes += [f"SSH from {plan.cidr} only", *_money(plan), *plan.reasons]
    return notes


def _money(plan: Plan) -> list[str]:
    ends = f"new instances end themselves after {plan.life_minutes} minutes, with the launcher gone too"
    if plan.hourly_usd is None or plan.worst_case_usd is None:
        return ["cost unknown", ends]
    told = f"{rounded(plan.hourly_usd)} USD/h at most in all; worst case {money(plan.worst_case_usd)} USD"
    return [told, ends]
