"""The user's job as a table: hours and USD on each instance type, on demand and spot."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dlcloud.model.instance import Market
from dlcloud.model.money import SECONDS_PER_HOUR, money, rounded
from dlcloud.report.cells import marked, setting
from dlcloud.report.durations import with_bounds
from dlcloud.report.table import Section
from dlcloud.results.cost import ResultRow
from dlcloud.results.ranking import newest_of_cases
from dlcloud.results.user_job import JobEstimate, UserJob, estimate_job, sort_estimates


def job_estimates(rows: Sequence[ResultRow], job: UserJob, market: Market) -> list[JobEstimate]:
    """Return the estimates of a job by the newest results, the cheapest first; real ones before rehearsed."""
    newest = [row for case in newest_of_cases(rows) for row in case]
    return sorted(sort_estimates(estimate_job(newest, job), market), key=lambda one: one.row.rehearsal)


def job_sections(rows: Sequence[ResultRow], job: UserJob, market: Market) -> list[Section]:
    """Return the table of a job; where no result counts its items, what they count."""
    estimates = job_estimates(rows, job, market)
    if not estimates:
        counted = ", ".join(dict.fromkeys(row.items for row in rows if row.throughput)) or "nothing"
        return [
            Section(
                heading=f"your job: {job.text}",
                titles=(),
                rows=(),
                notes=[f"no result counts {job.unit}; they count {counted}"],
                leads=1,
            )
        ]
    cases: dict[tuple[bool, str], list[JobEstimate]] = {}
    for estimate in estimates:
        cases.setdefault((estimate.row.rehearsal, case_name(estimate.row)), []).append(estimate)
    return _without_repetitions([_section(of_case, job) for of_case in cases.values()])


def _without_repetitions(sections: Sequence[Section]) -> list[Section]:
    """Leave each note to the last section that has it: they are read together."""
    return [
        replace(section, notes=[note for note in section.notes if not _has(sections[place:], note)])
        for place, section in enumerate(sections, 1)
    ]


def _has(sections: Sequence[Section], note: str) -> bool:
    return any(note in section.notes for section in sections)


def _section(estimates: Sequence[JobEstimate], job: UserJob) -> Section:
    rows = [estimate.row for estimate in estimates]
    is_rehearsal = rows[0].rehearsal
    types = list(dict.fromkeys(row.run.instance_type for row in rows))
    markets = [market for market in Market if any(row.prices.price(market) for row in rows)]
    if is_rehearsal and len(types) > 1:
        markets = []  # the speed is the same for all: a cost would be a figure of a type
        estimates = estimates[:1]
    titles = [*([] if is_rehearsal else ["type"]), "setting", marked("time", is_rehearsal)]
    names = {Market.ON_DEMAND: "USD", Market.SPOT: "spot USD"}
    return Section(
        heading=f"your job: {job.text}, {case_name(rows[0])}{' (rehearsal)' if is_rehearsal else ''}",
        titles=[*titles, *(marked(names[market], is_rehearsal) for market in markets)],
        rows=[
            [
                *([] if is_rehearsal else [one.row.run.instance_type]),
                setting(one.row),
                time_text(one),
                *(usd_text(one, market) for market in markets),
            ]
            for one in estimates
        ],
        notes=_notes(job, types if is_rehearsal else [], markets),
        leads=1,
    )


def time_text(estimate: JobEstimate) -> str:
    """Format the time of a job with its interval."""
    return with_bounds(estimate.seconds, estimate.low_s, estimate.high_s)


def usd_text(estimate: JobEstimate, market: Market) -> str:
    """Format the cost of a job with its interval."""
    usd = estimate.usd(market)
    if usd is None:
        return ""
    low, high = (
        None if bound is None else estimate.usd(market, bound) for bound in (estimate.low_s, estimate.high_s)
    )
    return money(usd) + (f" ({money(low)}–{money(high)})" if low is not None and high is not None else "")


def job_records(rows: Sequence[ResultRow], job: UserJob, market: Market) -> list[dict[str, Any]]:
    """Return the same for programs."""
    return [
        {
            "benchmark": one.row.run.workload,
            "case": one.row.result.case,
            "instance_type": one.row.run.instance_type,
            "rehearsal": one.row.rehearsal,
            "setting": one.row.result.setting,
            "items": job.items,
            "hours": one.seconds / SECONDS_PER_HOUR,
            "hours_low": None if one.low_s is None else one.low_s / SECONDS_PER_HOUR,
            "hours_high": None if one.high_s is None else one.high_s / SECONDS_PER_HOUR,
            "on_demand_usd": _rounded(one, Market.ON_DEMAND),
            "spot_usd": _rounded(one, Market.SPOT),
        }
        for one in job_estimates(rows, job, market)
    ]


def _rounded(estimate: JobEstimate, market: Market) -> Any:  # noqa: ANN401  Decimal or None, for JSON
    usd = estimate.usd(market)
    return None if usd is None else rounded(usd, 6)


def case_name(row: ResultRow) -> str:
    """Return the benchmark and the case of a row, without repeating a word."""
    return ", ".join(dict.fromkeys(part for part in (row.run.workload, row.result.case) if part))


def _notes(job: UserJob, rehearsed: Sequence[str], markets: Sequence[Market]) -> list[str]:
    notes = [
        f"{job.items:,.0f} {job.unit or 'items'} on one instance at the measured speed, intervals of 95 %"
    ]
    notes.append("the instance alone: boot, set-up, disk and address come on top")
    if Market.SPOT in markets:
        notes.append("spot: at today's price, without interruptions")
    if len(rehearsed) > 1:
        notes.append(
            f"no USD: one speed, of this machine, for {len(rehearsed)} types; --cloud aws measures each"
        )
    if rehearsed:
        price = f", the price of {rehearsed[0]}" if markets else ""
        notes.append(f"* rehearsal: the speed is of this machine{price}; of no instance type")
    return notes
