"""Plans as tables: what `--dry-run` prints, and `up` and `resize` show before they spend.

`plan_report` has a row for each capacity pool in the order in which it is tried, then what bounds the cost
and what happens at the end. `resize_report` has a row for each instance that stays, ends or is launched.
"""

from collections.abc import Iterator, Sequence

from dlcloud.model.cluster import NEW_GROUP, Member
from dlcloud.model.instance import X86_64, Market
from dlcloud.model.money import ZONE_TRAFFIC_USD_PER_GB, describe_surcharges, exact, money, rounded
from dlcloud.planning.plan import CapacityPool, Plan
from dlcloud.planning.reservations import MARGINAL_USD, ReservedCapacity
from dlcloud.planning.resize import Resize
from dlcloud.report.table import Cell, Report, Section

RESERVED = "reserved"
"""The word that stands in place of a market for instances in a reservation."""


def plan_report(plan: Plan, *, command: str = "up", detached: bool = False) -> Report:
    """Return the plan: the pools in the order in which they are tried, with prices, totals and reasons."""
    return Report(
        command=command,
        records=[
            *(_reserved_record(plan, one) for one in plan.reserved),
            *(_record(plan, pool) for pool in plan.pools),
        ],
        sections=[*_regions(plan), _section(plan, detached=detached)],
        empty="",
        extra={"plan": _whole(plan) | {"detached": detached}, **_regions_record(plan)},
    )


def _regions(plan: Plan) -> list[Section]:
    """Return the table of the regions that the recipe names, in the order in which they are tried."""
    rows = [
        (
            offer.region,
            offer.instance_type,
            exact(offer.price.hourly_usd) if offer.price else "",
            money(offer.traffic_usd) if offer.traffic_usd else "",
            money(offer.job_usd) if offer.job_usd is not None else "",
            offer.refusal.partition("\n")[0],
        )
        for offer in plan.regions
    ]
    note = f"job: {plan.max_count} instance(s) of the first pool for {plan.life_minutes} minutes, with disks"
    section = Section(
        heading=f"regions for {plan.name}, the cheapest first",
        titles=("region", "first", "USD/h each", "traffic", "job at most", "left out"),
        rows=rows,
        notes=[f"{note}, addresses and the traffic of data between regions"],
        numeric=frozenset({2, 3, 4}),
    )
    return [section] if rows else []


def _regions_record(plan: Plan) -> dict[str, list[dict[str, Cell]]]:
    records: list[dict[str, Cell]] = [
        {
            "region": offer.region,
            "instance_type": offer.instance_type or None,
            "hourly_usd": offer.price.hourly_usd if offer.price else None,
            "traffic_usd": offer.traffic_usd,
            "job_usd": offer.job_usd,
            "refusal": offer.refusal or None,
        }
        for offer in plan.regions
    ]
    return {"regions": records} if records else {}


def _section(plan: Plan, *, detached: bool) -> Section:
    count = (
        str(plan.max_count) if plan.min_count == plan.max_count else f"{plan.min_count} to {plan.max_count}"
    )
    machine = plan.machine
    notes = [
        f"{count} instance{'' if count == '1' else 's'}: {plan.workload}",
        f"image {machine.image.image_id}{_architecture(plan)}, {machine.disk_gib} GiB of encrypted gp3",
        _way_in(plan),
        *filter(None, [machine.network.describe()]),
        _cost(plan),
        *_conditions(plan),
        _afterwards(plan, detached=detached),
        *plan.reasons,
    ]
    if plan.rehearsal:
        notes.insert(0, "rehearsal on this machine: nothing is billed, prices are those of the types")
    return Section(
        heading=f"plan of {plan.name} on {plan.cloud}",
        titles=("try", "type", "market", "zone", "USD/h each", "price of"),
        rows=[
            *(_reserved_row(number, one) for number, one in enumerate(plan.reserved, start=1)),
            *_rows(plan),
        ],
        notes=notes,
        numeric=frozenset({4}),
    )


def _way_in(plan: Plan) -> str:
    networks = f"SSH from {', '.join(plan.cidrs)} only" if plan.cidrs else "SSH from no network"
    return f"{networks}; account {plan.account}, {plan.region}"


def _architecture(plan: Plan) -> str:
    """Return the image's architecture where it is not the usual one."""
    return "" if plan.machine.image.architecture in {"", X86_64} else f" ({plan.machine.image.architecture})"


