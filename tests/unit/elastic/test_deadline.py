"""A training with a deadline: pools and prices, what the policy is asked, what follows and is remembered."""

import json
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from dlcloud.elastic.controller import RequestEnded
from dlcloud.elastic.deadline_scaler import (
    ASK_EVERY_S,
    PRICES_EVERY_S,
    DeadlineScaler,
    Elsewhere,
    PoolHistory,
    PoolPrices,
    RegionLeftError,
    end_deadline,
    make_scaler,
    mean_prices,
    prices_of,
)
from dlcloud.elastic.registry import (
    ASSUMED_CHANGEOVER_S,
    SpeedMeter,
    StepCommitted,
    TrainingRegistry,
    TrainingStarted,
)
from dlcloud.model.errors import CapacityError
from dlcloud.model.instance import Market
from dlcloud.planning.launch_request import PoolRefusal
from dlcloud.planning.plan import CapacityPool
from dlcloud.recipe.deadline import Work
from dlcloud.scheduling.deadline_scaling import (
    OnDemandRecord,
    follow_targets,
    limit_plan,
    pool_of,
    probability_of_deadline,
    spot_pool,
)
from dlcloud.scheduling.policies import POLICIES
from dlcloud.scheduling.policies.situation import PoolDecision, PoolState, Scaling, Situation
from dlcloud.scheduling.scaling import InstanceStage
from dlcloud.store.clusters import DEADLINE, Clusters
from dlcloud.store.database import Database
from tests.fakes.clock import START, FakeClock
from tests.fakes.samples import RECIPE, cluster, plan, price, recipe, worker

SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND
ARRIVING = InstanceStage.ARRIVING
TYPE = "c7i.xlarge"
A = (SPOT, spot_pool("us-east-1a", TYPE))
B = (SPOT, spot_pool("us-east-1b", TYPE))
OD = (ON_DEMAND, TYPE)
PRICES = {A: 0.05, B: 0.06, OD: 0.18}


FIRST = worker(0, market=ON_DEMAND)


def follow(workers, targets, hope=None, *, askable=PRICES, is_launching=False):
    sure = PoolDecision(targets=targets, reason="why")
    hoped = PoolDecision(targets=targets if hope is None else hope, reason="hope")
    return follow_targets(workers, sure, hoped, askable=askable, is_launching=is_launching)


def test_spot_is_asked_before_on_demand_and_the_coordinator_before_both():
    decision = follow([FIRST], {OD: 3}, {OD: 1, A: 2, B: 1})
    assert (decision.launch, decision.market, decision.pools) == (3, SPOT, (A[1], B[1]))
    decision = follow([FIRST], {OD: 3}, {OD: 1, A: 2, B: 1}, askable={OD})
    assert (decision.launch, decision.market, decision.pools) == (2, ON_DEMAND, (TYPE,))
    assert decision.reasons == (f"requesting 2 on-demand in {TYPE}: why",)
    decision = follow([worker(1)], {OD: 1, A: 1}, {OD: 1, A: 3})
    assert (decision.launch, decision.market) == (1, ON_DEMAND)


def test_nothing_is_asked_of_a_pool_that_has_just_refused_or_during_a_launch():
    assert follow([FIRST], {OD: 1, A: 2}, askable={B, OD}).launch == 0
    assert follow([FIRST], {OD: 1, A: 2}, is_launching=True).launch == 0


def test_spot_that_is_only_hoped_for_lets_no_worker_leave():
    arriving = worker(1, ARRIVING, ON_DEMAND)
    decision = follow([FIRST, arriving, worker(2, market=ON_DEMAND)], {OD: 3}, {OD: 1, A: 2})
    assert (decision.drain, decision.launch, decision.market) == ((), 2, SPOT)


SPARE, AT_RISK = worker(1, market=ON_DEMAND), worker(1, InstanceStage.AT_RISK)


@pytest.mark.parametrize(
    ("others", "targets", "leaves"),
    [
        ([SPARE, worker(2, ARRIVING)], {OD: 1, A: 1}, ()),  # once its replacement trains
        ([SPARE, worker(2)], {OD: 1, A: 1}, ("i-1",)),
        ([AT_RISK], {OD: 1, A: 1}, ()),  # once enough others train
        ([AT_RISK, worker(2)], {OD: 1, A: 1}, ("i-1",)),
        ([worker(1), worker(2), worker(3)], {A: 1}, ("i-3", "i-2")),  # never below the target, and not i-0
        ([worker(1)], {}, ("i-1",)),
        ([worker(1, ARRIVING)], {OD: 1}, ("i-1",)),
    ],
)
def test_the_newest_leave_once_others_train_and_the_coordinator_never(others, targets, leaves):
    assert follow([FIRST, *others], targets).drain == leaves


