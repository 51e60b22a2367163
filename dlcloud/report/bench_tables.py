"""A bench as tables: the plan of each type, what is left out with its reason, and how a race ended."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from dlcloud.analysis.bench import BenchmarkMatrix, rehearsal_s
from dlcloud.model.errors import CloudError
from dlcloud.model.money import exact, money, rounded, total_usd
from dlcloud.planning.fit import Fit, LeftOut
from dlcloud.planning.plan import Plan, QuotaPlace
from dlcloud.planning.quotas import Quota
from dlcloud.prediction.racing import RaceCandidate, RaceResult, Verdict
from dlcloud.report.table import Cell, Report, Section

LEAST_MINUTES_S = 120.0
"""An estimate of less is stated in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypePlan:
    """The plan of one instance type.

    Attributes:
        fit: The jobs that run there, by the type's hardware.
        waiting: The jobs that fit and are not done yet.
        plan: The launch; None if nothing is waiting, or no instance is available.
        refused: Why no instance is available.
        elsewhere: The launches in other regions, the cheapest first.
    """

    instance_type: str
    fit: Fit
    waiting: tuple[str, ...]
    plan: Plan | None = None
    refused: CloudError | None = None
    elsewhere: tuple[Plan, ...] = ()


def shared_needs(types: Sequence[TypePlan]) -> dict[QuotaPlace, tuple[Quota, int]]:
    """Return the quotas that the types count against, with the vCPUs of all types together.

    A quota is of one Region; those of Regions that only a failover would use need nothing yet.
    """
    needs: dict[QuotaPlace, tuple[Quota, int]] = {}
    for planned in types:
        for place, (quota, vcpus) in (planned.plan.needs_by_place if planned.plan else {}).items():
            needs[place] = quota, vcpus + needs.get(place, (quota, 0))[1]
    for plan in (plan for planned in types for plan in planned.elsewhere):
        for place, (quota, _) in plan.needs_by_place.items():
            needs.setdefault(place, (quota, 0))
    return needs


def plan_report(
    types: Sequence[TypePlan], matrix: BenchmarkMatrix, *, shorter: str = "", choice: Sequence[str] = ()
) -> Report:
    """Return the plan of a bench: a row a type, then what is left out.

    `shorter` says what the shortest useful run takes, with its command; `choice` how the types were chosen.
    """
    left_out = [(planned.instance_type, part) for planned in types for part in planned.fit.left_out]
    return Report(
        command="bench",
        records=[_record(planned) for planned in types],
        sections=[
            _plan_section(types, matrix, shorter, choice),
            *left_out_sections(left_out, rehearsal=matrix.base.cloud == "local"),
        ],
        empty="",
        extra={"left_out": left_out_records(left_out), **({"choice": list(choice)} if choice else {})},
    )


def left_out_sections(left_out: Iterable[tuple[str, LeftOut]], *, rehearsal: bool) -> list[Section]:
    """Return the table of settings that do not run on a type; no section if all do."""
    rows = [(name, part.benchmark, part.setting or "all", part.reason) for name, part in left_out]
    titles = ("type", "benchmark", "setting", "why")
    notes = (
        ["on AWS; a rehearsal measures what this machine's CPU can compute, these too"] if rehearsal else []
    )
    return [Section(heading="left out", titles=titles, rows=rows, notes=notes)] if rows else []


def left_out_records(left_out: Iterable[tuple[str, LeftOut]]) -> list[Mapping[str, Any]]:
    return [
        {
            "instance_type": name,
            "benchmark": part.benchmark,
            "setting": part.setting or None,
            "reason": part.reason,
        }
        for name, part in left_out
    ]