def _afterwards(plan: Plan, *, detached: bool) -> str:
    """Return what happens to the instances when the workload has ended."""
    if detached:
        return (
            "detached: the coordinator controls the others; when the work has ended it\n"
            f"ends them, and waits with the results for dlcloud down until {waits_until(plan)}"
        )
    return (
        "kept up afterwards: dlcloud down ends it" if plan.keep else "terminated when the workload has ended"
    )


def waits_until(plan: Plan) -> str:
    """Return when a coordinator whose results are never fetched ends itself, by the recipe's budget."""
    latest = f"{plan.life_minutes} minutes after its launch"
    return latest if plan.idle_minutes is None else f"{plan.idle_minutes} minutes without work, or {latest}"


def _cost(plan: Plan) -> str:
    if plan.hourly_usd is None or plan.worst_case_usd is None:
        return f"cost unknown; instances terminate themselves after {plan.life_minutes} minutes at the latest"
    return (
        f"{rounded(plan.hourly_usd)} USD/h at most; worst case {money(plan.worst_case_usd)} USD:\n"
        f"instances terminate themselves after {plan.life_minutes} minutes, with the launcher gone too\n"
        f"({describe_surcharges(plan.region)})"
    )


def _conditions(plan: Plan) -> list[str]:
    """Return what else bounds the cost, where the recipe says so."""
    conditions = []
    if plan.idle_minutes is not None:
        conditions.append(f"each terminates itself after {plan.idle_minutes} minutes without work")
    if plan.on_demand_base:
        conditions.append(f"{plan.on_demand_base} of them on-demand, the others spot")
    if plan.one_zone:
        conditions.append(
            "all in one zone as far as it has capacity; traffic between zones, "
            f"{ZONE_TRAFFIC_USD_PER_GB} USD per GB, is not counted"
        )
    if group := plan.machine.placement_group:
        name = "its own placement group" if group == NEW_GROUP else group
        conditions.append(f"near each other, in {name}")
    if plan.machine.efa_interfaces:
        conditions.append(f"{plan.machine.efa_interfaces} EFA interface(s) each")
    spot = [pool.instance_type for pool in plan.pools if pool.market is Market.SPOT]
    if len(set(spot)) > 1:
        conditions.append("of the spot types EC2 chooses, by price and capacity")
    if spot:
        conditions.append(
            "a spot instance that EC2 interrupts in its first hour is free except for disk and address"
        )
    return conditions


def _reserved_row(number: int, one: ReservedCapacity) -> tuple[str, ...]:
    reservation = one.reservation
    source = f"marginal: {one.count} of {reservation.reservation_id}"
    return (str(number), reservation.instance_type, RESERVED, reservation.zone, "0", source)


def _reserved_record(plan: Plan, one: ReservedCapacity) -> dict[str, Cell]:
    return {
        "instance_type": one.reservation.instance_type,
        "market": RESERVED,
        "zone": one.reservation.zone,
        "hourly_usd": MARGINAL_USD,
        "price_as_of": None,
        "price_source": f"marginal: {one.count} of {one.reservation_id}, which is paid for anyway",
        "rehearsal": plan.rehearsal,
    }


