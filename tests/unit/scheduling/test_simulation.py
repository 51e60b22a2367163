import json
import random
from dataclasses import replace
from statistics import fmean

import pytest

from dlcloud.model.errors import RecipeError
from dlcloud.scheduling.policies import POLICIES
from dlcloud.scheduling.policies.situation import HOUR_S, Move, Scaling
from dlcloud.scheduling.simulation.bound import least_cost_usd
from dlcloud.scheduling.simulation.generate import (
    generate_window,
)
from dlcloud.scheduling.simulation.replay import SimulatedJob, replay
from dlcloud.scheduling.simulation.summary import BOUND, bound_row, policy_row
from dlcloud.scheduling.simulation.traces import Meaning, PoolTrace, Window, from_ticks, read_trace


def job(**changes):
    known = {
        "work_s": 6 * HOUR_S,
        "allowed_s": 9 * HOUR_S,
        "on_demand_usd": 3.0,
        "spot_usd": 1.0,
        "changeover_s": 60.0,
    }
    return SimulatedJob(**known | changes)


def window(*counts, tick_s=HOUR_S):
    return Window(name="w", pools=(from_ticks("a", tick_s, counts),))


def run(policy, job, window):
    return replay(job, window, POLICIES[policy])


def test_on_demand_costs_the_work_and_one_changeover():
    outcome = run("on-demand", job(), window(*[1] * 12))
    assert outcome.usd == pytest.approx((6 + 1 / 60) * 3)
    assert outcome.finished_s == pytest.approx(6 * HOUR_S + 60)
    assert not outcome.late_s


def test_spot_that_is_always_there_is_all_that_is_used():
    outcome = run("elastic", job(), window(*[1] * 12))
    assert outcome.usd == pytest.approx((6 + 1 / 60) * 1)
    assert outcome.on_demand_s == 0


def test_every_change_costs_a_changeover_and_a_loss_is_counted():
    outcome = run("greedy", job(work_s=2 * HOUR_S, changeover_s=360), window(1, 0, 1, 1, 1))
    assert outcome.interruptions == 1
    assert outcome.finished_s == pytest.approx((3 + 0.1 + 0.1) * HOUR_S)


def test_prices_of_a_trace_are_what_is_billed():
    priced = Window(name="w", pools=(from_ticks("a", HOUR_S, [1, 1, 1], [1.0, 2.0, 0.5]),))
    outcome = run("greedy", job(work_s=3 * HOUR_S, changeover_s=0), priced)
    assert outcome.usd == pytest.approx(3.5)


def test_several_workers_go_on_when_one_is_lost():
    outcome = run("elastic", job(work_s=8 * HOUR_S, maximum=4, changeover_s=0), window(4, 2, 1, 1))
    assert outcome.finished_s == pytest.approx(4 * HOUR_S)
    assert outcome.interruptions == 3


def test_workers_scale_by_the_stated_loss():
    scaling = Scaling(loss=1.0)
    outcome = run("on-demand", job(maximum=4, changeover_s=0, scaling=scaling), window(0))
    assert outcome.finished_s == pytest.approx(6 / scaling.speed(4) * HOUR_S)
    assert scaling.speed(4) == 1.0


def test_workers_outside_the_largest_zone_pay_for_traffic():
    zones = Window(name="w", pools=(from_ticks("a", HOUR_S, [3] * 9), from_ticks("b", HOUR_S, [1] * 9)))
    settings = {"work_s": 8 * HOUR_S, "maximum": 4, "changeover_s": 0}
    assert run("elastic", job(**settings, traffic_usd=0.5), zones).usd == pytest.approx(8 + 2 * 0.5)


def test_a_booting_instance_is_billed_and_its_predecessor_stays():
    booting = job(changeover_s=0, boot_s=600, refusal_s=0, work_s=3 * HOUR_S, allowed_s=3.5 * HOUR_S)
    outcome = run("elastic", booting, window(0, 1, 1, 1, tick_s=HOUR_S))
    assert not outcome.late_s
    assert outcome.spot_s + outcome.on_demand_s >= 3 * HOUR_S + 600


