"""A plan as a table: what `--dry-run` prints and what `up` shows before it spends."""

from dlcloud.core.cost import exact, money, rounded
from dlcloud.core.plan import Plan, Pool
from dlcloud.report.table import Cell, Report, Section


def plan_report(plan: Plan, *, command: str = "up", detached: bool = False) -> Report:
    """Return the plan: the pools in the order in which they are tried, with prices, totals and reasons."""
    return Report(
        command=command,
        records=[_record(plan, pool) for pool in plan.pools],
        sections=[_section(plan, _afterwards(plan, detached=detached))],
        empty="",
        extra={"plan": _whole(plan) | {"detached": detached}},
    )


def _section(plan: Plan, afterwards: str) -> Section:
    count = (
        str(plan.max_count) if plan.min_count == plan.max_count else f"{plan.min_count} to {plan.max_count}"
    )
    notes = [
        f"{count} instance(s) for {plan.workload}",
        f"image {plan.image.image_id}, {plan.disk_gib} GiB of encrypted gp3",
        f"SSH from {plan.cidr} only; account {plan.account}, {plan.region}",
        _money(plan),
        *_conditions(plan),
        afterwards,
        *plan.reasons,
    ]
    if plan.rehearsal:
        notes.insert(0, "rehearsal on this machine: nothing is billed, prices are those of the types")
    return Section(
        heading=f"plan of {plan.name} on {plan.cloud}",
        titles=("try", "type", "market", "zone", "USD/h each", "price of"),
        rows=[_row(number, pool) for number, pool in enumerate(plan.pools, start=1)],
        notes=notes,
        numeric=frozenset({4}),
    )


def _afterwards(plan: Plan, *, detached: bool) -> str:
    """Return what becomes of the instances when the workload has ended."""
    if detached:
        return (
            "detached: the coordinator controls the others; when the training has ended it\n"
            f"ends them, and waits with the results for dlcloud down until {waits_until(plan)}"
        )
    return (
        "kept up afterwards: dlcloud down ends it" if plan.keep else "terminated when the workload has ended"
    )


def waits_until(plan: Plan) -> str:
    """Return when a coordinator that nobody fetches results from ends itself, by the recipe's budget."""
    latest = f"{plan.life_minutes} minutes after its launch"
    return latest if plan.idle_minutes is None else f"{plan.idle_minutes} minutes without work, or {latest}"


def _money(plan: Plan) -> str:
    if plan.hourly_usd is None or plan.worst_case_usd is None:
        return f"cost unknown; instances end themselves after {plan.life_minutes} minutes at the latest"
    return (
        f"{rounded(plan.hourly_usd)} USD/h at most; worst case {money(plan.worst_case_usd)} USD:\n"
        f"instances end themselves after {plan.life_minutes} minutes, with the launcher gone too"
    )


def _conditions(plan: Plan) -> list[str]:
    """Return what else bounds the cost, where the recipe says so."""
    told = []
    if plan.idle_minutes is not None:
        told.append(f"each ends itself after {plan.idle_minutes} minutes without work")
    if plan.on_demand_base:
        told.append(f"{plan.on_demand_base} of them on-demand, the others spot")
    return told


def _row(number: int, pool: Pool) -> tuple[str, ...]:
    price = pool.price
    return (
        str(number),
        pool.instance_type,
        pool.market,
        pool.zone or "any",
        exact(price.hourly_usd) if price else "unknown",
        f"{price.as_of:%Y-%m-%d}, {price.source}" if price else "",
    )


def _record(plan: Plan, pool: Pool) -> dict[str, Cell]:
    return {
        "instance_type": pool.instance_type,
        "market": str(pool.market),
        "zone": pool.zone,
        "hourly_usd": pool.price.hourly_usd if pool.price else None,
        "price_as_of": pool.price.as_of if pool.price else None,
        "price_source": pool.price.source if pool.price else None,
        "rehearsal": plan.rehearsal,
    }


def _whole(plan: Plan) -> dict[str, Cell | list[str]]:
    return {
        "name": plan.name,
        "cloud": plan.cloud,
        "region": plan.region,
        "account": plan.account,
        "min_count": plan.min_count,
        "max_count": plan.max_count,
        "image_id": plan.image.image_id,
        "disk_gib": plan.disk_gib,
        "cidr": plan.cidr,
        "workload": plan.workload,
        "life_minutes": plan.life_minutes,
        "hourly_usd": plan.hourly_usd,
        "worst_case_usd": plan.worst_case_usd,
        "reasons": list(plan.reasons),
        "keep": plan.keep,
        "idle_minutes": plan.idle_minutes,
        "on_demand_base": plan.on_demand_base,
        "max_usd": plan.max_usd,
        "rehearsal": plan.rehearsal,
    }