def _plan_section(
    types: Sequence[TypePlan], matrix: BenchmarkMatrix, shorter: str, choice: Sequence[str]
) -> Section:
    plans = [planned.plan for planned in types if planned.plan is not None]
    notes = [*choice]
    if any(plan.rehearsal for plan in plans):
        notes.append("rehearsal on this machine, one type after the other: nothing is billed")
        notes.append(_estimate(types, matrix))
        notes += [shorter] if shorter else []
    notes.append(_cost(plans))
    for (region, _), (quota, vcpus) in shared_needs(types).items():
        if vcpus > quota.left:
            notes.append(
                f"types wait for each other: together they take {vcpus} vCPUs; {quota.describe()}. "
                f"To run them together: {quota.increase(vcpus, region)}"
            )
    for planned in types:
        reasons = planned.plan.reasons if planned.plan else ()
        notes += [f"{planned.instance_type}: {reason}" for reason in reasons]
        notes += [
            f"{part.benchmark} {part.setting}".rstrip() + f": {part.reason}" for part in planned.fit.advice
        ]
        if planned.refused is not None:
            notes.append(f"{planned.instance_type} is not available: {planned.refused.message}")
    is_job = any(plan.max_count > 1 for plan in plans)
    has_regions = any(plan.regions for plan in plans)
    if has_regions:
        names = sorted({offer.region for plan in plans for offer in plan.regions})
        notes.insert(0, f"each type is measured once, in its cheapest region of {', '.join(names)}")
    return Section(
        heading=f"plan of {matrix.base.name}: every type in parallel, each terminated as soon as it is done",
        titles=(
            *("type", *(["region"] if has_regions else []), *(["instances"] if is_job else [])),
            *("market", "USD/h", "runs"),
        ),
        rows=[_row(planned, is_job=is_job, has_regions=has_regions) for planned in types],
        notes=notes,
        numeric=frozenset(place + has_regions for place in ({1, 3} if is_job else {2})),
    )


def _estimate(types: Sequence[TypePlan], matrix: BenchmarkMatrix) -> str:
    """Return how long a rehearsal takes: its parts, of all types together."""
    parts: dict[str, float] = {}
    unknown: set[str] = set()
    for job in matrix.jobs:
        seconds, count = rehearsal_s(job), sum(job.name in planned.waiting for planned in types)
        if seconds is None and count:
            unknown.add(job.name)
        elif seconds is not None and count:
            parts[job.name] = seconds * count
    if not parts:
        return "how long the command takes is not known; it runs workload.repeats times a setting"
    names = ", ".join(f"{name} {_about(seconds)}" for name, seconds in parts.items())
    total = f"about {_about(sum(parts.values()))} on two cores, environments apart: {names}"
    return f"{total}; {', '.join(sorted(unknown))} unknown" if unknown else total


def describe_shorter(command: str, tiny_s: float | None, full_s: float | None) -> str:
    """Return the command of the shortest useful run with its time, next to the full one, as a comment."""
    if tiny_s is None or full_s is None:
        return command
    return f"{command} # about {_about(tiny_s)}; in full about {_about(full_s)}; environments apart"


