"""Everything that `dlcloud simulate` does with a trace: read it, check it, replay all policies over it."""

import json
import math
from itertools import pairwise

from dlcloud.report.deadlines import simulation_report
from dlcloud.report.table import Format, render
from dlcloud.scheduling.policies import POLICIES
from dlcloud.scheduling.policies.situation import HOUR_S
from dlcloud.scheduling.simulation.bound import least_cost_usd
from dlcloud.scheduling.simulation.replay import SimulatedJob, replay_all
from dlcloud.scheduling.simulation.summary import bound_row, policy_row
from dlcloud.scheduling.simulation.traces import Window, read_trace

JOBS = (
    SimulatedJob(work_s=6 * HOUR_S, allowed_s=9 * HOUR_S, on_demand_usd=3.0, spot_usd=1.0, changeover_s=60.0),
    SimulatedJob(
        work_s=2 * HOUR_S,
        allowed_s=HOUR_S,
        on_demand_usd=3.0,
        spot_usd=1.0,
        minimum=2,
        maximum=4,
        boot_s=120.0,
        traffic_usd=0.1,
        refuse_first_s=600.0,
    ),
)


def live_through(text, file):
    """Read a trace and simulate on it; its faults are RecipeErrors."""
    trace = read_trace(text, file, pool="a")
    assert trace.starts_s[0] == 0.0
    assert all(before < after for before, after in pairwise(trace.starts_s))
    assert trace.starts_s[-1] <= trace.end_s > 0.0
    assert math.isfinite(trace.end_s)
    assert len(trace.counts) == len(trace.starts_s) == len(trace.prices or trace.counts)
    assert all(count >= 0 for count in trace.counts)
    assert 0.0 <= trace.availability <= 1.0 + 1e-9
    assert trace.losses < len(trace.counts)
    windows = [Window(name="w", pools=(trace, trace.scaled(3)))]
    results = []
    for job in JOBS:
        bounds = [least_cost_usd(job, window) for window in windows]
        rows = [
            policy_row(name, job, replay_all(job, windows, policy), bounds)
            for name, policy in POLICIES.items()
        ]
        results.append((job, [*rows, bound_row(job, bounds)]))
    report = simulation_report(results)
    for form in Format:
        text = render(report, form)
        if form is Format.JSON:
            json.loads(text, parse_constant=_refuse)


def _refuse(name):
    raise AssertionError(f"{name} is no JSON")