def test_a_history_waits_longer_after_each_refusal():
    history, now = PoolHistory(), START
    assert history.is_askable(now)
    history.refuse(now)
    assert not history.is_askable(now + timedelta(seconds=4))
    assert history.is_askable(now + timedelta(seconds=5))
    history.refuse(now + timedelta(seconds=5))
    assert not history.is_askable(now + timedelta(seconds=14))
    history.grant(now + timedelta(seconds=60))
    assert history.is_askable(now + timedelta(seconds=60))
    history.refuse(now + timedelta(seconds=90), final=True)
    assert not history.is_askable(now + timedelta(days=3))


def test_a_history_states_availability_from_its_first_answer_on():
    history = PoolHistory()
    history.grant(START)
    history.interrupt(START + timedelta(seconds=100))
    history.grant(START + timedelta(seconds=150))
    seen = history.availability(START + timedelta(seconds=200))
    assert (seen.observed_s, seen.available_s, seen.unchanged_s) == (200, 150, 50)


def test_a_history_that_loses_a_part_goes_on_and_counts_it():
    history = PoolHistory()
    history.hold(START)
    history.interrupt(START + timedelta(seconds=100), holds=True)
    history.refuse(START + timedelta(seconds=120), holds=True)
    seen = history.availability(START + timedelta(seconds=200))
    assert (seen.available_s, seen.unchanged_s, seen.drops) == (200, 200, 1)
    assert not history.is_askable(START + timedelta(seconds=121))
    history.interrupt(START + timedelta(seconds=200))
    assert history.availability(START + timedelta(seconds=230)).unchanged_s == 30
    assert history.drops == 1


def steps(meter, numbers, size, seconds):
    for number in numbers:
        meter.observe(StepCommitted(step=number, instance_id="i-0", world_size=size, seconds=seconds))


def test_speed_is_that_of_one_worker_alone():
    meter = SpeedMeter()
    assert (meter.steps_per_second, meter.changeover_s) == (None, ASSUMED_CHANGEOVER_S)
    steps(meter, range(1, 10), 1, 4.0)
    steps(meter, range(1, 10), 1, 0.1)  # the same steps, as another worker records them
    assert meter.steps_per_second == pytest.approx(0.25)
    steps(meter, [10], 2, 7.0)
    steps(meter, range(11, 20), 2, 2.0)
    assert meter.steps_per_second == pytest.approx(0.25)
    assert meter.scaling.loss == pytest.approx(0)
    assert meter.changeover_s == pytest.approx(5.0)


def test_less_than_linear_scaling_is_measured():
    meter, scaling = SpeedMeter(), Scaling(loss=0.1)
    steps(meter, range(1, 10), 1, 1.0)
    steps(meter, range(10, 20), 4, 1 / scaling.speed(4))
    assert meter.scaling.loss == pytest.approx(0.1)
    assert meter.steps_per_second == pytest.approx(1.0)


class Case:
    """A scaler whose clock, workers and policy a test sets."""

    def __init__(self, *, hours=52, work=None, policy=POLICIES["elastic"]):
        self.clock, self.events, self.stored, self.situations = FakeClock(), [], [], []
        self.registry = TrainingRegistry()
        self.policy = policy
        self.scaler = DeadlineScaler(
            began_at=START,
            deadline=START + timedelta(hours=hours),
            work=work or Work(steps=1000),
            size=(1, 4),
            base=1,
            policy=self._ask,
            prices=lambda: PRICES,
            registry=self.registry,
            clock=self.clock,
            emit=self.events.append,
            store_outlook=lambda outlook, decided: self.stored.append((outlook, decided)),
        )

    def _ask(self, situation):
        self.situations.append(situation)
        return self.policy(situation)

    def decide(self, *workers, is_launching=False):
        for each in workers:
            self.registry.add(each.member)
        return self.scaler.decide(workers, is_launching=is_launching)

    def step(self, number, seconds, size=1):
        self.observe(StepCommitted(step=number, instance_id="i-0", world_size=size, seconds=seconds))

    def observe(self, report):
        self.registry.observe("i-0", report)


