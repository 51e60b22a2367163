"""The least that a job could have cost in a window, had the future been known: a proven lower bound.

With the future known, a plan is a choice, for every run of the trace, of which pool works. For a price `w`
of an hour of work, the cheapest plan that pays for what it runs and is paid `w` for what it does is found
exactly, by dynamic programming over the runs of the trace. By weak duality (Lagrange), what that plan loses
plus `w` times the work is no more than the cost of any plan that does the work in time. The largest of these
over `w` is the bound.
Source: Bertsimas and Tsitsiklis, "Introduction to Linear Optimization", section 11.4.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from dlcloud.scheduling.policies.situation import HOUR_S
from dlcloud.scheduling.simulation.replay import SimulatedJob
from dlcloud.scheduling.simulation.traces import Window

ROUNDS = 40
"""Halvings of the range of the price of work: more than the digits of a price."""
DEAREST = 4.0
"""The end of that range, in prices of on-demand."""


class _Span(NamedTuple):
    """A part of the window in which nothing changes: hours, and (count, price) of each pool."""

    hours: float
    pools: tuple[tuple[int, float], ...]


Size = tuple[float, float]
"""USD an hour of some workers, and their speed."""


def least_cost_usd(job: SimulatedJob, window: Window) -> float:
    """Return a lower bound of the cost of doing the job's work in time in this window, in USD."""
    spans = _spans(job, window)
    regions = [pool.region for pool in window.pools]
    if job.maximum > 1:
        return _group_usd(job, spans)
    work_h = job.work_s / HOUR_S
    low, high = 0.0, DEAREST * job.on_demand_usd
    best = 0.0
    for _ in range(ROUNDS):
        price = (low + high) / 2
        paid_usd, done_h = _one_worker(job, spans, price, regions)
        best = max(best, paid_usd - price * (done_h - work_h))
        if done_h >= work_h:
            high = price
        else:
            low = price
    return best


def _spans(job: SimulatedJob, window: Window) -> list[_Span]:
    changes: list[tuple[float, int, tuple[int, float]]] = []
    for which, pool in enumerate(window.pools):
        prices = pool.prices if pool.prices is not None else [job.spot_usd] * len(pool.counts)
        runs = list(zip(pool.counts, prices, strict=True))
        changes += [(at_s, which, run) for at_s, run in zip(pool.starts_s, runs, strict=True)]
        changes.append((pool.end_s, which, (0, runs[-1][1])))
    pools, begin_s, spans = [(0, job.spot_usd)] * len(window.pools), 0.0, []
    for at_s, which, run in sorted(changes):
        until_s = min(at_s, job.allowed_s)
        if until_s > begin_s:
            spans.append(_Span(hours=(until_s - begin_s) / HOUR_S, pools=tuple(pools)))
            begin_s = until_s
        pools[which] = run
    if job.allowed_s > begin_s:
        spans.append(_Span(hours=(job.allowed_s - begin_s) / HOUR_S, pools=tuple(pools)))
    return spans


def _one_worker(
    job: SimulatedJob, spans: Sequence[_Span], price: float, regions: Sequence[str]
) -> tuple[float, float]:
    """Return cost in USD and hours done of the best plan of one worker, changeovers and moves included.

    States, in each Region where the model's state may be: idle, one per pool, on-demand. A changeover bills
    the new instance for `changeover_s + boot_s` without progress, and for the time of a move of the state;
    all may fall into any span, so that they are charged as hours at the price of the span in which they
    begin, which is what they cost at least.
    """
    lost_h, move_h = (job.changeover_s + job.boot_s) / HOUR_S, job.move.seconds / HOUR_S
    unreachable = (float("inf"), 0.0, 0.0)
    # Of each state: value (cost less what the work is paid), cost, hours done.
    places = [
        [which for which, region in enumerate(regions) if region == name] for name in dict.fromkeys(regions)
    ]
    states: list[list[tuple[float, float, float]]] = [
        [(0.0, 0.0, 0.0)] + [unreachable] * (len(pools) + 1) for pools in places
    ]
    for span in spans:
        best = [min(here) for here in states]
        value, cost, done = min(best)
        moved = (value + job.move.usd + move_h * price, cost + job.move.usd, done - move_h)
        for here, stays, pools in zip(states, best, places, strict=True):
            value, cost, done = min(stays, moved)
            joined = (value + lost_h * price, cost, done - lost_h)
            here[0] = stays
            for place, which in enumerate([*pools, None], start=1):
                count, hourly_usd = (1, job.on_demand_usd) if which is None else span.pools[which]
                if count < 1:
                    here[place] = unreachable
                    continue
                value, cost, done = min(here[place], joined)
                gain = span.hours * (hourly_usd - price)
                here[place] = (value + gain, cost + span.hours * hourly_usd, done + span.hours)
    _, cost, done = min(map(min, states))
    return cost, done


def _group_usd(job: SimulatedJob, spans: Sequence[_Span]) -> float:
    """Return the bound of a group of workers, changeovers left out: the work is done where it is cheapest.

    Without changeovers the spans are independent, and a plan costs no more than with them.
    """
    hulls: dict[tuple[tuple[int, float], ...], Sequence[Size]] = {}
    steps = []
    for span in spans:
        hull = hulls.get(span.pools) or hulls.setdefault(span.pools, _sizes(job, span))
        steps += [
            (_slope(slower, faster), span.hours * (faster[1] - slower[1]))
            for slower, faster in pairwise(hull)
        ]
    dearest = DEAREST * job.on_demand_usd
    usd, left_h = 0.0, job.work_s / HOUR_S
    for price, work_h in sorted(steps):
        if left_h <= 0:
            break
        usd += min(price, dearest) * min(work_h, left_h)
        left_h -= work_h
    return usd + dearest * max(0.0, left_h)


def _sizes(job: SimulatedJob, span: _Span) -> Sequence[Size]:
    """Return the sizes that are the best at some price of work: the lower convex hull of cost over speed."""
    offers = sorted((hourly_usd, count) for count, hourly_usd in span.pools if count > 0)
    workers, hourly_usd, hull = 0, 0.0, [(0.0, 0.0)]
    for usd, count in [*offers, (job.on_demand_usd, job.maximum)]:
        for _ in range(min(count, job.maximum - workers)):
            workers, hourly_usd = workers + 1, hourly_usd + usd
            speed = job.scaling.speed(workers)
            if workers < job.minimum or speed <= hull[-1][1]:
                continue
            while len(hull) > 1 and _slope(hull[-2], (hourly_usd, speed)) <= _slope(hull[-2], hull[-1]):
                hull.pop()
            hull.append((hourly_usd, speed))
    return hull


def _slope(slower: Size, faster: Size) -> float:
    return (faster[0] - slower[0]) / (faster[1] - slower[1])