def _rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Yield a row for each pool; spot pools have one number, as they are one request."""
    number = len(plan.reserved)
    market: Market | None = None
    for pool in plan.pools:
        number += market is not Market.SPOT or pool.market is not market
        market = pool.market
        yield _row(number, pool, plan)


def _row(number: int, pool: CapacityPool, plan: Plan) -> tuple[str, ...]:
    price = pool.price
    return (
        str(number),
        pool.instance_type,
        pool.market,
        pool.zone or (f"any of {plan.region}" if plan.regions else "any"),
        exact(price.hourly_usd) if price else "unknown",
        f"{price.as_of:%Y-%m-%d}, {price.source}" if price else "",
    )


def _record(plan: Plan, pool: CapacityPool) -> dict[str, Cell]:
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
        "image_id": plan.machine.image.image_id,
        "disk_gib": plan.machine.disk_gib,
        "cidr": ", ".join(plan.cidrs),
        "vpc": plan.machine.network.vpc_id,
        "access": str(plan.machine.network.access),
        "workload": plan.workload,
        "life_minutes": plan.life_minutes,
        "hourly_usd": plan.hourly_usd,
        "worst_case_usd": plan.worst_case_usd,
        "reasons": list(plan.reasons),
        "keep": plan.keep,
        "idle_minutes": plan.idle_minutes,
        "on_demand_base": plan.on_demand_base,
        "one_zone": plan.one_zone,
        "reserved": plan.reserved_count,
        "placement_group": plan.machine.placement_group,
        "efa_interfaces": plan.machine.efa_interfaces,
        "max_usd": plan.max_usd,
        "rehearsal": plan.rehearsal,
    }


def resize_report(
    resize: Resize, plan: Plan | None, cluster: str = "", done: Sequence[Member] | None = None
) -> Report:
    """Return which instances stay, end and are launched, with prices: before the resize, or after it.

    `plan` has the pools to launch from; None if no instance is launched. `done` are the cluster's instances
    after the resize; None before it.
    """
    records: list[dict[str, Cell]] = [
        _member_record("end" if done is None else "ended", member) for member in resize.end
    ]
    if done is not None:
        records += [_member_record("up", member) for member in done]
    elif plan is not None:
        records += _pool_records(resize, plan)
    heading = _resize_heading(resize, cluster, done)
    section = Section(
        heading=heading,
        titles=("action", "instance", "type", "market", "zone", "USD/h"),
        rows=[tuple("" if value is None else str(value) for value in record.values()) for record in records],
        notes=_resize_notes(resize, plan) if done is None else [],
        numeric=frozenset({5}),
    )
    summary = {
        "cluster": cluster,
        "target": resize.target,
        "present": resize.present,
        "launch": resize.launch,
        "launch_on_demand": resize.on_demand,
        "end": [member.instance.instance_id for member in resize.end],
        "done": done is not None,
        "hourly_usd": plan.hourly_usd if plan else None,
        "worst_case_usd": plan.worst_case_usd if plan else None,
        "life_minutes": plan.life_minutes if plan else None,
        "reasons": [*resize.reasons, *(plan.reasons if plan else ())],
    }
    return Report(
        command="resize",
        records=records,
        sections=[section] if records else [],
        empty=heading,
        extra={"resize": summary},
    )


def _resize_heading(resize: Resize, cluster: str, done: Sequence[Member] | None) -> str:
    name = f"{cluster}: " if cluster else ""
    if done is not None:
        return f"{name}{len(done)} instance(s) are up"
    if resize.nothing:
        return f"{name}{resize.present} instance(s) are up; nothing is to be done"
    return f"{name}{resize.present} instance(s) are up, {resize.target} are to be"


def _member_record(action: str, member: Member) -> dict[str, Cell]:
    instance = member.instance
    return {
        "action": action,
        "instance_id": instance.instance_id,
        "instance_type": instance.instance_type,
        "market": RESERVED if instance.reservation_id else str(instance.market),
        "zone": instance.zone,
        "hourly_usd": member.hourly_usd,
    }


def _pool_records(resize: Resize, plan: Plan) -> list[dict[str, Cell]]:
    """Return the pools that are asked, in their order; how many each gives, EC2 decides."""
    markets = {*plan.rounds, *([Market.ON_DEMAND] if resize.on_demand else [])}
    reserved: list[dict[str, Cell]] = [
        {
            "action": "launch from",
            "instance_id": "",
            "instance_type": one.reservation.instance_type,
            "market": RESERVED,
            "zone": one.reservation.zone,
            "hourly_usd": MARGINAL_USD,
        }
        for one in plan.reserved
    ]
    return reserved + [
        {
            "action": "launch from",
            "instance_id": "",
            "instance_type": pool.instance_type,
            "market": str(pool.market),
            "zone": pool.zone or "any",
            "hourly_usd": pool.price.hourly_usd if pool.price else None,
        }
        for pool in plan.pools
        if pool.market in markets
    ]


def _resize_notes(resize: Resize, plan: Plan | None) -> list[str]:
    notes = [f"{resize.launch} to be launched"] if resize.launch else []
    notes += resize.reasons
    if plan is None:
        return notes
    hourly, worst = plan.hourly_usd, plan.worst_case_usd
    cost = "cost unknown"
    if hourly is not None and worst is not None:
        cost = f"{rounded(hourly)} USD/h at most in all; worst case {money(worst)} USD"
    ends = f"new instances terminate themselves after {plan.life_minutes} minutes, with the launcher gone too"
    return [*notes, f"SSH from {', '.join(plan.cidrs)} only", cost, ends, *plan.reasons]