def brute_force(job, counts, tick_h):
    """The least cost over all plans that choose idle, spot or on-demand tick by tick."""
    lost_h, best = job.changeover_s / HOUR_S, float("inf")
    plans = [(0, 0.0, 0.0)]  # what runs, USD, hours done
    for count in counts:
        following = []
        for now, usd, done in plans:
            following.append((0, usd, done))
            for kind, price in ((1, job.spot_usd), (2, job.on_demand_usd)):
                if kind == 2 or count:
                    gain = tick_h - (lost_h if now != kind else 0.0)
                    following.append((kind, usd + price * tick_h, done + gain))
        best = min(best, *(usd for _, usd, done in following if done >= job.work_s / HOUR_S - 1e-9), best)
        plans = following
    return best


def test_the_bound_is_below_every_plan_and_close_to_the_best():
    gaps = []
    for seed in range(12):
        source = random.Random(seed)
        counts = [source.randint(0, 1) for _ in range(8)]
        small = job(work_s=5.5 * HOUR_S, allowed_s=8 * HOUR_S, changeover_s=360)
        best, bound = brute_force(small, counts, 1.0), least_cost_usd(small, window(*counts))
        assert bound <= best + 1e-6
        gaps.append(best / bound)
    assert fmean(gaps) < 1.1
    # Each Region has spot for half of the time: the state moves once, for its price and while it is billed.
    halves = {"us-east-1a": [1, 1, 0, 0], "us-west-2a": [0, 0, 1, 1]}
    pools = tuple(from_ticks(name, HOUR_S, counts) for name, counts in halves.items())
    there = Window(name="halves", pools=pools)
    still = job(work_s=3 * HOUR_S, allowed_s=4 * HOUR_S, changeover_s=0)
    moving = replace(still, move=Move(seconds=360, usd=0.5))
    assert least_cost_usd(still, there) == pytest.approx(3.0)
    assert 3.3 < least_cost_usd(moving, there) <= 3.0 + 0.5 + 0.1


def test_a_generated_window_depends_on_its_seed_only():
    assert generate_window(3, hours=50, pools=2) == generate_window(3, hours=50, pools=2)
    assert generate_window(3, hours=50) != generate_window(4, hours=50)


def test_a_row_has_the_mean_its_interval_and_what_was_missed():
    windows = [window(1, 1, 1, 1, 1, 1, 1), window(0, 0, 0, 0, 0, 0, 0)]
    bounds = [least_cost_usd(job(), one) for one in windows]
    outcomes = [run("elastic", job(), one) for one in windows]
    row = policy_row("elastic", job(), outcomes, bounds)
    assert row.low < row.cost < row.high
    assert row.missed == 0
    assert row.over_bound >= 1
    assert bound_row(job(), bounds).policy == BOUND


def test_a_window_is_read_with_its_prices():
    trace = read_trace(
        '{"metadata": {"gap_seconds": 60}, "data": [1, 1, 0], "prices": [1.0, 2.0, 2.0]}',
        "w.json",
        pool="a",
        meaning=Meaning.OBTAINABLE,
    )
    assert trace == PoolTrace(
        name="a", starts_s=(0.0, 60.0, 120.0), counts=(1, 1, 0), prices=(1.0, 2.0, 2.0), end_s=180.0
    )


SINGLE_ZONE = {
    "original_trace": "data/real/ping_based/us-west-2a_k80_1.json",
    "generator": "random_start_time",
}
CUT = {"start_time": 684, "end_time": 1238}
ARCHIVE = "1: one instance obtainable; inverted from the source, where 1 means preempted"


@pytest.mark.parametrize(
    ("more", "metadata", "meaning", "counts"),
    [
        ({}, {"meaning": "obtainable"}, None, (1, 0)),
        ({}, {"meaning": "preempted"}, None, (0, 1)),
        ({}, {"meaning": ARCHIVE}, None, (1, 0)),
        (SINGLE_ZONE, CUT, None, (0, 1)),
        (SINGLE_ZONE, CUT | {"meaning": ARCHIVE}, None, (1, 0)),
        ({"prices": [1.0, 1.0, 1.0]}, {"source_file": "data/real/availability/us-east-1a.csv"}, None, (0, 1)),
        ({}, {}, Meaning.OBTAINABLE, (1, 0)),
        ({}, {}, Meaning.PREEMPTED, (0, 1)),
    ],
)
def test_ones_mean_what_the_file_or_its_source_or_else_the_caller_says(more, metadata, meaning, counts):
    """Can't Be Late's simulator takes spot where its windows are 0; they were read upside down."""
    values = {"metadata": {"gap_seconds": 600} | metadata, "data": [1, 1, 0]} | more
    assert read_trace(json.dumps(values), "w.json", pool="a", meaning=meaning).counts == counts