def test_spot_is_requested_first_while_there_is_time():
    case = Case(work=Work(steps=1000, per_hour=10))
    decision = case.decide(FIRST)
    assert (decision.launch, decision.market) == (3, SPOT)
    situation = case.situations[0]
    assert (situation.work_s, situation.time_left_s, situation.maximum) == (360_000, 52 * 3600, 4)
    assert [(p.name, p.running, p.keep) for p in situation.pools if p.market is ON_DEMAND] == [(TYPE, 1, 1)]


def test_on_demand_fills_from_the_latest_safe_moment_on():
    case = Case(work=Work(steps=1000, per_hour=10))
    case.decide(FIRST)
    case.clock.advance(26 * 3600)  # 100 worker-hours on four workers take 25 h: one hour is left
    decision = case.decide(FIRST)
    assert (decision.launch, decision.market) == (3, ON_DEMAND)
    assert "latest safe moment" in decision.reasons[-1]


def test_the_policy_is_asked_on_events_and_by_the_timer_only():
    case = Case()
    for _ in range(5):
        case.decide(FIRST)
    assert len(case.situations) == 2  # as it is, and as it is hoped to be
    case.clock.advance(ASK_EVERY_S)
    case.decide(FIRST)
    assert len(case.situations) == 4
    case.decide(FIRST, worker(1, state=ARRIVING))
    assert len(case.situations) == 6


def test_work_left_follows_what_was_measured():
    case = Case(work=Work(epochs=10, per_hour=1))
    case.decide(FIRST)
    assert case.situations[-1].work_left_s == 36_000
    case.observe(TrainingStarted(steps=100, batch=100, samples=1000))
    for number in range(1, 11):
        case.step(number, 20.0)
    case.decide(FIRST)
    assert case.situations[-1].work_s == pytest.approx(2000)
    assert case.situations[-1].work_left_s == pytest.approx(1800)
    assert case.stored[-1][0].is_measured


def test_an_unknown_speed_leaves_on_demand_for_later():
    case = Case(work=Work(steps=1000))
    assert case.decide(FIRST).market is SPOT
    assert not case.stored[-1][0].is_measured


def test_a_program_with_other_steps_than_the_recipe_is_warned_of():
    case = Case(work=Work(steps=1000))
    case.observe(TrainingStarted(steps=500, batch=100, samples=1000))
    case.decide(FIRST)
    assert [event.message for event in case.events] == [
        "the program trains 500 steps, deadline.work says 1000: planning with the program's"
    ]


def test_a_refused_pool_is_left_out_until_its_wait_is_over():
    case = Case()
    decision = case.decide(FIRST)
    refusal = PoolRefusal(pool=f"{TYPE} spot", zone="us-east-1a", error=CapacityError("none"), code="X")
    case.scaler.handle_request(RequestEnded(decision=decision, refusals=(refusal,)))
    assert case.decide(FIRST).pools == (B[1],)
    case.clock.advance(5)
    assert case.decide(FIRST).pools == (A[1],)  # the cheapest, again


def region_chosen(hours, usd, newest):
    """The Region that a training leaves for after nine steps without spot, if any, and the message."""
    case = Case(hours=hours, work=Work(steps=100, per_hour=1))
    case.scaler.elsewhere = Elsewhere(home="us-east-1", hourly_usd=lambda: usd, newest=lambda _: newest)
    for number in range(1, 10):
        case.step(number, 3600.0)
    for _ in (A, B):
        case.scaler.handle_request(RequestEnded(decision=case.decide(FIRST)))
    try:
        drained = case.decide(FIRST).drain
    except RegionLeftError as left:
        return left.region, str(left)
    assert drained == ()
    return None, ""


@pytest.mark.parametrize(
    ("hours", "step", "size", "usd", "leaves"),
    [
        (30, 9, 10**9, 0.05, True),
        (52, 9, 10**9, 0.05, False),  # time enough to wait for spot here
        (30, 9, 10**9, 0.17, False),  # hardly cheaper than on-demand here
        (30, 9, 5 * 10**13, 0.05, False),  # 50 TB
        (30, 0, 0, 0.05, True),  # nine steps of an hour, on four workers, are taken again
        (26, 0, 0, 0.05, False),  # no time for them
    ],
)
def test_a_region_without_spot_is_left_if_the_rest_costs_less_elsewhere(hours, step, size, usd, leaves):
    chosen, message = region_chosen(hours, {"us-west-2": usd}, (step, {"us-west-2": size}))
    assert chosen == ("us-west-2" if leaves else None)
    assert (f"us-east-1 has no spot capacity, leaving it at step {step}" in message) is leaves


