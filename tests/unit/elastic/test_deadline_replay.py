"""The controller's part of a deadline lived through a trace, in virtual time, beside the simulation of it."""

from dataclasses import replace
from datetime import timedelta

import pytest

from dlcloud.elastic.controller import RequestEnded
from dlcloud.elastic.deadline_scaler import DeadlineScaler
from dlcloud.elastic.registry import StepCommitted, TrainingRegistry
from dlcloud.model.cluster import Member
from dlcloud.model.errors import CapacityError
from dlcloud.model.instance import Market
from dlcloud.planning.launch_request import PoolRefusal
from dlcloud.recipe.deadline import Work
from dlcloud.scheduling.deadline_scaling import pool_of, spot_pool
from dlcloud.scheduling.policies import POLICIES
from dlcloud.scheduling.scaling import InstanceStage, TrainingInstance
from dlcloud.scheduling.simulation.generate import Rates, generate_window
from dlcloud.scheduling.simulation.replay import SimulatedJob, replay
from dlcloud.scheduling.simulation.summary import keep_base
from dlcloud.scheduling.simulation.traces import Window, from_ticks
from tests.fakes.clock import START, FakeClock
from tests.fakes.samples import instance

TYPE = "c7i.xlarge"
ZONES = ("us-east-1a", "us-east-1b")
ON_DEMAND_USD, SPOT_USD = 0.18, {"us-east-1a": 0.05, "us-east-1b": 0.06}
BOOT_S, PAUSE_S, TURN_S = 180.0, 10.0, 30.0
STEP_S = 30.0
"""Of one worker alone; n workers take an n-th of it."""


class Life:
    """Instances that follow a window, in turns of virtual seconds; a decision takes effect at once."""

    def __init__(self, window, *, size, steps, allowed_s):
        self.window, self.size, self.steps, self.allowed_s = window, size, steps, allowed_s
        self.clock, self.registry, self.workers = FakeClock(), TrainingRegistry(), {}
        self.prices = {(Market.ON_DEMAND, TYPE): ON_DEMAND_USD}
        self.prices |= {(Market.SPOT, spot_pool(zone, TYPE)): SPOT_USD[zone] for zone in ZONES}
        self.scaler = DeadlineScaler(
            began_at=START,
            deadline=START + timedelta(seconds=allowed_s),
            work=Work(steps=steps, per_hour=3600 / STEP_S),
            size=(1, size),
            base=1,
            policy=POLICIES["elastic"],
            prices=lambda: self.prices,
            registry=self.registry,
            clock=self.clock,
            emit=lambda _: None,
            store_outlook=lambda *_: None,
        )
        self.registry.steps = steps
        self.boots, self.done, self.recorded, self.paused_s, self.usd, self.count = {}, 0.0, 0, 0.0, 0.0, 0

    def run(self):
        while self.done < self.steps and self.clock.monotonic() < 4 * self.allowed_s:
            self.follow_trace()
            self.join()
            for _ in range(4):  # one market at a time
                if not self.decide():
                    break
            self.train()
            self.clock.advance(TURN_S)
        return self

    def obtainable(self, zone):
        pool = next(pool for pool in self.window.pools if pool.name == zone)
        now_s = self.clock.monotonic()
        return (
            0
            if now_s >= pool.end_s
            else next(
                count
                for at_s, count in reversed(list(zip(pool.starts_s, pool.counts, strict=True)))
                if at_s <= now_s
            )
        )

    def living(self, key=None):
        return [w for w in self.workers.values() if w.stays and key in (None, pool_of(w.member.instance))]

    def follow_trace(self):
        for zone in ZONES:
            here = self.living((Market.SPOT, spot_pool(zone, TYPE)))
            for worker in here[self.obtainable(zone) :]:
                self.registry.mark_interrupted(worker.instance_id)
                self.set_state(worker, InstanceStage.GONE)

    def set_state(self, worker, state):
        if InstanceStage.TRAINING in (worker.state, state):
            self.paused_s = PAUSE_S
        self.workers[worker.instance_id] = replace(worker, state=state)

    def join(self):
        for worker in self.living():
            if (
                worker.state is InstanceStage.ARRIVING
                and self.boots[worker.instance_id] <= self.clock.monotonic()
            ):
                self.set_state(worker, InstanceStage.TRAINING)

    def decide(self):
        decision = self.scaler.decide(list(self.workers.values()), is_launching=False)
        for name in decision.drain:
            self.set_state(self.workers[name], InstanceStage.GONE)
        if decision.launch:
            self.launch(decision)
        return decision.launch

    def launch(self, decision):
        missing, refusals, new = decision.launch, [], []
        for name in sorted(decision.pools, key=lambda name: self.prices[decision.market, name]):
            zone = name.partition(" ")[0] if decision.market is Market.SPOT else ZONES[0]
            room = missing
            if decision.market is Market.SPOT:
                room = self.obtainable(zone) - len(self.living((Market.SPOT, name)))
            given = max(0, min(missing, room))
            missing -= given
            new += [self.add(decision.market, zone) for _ in range(given)]
            if missing:
                error = CapacityError("none")
                refusals.append(PoolRefusal(pool=f"{TYPE} {decision.market}", zone=zone, error=error))
        self.scaler.handle_request(RequestEnded(decision=decision, new=new, refusals=refusals))

    def add(self, market, zone):
        made = instance(f"i-{self.count:03}", market=market, zone=zone, launched_at=self.clock.now())
        member = Member(instance=made, hourly_usd=None)
        self.count += 1
        self.registry.add(member)
        self.boots[made.instance_id] = self.clock.monotonic() + BOOT_S
        self.workers[made.instance_id] = TrainingInstance(member=member, state=InstanceStage.ARRIVING)
        return member

    def train(self):
        training = sum(worker.state is InstanceStage.TRAINING for worker in self.living())
        self.usd += sum(self.prices[pool_of(w.member.instance)] for w in self.living()) * TURN_S / 3600
        paused_s = min(TURN_S, self.paused_s)
        self.paused_s -= paused_s
        self.done += (TURN_S - paused_s) * training / STEP_S
        for step in range(self.recorded + 1, int(self.done) + 1):
            seconds = STEP_S / training
            report = StepCommitted(step=step, instance_id="i-000", world_size=training, seconds=seconds)
            self.registry.observe("i-000", report)
        self.recorded = int(self.done)