@pytest.mark.parametrize(
    ("metadata", "data", "meaning", "message"),
    [
        ({}, [1, 0], None, "is 1 an obtainable or a preempted instance?"),
        ({}, [0, 0], None, "is 1 an obtainable or a preempted instance?"),
        ({"meaning": "spot"}, [1, 0], None, "metadata.meaning is 'spot'"),
        ({"meaning": "preempted"}, [1, 0], Meaning.OBTAINABLE, "--values obtainable, but the file says"),
        ({"source_file": "us-east-1a.csv"}, [1, 0], Meaning.OBTAINABLE, "--values obtainable, but"),
        ({"meaning": "preempted"}, [16, 0], None, "values that mean preempted are 0 or 1, not 16"),
    ],
)
def test_a_trace_whose_ones_could_be_either_is_refused(metadata, data, meaning, message):
    text = json.dumps({"metadata": {"gap_seconds": 600} | metadata, "data": data})
    with pytest.raises(RecipeError) as error:
        read_trace(text, "w.json", pool="a", meaning=meaning)
    assert message in error.value.message


def test_numbers_above_one_are_obtainable_instances():
    text = json.dumps({"metadata": {"gap_seconds": 600}, "data": [16, 0, 1]})
    assert read_trace(text, "w.json", pool="a").counts == (16, 0, 1)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("bamboo.csv", "0,add,n1\n0,add,n2\n60000,remove,n1\n120000,add,n3\n"),
        ("parcae.csv", "0,1\n0,2\n60000,1\n120000,2\n"),
        (
            "parcae.txt",
            """[0, "add", {"nodes": ["n1", "n2"], "duration": 60000}]
            [60000, "remove", {"nodes": ["n1"]}]
            [90000, "no-op", {"nodes": []}]
            [120000, "add", {"nodes": ["n3"], "duration": 60000}]
            """,
        ),
    ],
)
def test_traces_of_events_become_counts_over_time(file, text):
    trace = read_trace(text, file, pool="a")
    assert (trace.starts_s, trace.counts, trace.end_s) == ((0.0, 60.0, 120.0), (2, 1, 2), 180.0)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("w.json", '{"data": [1],\n x}', "w.json:2: not JSON"),
        ("w.json", "[1]", "w.json:1: expected an object"),
        ("w.json", '{"metadata": {"gap_seconds": 0}, "data": [1]}', "gap_seconds must be a number above 0"),
        ("w.json", '{"metadata": {"gap_seconds": 60}, "data": [1, -1]}', "data[1] is -1"),
        ("w.json", '{"metadata": {"gap_seconds": 60}, "data": []}', "data must be a list"),
        ("w.json", '{"metadata": {"gap_seconds": 60}, "data": [2], "prices": []}', "prices must be a list"),
        ("w.csv", "", "w.csv:1: the file is empty"),
        ("w.csv", "0,add,n1\n60000,explode,n1", "w.csv:2: 'explode' is not an event"),
        ("w.csv", "0,add,n1\n60000,remove,n2", "w.csv:2: n2 is removed but was not there"),
        ("w.csv", "0,add,n1\nsoon,add,n2", "w.csv:2: 'soon' is not a time"),
        ("w.csv", "60000,add,n1\n0,add,n2", "w.csv:2: the time is before"),
        ("w.csv", "0,1\n1,many", "w.csv:2: expected ms,number"),
        ("w.txt", '[0, "add", {"nodes": ["a"]}]\n{', "w.txt:2: not JSON"),
        ("w.txt", '[0, "add", {"nodes": "a"}]', "w.txt:1: nodes must be a list"),
        ("w.xml", "<a/>", "w.xml: not a trace"),
    ],
)
def test_a_fault_in_a_trace_is_named_with_file_and_line(file, text, message):
    with pytest.raises(RecipeError) as error:
        read_trace(text, file, pool="a")
    assert message in error.value.message
