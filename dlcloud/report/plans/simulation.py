"""The table of simulated policies."""

from collections.abc import Mapping, Sequence
from math import isfinite

from dlcloud.report.table import Cell, Report, Section
from dlcloud.scheduling.policies.situation import HOUR_S
from dlcloud.scheduling.simulation.replay import SimulatedJob
from dlcloud.scheduling.simulation.summary import BOUND, Row

TITLES = ("policy", "cost/on-demand", "95 %", "over bound", "hours", "lost", "on-dem.", "missed", "late")
NUMERIC = frozenset(range(1, len(TITLES)))
NOTES = (
    "cost/on-demand: mean bill over that of on-demand only, with its 95 % interval over the windows.",
    "offline bound: the least cost had the future been known; a proven lower bound, not always attained.",
    "lost: spot instances taken away, in the mean; on-dem.: on-demand share of the instance-hours;",
    "missed: windows that ended after the deadline; late: by how much at most.",
)


def simulation_report(results: Sequence[tuple[SimulatedJob, Sequence[Row]]]) -> Report:
    """Return the report over jobs, each with its rows."""
    last = len(results) - 1
    sections = [
        _section(job, rows, NOTES if place == last else ()) for place, (job, rows) in enumerate(results)
    ]
    records = [_record(job, row) for job, rows in results for row in rows]
    return Report(command="simulate", records=records, sections=sections, empty="no window was replayed")


def _section(job: SimulatedJob, rows: Sequence[Row], notes: Sequence[str]) -> Section:
    windows = rows[0].windows
    size = f"{job.maximum} workers" if job.maximum > 1 else "one worker"
    work_h = job.work_s / HOUR_S / job.scaling.speed(job.maximum)
    heading = (
        f"{work_h:.4g} h of work on {size}, deadline {job.allowed_s / HOUR_S:g} h, "
        f"changeover {job.changeover_s:g} s, {windows} window(s)"
    )
    return Section(
        heading=heading, titles=TITLES, rows=[_cells(row) for row in rows], numeric=NUMERIC, notes=notes
    )


def _cells(row: Row) -> list[str]:
    over = "" if row.over_bound is None else f"{row.over_bound:.3f}"
    cells = [row.policy, f"{row.cost:.3f}", f"{row.low:.3f}–{row.high:.3f}", over]
    if row.policy == BOUND:
        return cells + [""] * (len(TITLES) - len(cells))
    hours = "never" if row.hours is None else f"{row.hours:.1f}"
    return [*cells, hours, f"{row.interruptions:.1f}", f"{row.on_demand:.0%}", f"{row.missed}", _late(row)]


def _late(row: Row) -> str:
    if not row.late_h:
        return ""
    return f"{row.late_h:.1f} h" if isfinite(row.late_h) else "never done"


def _record(job: SimulatedJob, row: Row) -> Mapping[str, Cell]:
    late_h = row.late_h if row.late_h is None or isfinite(row.late_h) else None
    return {
        "policy": row.policy,
        "workers": job.maximum,
        "work_worker_hours": job.work_s / HOUR_S,
        "deadline_hours": job.allowed_s / HOUR_S,
        "changeover_seconds": job.changeover_s,
        "boot_seconds": job.boot_s,
        "refusal_seconds": job.refusal_s,
        "windows": row.windows,
        "usd": row.usd,
        "cost_over_on_demand": row.cost,
        "cost_low": row.low,
        "cost_high": row.high,
        "over_bound": row.over_bound,
        "hours": row.hours,
        "interruptions": row.interruptions,
        "on_demand_share": row.on_demand,
        "missed": row.missed,
        "latest_hours": late_h,
    }