def simulate(window, *, size, steps, allowed_s):
    priced = replace(
        window,
        pools=tuple(replace(p, prices=(SPOT_USD[p.name],) * len(p.counts)) for p in window.pools),
    )
    job = SimulatedJob(
        work_s=steps * STEP_S,
        allowed_s=allowed_s,
        on_demand_usd=ON_DEMAND_USD,
        spot_usd=0.05,
        maximum=size,
        boot_s=BOOT_S,
        changeover_s=PAUSE_S,
    )
    return replay(job, priced, keep_base(POLICIES["elastic"], 1))


def window_of(seed):
    made = generate_window(seed, hours=60, pools=2, rates=Rates(count=6))
    named = tuple(replace(pool, name=zone) for pool, zone in zip(made.pools, ZONES, strict=True))
    return replace(made, pools=named)


@pytest.mark.parametrize(("hours", "seed"), [(9.5, 1), (12, 5)])
def test_cost_and_finish_agree_with_the_simulation(hours, seed):
    size, steps = 8, int(8 * 8 * 3600 / STEP_S)
    setting = {"size": size, "steps": steps, "allowed_s": hours * 3600}
    life, expected = Life(window_of(seed), **setting).run(), simulate(window_of(seed), **setting)
    assert life.clock.monotonic() <= hours * 3600
    assert life.usd == pytest.approx(expected.usd, rel=0.05)
    assert life.clock.monotonic() == pytest.approx(expected.finished_s, rel=0.05)


class RefusedLife(Life):
    """The first request for more on-demand instances, and all for an hour after it, are refused."""

    refused_at_s = None

    def launch(self, decision):
        now_s = self.clock.monotonic()
        if decision.market is Market.ON_DEMAND and self.workers:
            self.refused_at_s = now_s if self.refused_at_s is None else self.refused_at_s
            if now_s < self.refused_at_s + 3600:
                self.scaler.handle_request(RequestEnded(decision=decision))
                return
        super().launch(decision)


def test_the_deadline_holds_without_spot_and_with_on_demand_refused():
    empty = from_ticks("none", 3600, [0] * 20)
    window = Window(name="none", pools=tuple(replace(empty, name=zone) for zone in ZONES))
    steps = int(8 * 8 * 3600 / STEP_S)
    life = RefusedLife(window, size=8, steps=steps, allowed_s=10 * 3600).run()
    assert life.refused_at_s is not None
    assert life.done >= steps
    assert life.clock.monotonic() <= 10 * 3600