@pytest.mark.parametrize(
    ("left_to_move", "goes_to"),
    [
        ({"us-west-2": 5 * 10**13, "eu-west-1": 5 * 10**13}, None),
        ({"us-west-2": 0, "eu-west-1": 5 * 10**13}, "us-west-2"),  # its checkpoints were copied ahead
        ({"us-west-2": 0, "eu-west-1": 0}, "eu-west-1"),  # the cheaper one
        ({"us-west-2": 0}, "us-west-2"),  # the bucket of the other one does not answer
    ],
)
def test_only_what_is_left_to_move_of_the_state_counts(left_to_move, goes_to):
    assert region_chosen(30, {"us-west-2": 0.05, "eu-west-1": 0.045}, (9, left_to_move))[0] == goes_to


def test_an_interruption_counts_against_its_pool():
    case = Case()
    spot = worker(1)
    case.decide(FIRST, spot)
    case.registry.mark_interrupted("i-1")
    decision = case.decide(FIRST, worker(1, state=InstanceStage.LEAVING))
    assert case.scaler.histories[pool_of(spot.member.instance)].interrupted == 1
    assert decision.pools == (B[1],)


def test_the_loss_of_one_of_two_is_a_part_of_its_pool():
    """It counted as the end of all that the pool has, and no part was ever lost."""
    case = Case()
    case.decide(FIRST, worker(1), worker(2))
    case.registry.mark_interrupted("i-1")
    case.clock.advance(60)
    case.decide(FIRST, worker(1, state=InstanceStage.LEAVING), worker(2))
    history = case.scaler.histories[A]
    assert (history.interrupted, history.drops, history.has) == (1, 1, True)
    case.registry.mark_interrupted("i-2")
    case.decide(FIRST, worker(1, state=InstanceStage.GONE), worker(2, state=InstanceStage.LEAVING))
    assert (history.interrupted, history.drops, history.has) == (2, 1, False)


def test_a_boot_is_measured_from_launch_to_training():
    case = Case()
    arriving = worker(0, state=ARRIVING)
    case.decide(FIRST, arriving)
    case.clock.advance(90)
    case.decide(FIRST, worker(0))
    assert case.situations[-1].boot_s == 90


def test_a_decision_is_stored_once_with_its_reason():
    case = Case()
    decision = case.decide(FIRST)
    case.scaler.record(decision)
    case.scaler.record(decision)
    decided = [outlook for outlook, is_decision in case.stored if is_decision]
    assert len(decided) == 1
    stored = json.loads(decided[0].to_text())
    assert stored["launch"] == {f"spot {A[1]}": 3}
    assert stored["time_left_s"] == 52 * 3600


def situation(*, hours_left, running=1, work_h=100):
    pools = (
        PoolState(market=ON_DEMAND, name="x", hourly_usd=1, obtainable=8, running=running),
        PoolState(market=SPOT, name="y", hourly_usd=1, obtainable=0),
    )
    return Situation(
        work_s=work_h * 3600,
        work_left_s=work_h * 3600,
        allowed_s=60 * 3600,
        time_left_s=hours_left * 3600,
        pools=pools,
        maximum=4,
        boot_s=300,
    )


def test_the_probability_falls_with_the_slack_and_with_refusals():
    calm, busy = OnDemandRecord(), OnDemandRecord(requests=20, refusals=10)
    assert probability_of_deadline(situation(hours_left=40), calm) > 0.999
    early, late = (probability_of_deadline(situation(hours_left=h), calm) for h in (28, 25.5))
    assert 0 < late < early < 1
    assert probability_of_deadline(situation(hours_left=28), busy) < early
    assert probability_of_deadline(situation(hours_left=20), calm) < 0.001
    assert probability_of_deadline(situation(hours_left=-1), calm) == 0
    assert probability_of_deadline(situation(hours_left=28, running=4), busy) > early
    assert probability_of_deadline(situation(hours_left=1, work_h=0), calm) == 1


TEXT = RECIPE.replace(
    "count: 2", "count: {min: 1, max: 4}\n  market: spot-then-on-demand\n  on_demand_base: 1"
).replace("benchmark: quantization", "command: ./train\n  elastic: {}")
TEXT += "deadline:\n  finish: 52h\n  work: {steps: 100}\n"