def _about(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= LEAST_MINUTES_S else f"{seconds:.0f} s"


def _row(planned: TypePlan, *, is_job: bool, has_regions: bool) -> tuple[str, ...]:
    """Return a type with the price of an hour of all its instances."""
    plan = planned.plan
    if plan is None:
        unknown = [""] * (is_job + has_regions)
        return (planned.instance_type, *unknown, "", "", _why_not(planned))
    pool, count = plan.pools[0], [str(plan.max_count)] if is_job else []
    usd = exact(pool.price.hourly_usd * plan.max_count) if pool.price else "unknown"
    region = [plan.region] if has_regions else []
    return (planned.instance_type, *region, *count, pool.market, usd, ", ".join(planned.waiting))


def _why_not(planned: TypePlan) -> str:
    if planned.refused is not None:
        return "not available"
    return "all was measured before" if planned.fit.benchmarks else "nothing fits it"


def _cost(plans: Sequence[Plan]) -> str:
    if not plans:
        return "nothing is launched"
    life = max(plan.life_minutes for plan in plans)
    ends = f"instances terminate themselves after {life} minutes, with the launcher gone too"
    hourly = total_usd(plan.hourly_usd for plan in plans)
    worst = total_usd(plan.worst_case_usd for plan in plans)
    if hourly is None or worst is None:
        return f"cost unknown; {ends}"
    return f"at most {rounded(hourly)} USD/h while all are up; worst case {money(worst)} USD:\n{ends}"


def _record(planned: TypePlan) -> dict[str, Cell]:
    plan = planned.plan
    pool = plan.pools[0] if plan else None
    return {
        "instance_type": planned.instance_type,
        "region": plan.region if plan else None,
        "market": str(pool.market) if pool else None,
        "hourly_usd": plan.hourly_usd if plan else None,
        "worst_case_usd": plan.worst_case_usd if plan else None,
        "price_as_of": pool.price.as_of if pool and pool.price else None,
        "runs": ", ".join(planned.waiting),
        "refused": planned.refused.message if planned.refused else None,
        "rehearsal": plan.rehearsal if plan else None,
    }


_HEADINGS = {
    Verdict.DECIDED: "the cheapest: ",
    Verdict.TIED: "a tie: ",
    Verdict.UNDECIDED: "not decided: ",
    Verdict.GOES_ON: "the race was not ended: ",
}


def race_section(result: RaceResult, *, rehearsal: bool) -> Section:
    """Return the table of a race, the cheapest first; its heading is the answer."""
    remark = " (rehearsal: no figure of these types)" if rehearsal else ""
    text = f"{result.kept[0]}" if result.verdict is Verdict.DECIDED else result.reason
    notes = [f"{name} left the race: {reason}" for name, reason in result.left.items()]
    notes.append("USD/M: per million items on this market; its interval holds at every look of the race")
    return Section(
        heading=f"race{remark}: {_HEADINGS[result.verdict]}{text}",
        titles=("candidate", "samples", result.unit, "USD/M", "interval", "outcome"),
        rows=[_race_row(lane, result) for lane in _ordered(result)],
        notes=notes,
        numeric=frozenset({1, 2, 3}),
        leads=3,
    )


def race_record(result: RaceResult) -> Mapping[str, Any]:
    return {
        "verdict": result.verdict.value,
        "reason": result.reason,
        "kept": list(result.kept),
        "left": dict(result.left),
        "candidates": [_race_record(lane, result) for lane in _ordered(result)],
    }


def _ordered(result: RaceResult) -> list[RaceCandidate]:
    kept = {label: place for place, label in enumerate(result.kept)}
    return sorted(result.lanes, key=lambda lane: (kept.get(lane.label, len(kept)), _middle(lane)))


def _middle(lane: RaceCandidate) -> float:
    return lane.hourly_usd / lane.throughput if lane.throughput else float("inf")


def _outcome(lane: RaceCandidate, result: RaceResult) -> str:
    if lane.stopped is not None:
        return f"stopped: {lane.stopped}"
    if lane.label not in result.kept:
        return "not measured"
    words = {Verdict.DECIDED: "the cheapest", Verdict.TIED: "tied"}
    return words.get(result.verdict, "can be the cheapest")


def _race_row(lane: RaceCandidate, result: RaceResult) -> tuple[str, ...]:
    rate = lane.throughput
    if rate is None:
        return (lane.label, "0", "", "", "", _outcome(lane, result))
    low, middle, high = lane.usd_per_million(result.error)
    interval = "" if low is None or high is None else f"{_money(low)} to {_money(high)}"
    count = str(len(lane.throughputs))
    return (lane.label, count, f"{rate:.4g}", _money(middle), interval, _outcome(lane, result))


def _money(usd: float) -> str:
    return money(Decimal(repr(usd)))


def _race_record(lane: RaceCandidate, result: RaceResult) -> dict[str, Any]:
    low, middle, high = lane.usd_per_million(result.error) if lane.throughputs else (None, None, None)
    return {
        "instance_type": lane.instance_type,
        "setting": lane.setting or None,
        "samples": len(lane.throughputs),
        "unit": result.unit,
        "throughput": lane.throughput,
        "usd_per_million": middle,
        "usd_per_million_low": low,
        "usd_per_million_high": high,
        "outcome": _outcome(lane, result),
    }
