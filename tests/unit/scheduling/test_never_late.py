"""A minute of replays: no policy costs less than the bound, and the elastic one is never late."""

import random
from dataclasses import replace
from statistics import fmean

import pytest

from dlcloud.scheduling.policies import POLICIES
from dlcloud.scheduling.policies.situation import HOUR_S, Move
from dlcloud.scheduling.simulation.bound import least_cost_usd
from dlcloud.scheduling.simulation.generate import (
    adversarial_windows,
    generate_partial_window,
    generate_window,
)
from dlcloud.scheduling.simulation.traces import Window, from_ticks
from tests.unit.scheduling.test_simulation import job, run


def test_no_policy_that_is_in_time_costs_less_than_the_bound():
    for seed in range(8):
        generated = generate_window(seed, hours=12, pools=1 + seed % 2)
        for changeover_s in (1.8, 720.0):
            small = job(changeover_s=changeover_s, maximum=1 + seed % 3)
            bound = least_cost_usd(small, generated)
            for name in POLICIES:
                assert run(name, small, generated).usd >= bound - 1e-6, (seed, name)


def flapping(seed):
    source = random.Random(seed)
    pools = []
    for name in "ab"[: 1 + seed % 2]:
        counts = [source.choice((0, 0, 1, 2, 4)) for _ in range(30)]
        pools.append(from_ticks(name, source.choice((60.0, 600.0, 1800.0)), counts))
    return Window(name=f"flapping-{seed}", pools=tuple(pools))


def in_time(name, job, windows):
    return [outcome.late_s for outcome in (run(name, job, window) for window in windows)]


@pytest.mark.parametrize("boot_s", [0.0, 120.0])
@pytest.mark.parametrize("maximum", [1, 4])
@pytest.mark.parametrize("changeover_s", [1.8, 72.0, 720.0])
def test_elastic_is_never_late_whatever_spot_does(changeover_s, maximum, boot_s):
    windows = [*adversarial_windows(hours=8, count=maximum), *map(flapping, range(6))]
    for slack_h in (0.05, 1.2, 3.0):
        work_s = 5 * HOUR_S
        allowed_s = work_s + changeover_s + boot_s + slack_h * HOUR_S
        hard = job(
            work_s=work_s * maximum,
            allowed_s=allowed_s,
            changeover_s=changeover_s,
            boot_s=boot_s,
            maximum=maximum,
        )
        assert not any(in_time("elastic", hard, windows))


@pytest.mark.parametrize("maximum", [1, 4])
@pytest.mark.parametrize("changeover_s", [1.8, 720.0])
def test_an_hour_without_on_demand_makes_elastic_not_late(changeover_s, maximum):
    windows = [*adversarial_windows(hours=9, count=maximum), *map(flapping, range(4))]
    hard = job(work_s=5 * HOUR_S * maximum, maximum=maximum, changeover_s=changeover_s)
    at_once = job(work_s=hard.work_s, maximum=maximum, changeover_s=changeover_s, refuse_first_s=HOUR_S)
    assert not any(in_time("elastic", at_once, windows))
    for begin_h in range(1, 8, 2):
        refusals = ((begin_h * HOUR_S, (begin_h + 1) * HOUR_S),)
        later = job(work_s=hard.work_s, maximum=maximum, changeover_s=changeover_s, refusals=refusals)
        assert not any(in_time("elastic", later, windows))


@pytest.mark.parametrize("changeover_s", [18.0, 72.0, 180.0])
def test_elastic_costs_less_where_sixteen_are_lost_a_few_at_a_time(changeover_s):
    windows = [generate_partial_window(seed, hours=16, pools=3, count=16) for seed in range(3)]
    setting = {"work_s": 16 * 10 * HOUR_S, "allowed_s": 15 * HOUR_S, "maximum": 16, "boot_s": 31.0}
    hard = job(**setting, changeover_s=changeover_s, refusal_s=0.0)
    costs = {
        name: fmean(run(name, hard, one).usd for one in windows) for name in ("elastic", "uniform-progress")
    }
    assert costs["elastic"] <= 1.005 * costs["uniform-progress"]
    assert not any(in_time("elastic", hard, windows))


@pytest.mark.parametrize("refusal_s", [0.0, HOUR_S])
@pytest.mark.parametrize("changeover_s", [72.0, 180.0])
def test_elastic_costs_no_more_where_sixteen_change_slowly(changeover_s, refusal_s):
    windows = [
        generate_partial_window(seed, hours=27, pools=3, count=16, changes_per_h=0.2) for seed in range(3)
    ]
    setting = {"work_s": 16 * 24 * HOUR_S, "allowed_s": 26.4 * HOUR_S, "maximum": 16, "boot_s": 44.0}
    hard = job(**setting, changeover_s=changeover_s, refusal_s=refusal_s)
    costs = {
        name: fmean(run(name, hard, one).usd for one in windows) for name in ("elastic", "uniform-progress")
    }
    assert costs["elastic"] <= 1.005 * costs["uniform-progress"]
    assert not any(in_time("elastic", hard, windows))


@pytest.mark.parametrize("seconds", [3.0, 1800.0])
@pytest.mark.parametrize("maximum", [1, 4])
def test_elastic_is_never_late_over_regions_however_long_the_state_moves(seconds, maximum):
    for seed in range(6):
        pools = [
            replace(pool, name=name)
            for name, pool in zip(
                ("us-east-1a", "us-west-2a", "us-west-2b"),
                (*flapping(2 * seed + 1).pools, *flapping(2 * seed + 101).pools),
                strict=False,
            )
        ]
        window = Window(name="regions", pools=tuple(pools))
        for slack_h in (1.2, 2.0, 4.0):
            hard = job(
                work_s=5 * HOUR_S * maximum,
                allowed_s=(5 + slack_h) * HOUR_S,
                changeover_s=72.0,
                boot_s=44.0,
                maximum=maximum,
                move=Move(seconds=seconds, usd=0.1),
                refuse_first_s=HOUR_S,
            )
            assert not any(in_time("elastic", hard, [window])), seed


def test_one_region_trains_at_a_time_and_a_move_is_billed():
    """The first Region has spot for an hour, then the other one."""
    gone, come = [1] * 6 + [0] * 60, [0] * 6 + [1] * 60
    window = Window(
        name="moves", pools=(from_ticks("us-east-1a", 600.0, gone), from_ticks("us-west-2a", 600.0, come))
    )
    alike = job(work_s=5 * HOUR_S, allowed_s=9 * HOUR_S, changeover_s=72.0)
    here = run("elastic", alike, window)
    moved = run("elastic", replace(alike, move=Move(seconds=360.0, usd=0.5)), window)
    assert moved.on_demand_s == here.on_demand_s == 0
    assert moved.usd == pytest.approx(here.usd + 0.5 + 0.1 * alike.spot_usd)
    dear = run("elastic", replace(alike, move=Move(seconds=360.0, usd=1000.0)), window)
    assert dear.interruptions == 1
    assert dear.usd < 100, "it stays where the state is"