def spot(usd, zone="us-east-1a"):
    return price(usd=usd, market=SPOT, zone=zone)


POOLS = (
    CapacityPool(
        instance_type=TYPE,
        market=SPOT,
        zone="",
        price=spot("0.05"),
        zones=("us-east-1a", "us-east-1b"),
        zone_prices=(spot("0.05"), spot("0.06", "us-east-1b")),
    ),
    CapacityPool(instance_type=TYPE, market=ON_DEMAND, zone="", price=price(usd="0.18")),
)


@pytest.fixture
def launcher(tmp_path):
    database = Database(tmp_path / "store.sqlite")
    clusters = Clusters(database)
    clusters.add(cluster(created_at=START))
    events = []
    yield SimpleNamespace(
        store=SimpleNamespace(clusters=clusters),
        cluster=cluster(created_at=START),
        cluster_id=cluster().cluster_id,
        clock=FakeClock(),
        emit=events.append,
        events=events,
    )
    database.close()


def scaler_of(launcher):
    parsed = recipe(TEXT)
    return make_scaler(launcher, parsed, parsed.deadline, pools={}, registry=TrainingRegistry())


def test_a_later_controller_has_the_deadline_of_the_first(launcher):
    launcher.clock.advance(60)
    assert scaler_of(launcher).deadline == START + timedelta(hours=52)
    launcher.clock.advance(3600)
    later = scaler_of(launcher)
    assert (later.began_at, later.deadline) == (START, START + timedelta(hours=52))
    assert len(launcher.store.clusters.intents(launcher.cluster_id, DEADLINE)) == 1


def test_a_kept_cluster_that_trains_again_has_a_new_deadline(launcher):
    scaler_of(launcher)
    end_deadline(launcher)
    assert launcher.events[-1].message == "finished 52.00 h before the deadline"
    launcher.clock.advance(100 * 3600)
    again = scaler_of(launcher)
    assert again.deadline == START + timedelta(hours=152)
    launcher.clock.advance(53 * 3600)
    end_deadline(launcher)
    assert "1.00 h after the deadline" in launcher.events[-1].message
    outcomes = [i.outcome for i in launcher.store.clusters.intents(launcher.cluster_id, DEADLINE)]
    assert outcomes == ["met", "missed"]


def test_the_pools_of_a_plan_have_prices_by_zone():
    assert prices_of(replace(plan(), pools=POOLS)) == PRICES


def test_prices_are_asked_for_again_from_time_to_time(launcher):
    launcher.cloud = SimpleNamespace(prices=SimpleNamespace(find=lambda *_: [spot("0.09")]))
    launcher.cloud.prices.spot_history = lambda *_: []
    prices = PoolPrices(launcher=launcher, types=(TYPE,), prices={A: 0.05})
    assert prices() == {A: 0.05}
    launcher.clock.advance(PRICES_EVERY_S)
    prices._ask()
    assert prices.prices == {A: 0.09}


def test_the_usual_price_of_a_pool_is_weighted_by_time():
    """It held for an hour before the time that counts, then changed twice within it."""
    hours = [(-1, "0.05"), (6, "0.01"), (9, "0.08")]
    history = [replace(spot(usd), as_of=START + timedelta(hours=at)) for at, usd in hours]
    later = replace(spot("0.07", "us-east-1b"), as_of=START + timedelta(hours=10))
    means = mean_prices([*history, later], START, START + timedelta(hours=10))
    assert means == {
        A: pytest.approx((6 * 0.05 + 3 * 0.01 + 1 * 0.08) / 10),
        B: 0.07,
    }


def test_a_plan_is_limited_to_the_pools_that_are_asked():
    limited = limit_plan(replace(plan(), pools=POOLS), SPOT, [B[1]], 7)
    assert [(pool.market, pool.zones) for pool in limited.pools] == [(SPOT, ("us-east-1b",))]
    assert (limited.rounds, limited.max_count, limited.on_demand_base) == ((SPOT,), 7, 0)
    on_demand = limit_plan(replace(plan(), pools=POOLS), ON_DEMAND, [TYPE], 3)
    assert on_demand.pools == (POOLS[1],)
    with pytest.raises(CapacityError):
        limit_plan(replace(plan(), pools=POOLS[1:]), SPOT, [A[1]], 3)
