"""After a loss: standbys that were prepared, and where all instances are lost, a launch from S3."""

from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace

import pytest

from dlcloud.elastic.agents import AgentExited
from dlcloud.elastic.controller import Controller, TrainingControl
from dlcloud.elastic.failover import PREPARE_AGAIN_S, Standbys, StateLostError
from dlcloud.elastic.train import MOST_WITHOUT_PROGRESS, Relauncher, train
from dlcloud.launch.launcher import LaunchedMembers
from dlcloud.model.errors import (
    BudgetError,
    CapacityError,
    CloudError,
    CredentialsError,
    InstanceError,
    UnreachableError,
)
from dlcloud.model.instance import Market
from dlcloud.scheduling.scaling import InstanceStage
from tests.fakes.clock import START, FakeClock
from tests.fakes.controller import FIRST, TRAINS, World, member, reports
from tests.fakes.samples import cluster, plan, recipe, worker

URI = "s3://bucket/run"
TEXT = f"{TRAINS}checkpoints: {URI}\n"
LOST = StateLostError("the coordinator i-0 is gone, and no other instance has the model's state: the 7 steps")


@dataclass
class FakeLauncher:
    """A launcher whose launches answer in turn: an error, or nothing for one that gives an instance."""

    answers: list = field(default_factory=list)
    steps: list = field(default_factory=lambda: [0])
    alive: list = field(default_factory=lambda: [*FIRST])
    clock: FakeClock = field(default_factory=FakeClock)
    events: list = field(default_factory=list)
    ended: list = field(default_factory=list)
    planned: list = field(default_factory=list)
    launches: int = 0

    def __post_init__(self):
        self.cluster = cluster(created_at=START)
        self.cluster_id = self.cluster.cluster_id
        self.emit = self.events.append
        network = SimpleNamespace(find_group=lambda _: "sg-1", allow_peers=lambda _: None)
        self.cloud = SimpleNamespace(buckets=self, network=network)

    def newest_step(self, uri):
        assert (uri, self.alive) == (URI, []), "an instance could still store another"
        return self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]

    def reconcile(self, *, consistent=False):  # noqa: ARG002  the launcher's
        return list(self.alive)

    def shrink(self, members):
        self.ended += [each.instance.instance_id for each in members]
        self.alive = [each for each in self.alive if each not in members]

    def plan(self, recipe, *, cidrs, members):
        assert list(members) == self.alive == []
        self.planned.append((recipe, cidrs))
        return plan()

    def launch(self, _):
        self.launches += 1
        self.alive = [member(10 * self.launches, Market.ON_DEMAND)]
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        return LaunchedMembers(members=self.alive, connections={})

    @property
    def messages(self):
        return [event.message for event in self.events]


def relauncher(launcher, text=TEXT, restored=0):
    return Relauncher(launcher=launcher, recipe=recipe(text), cidrs=("10.0.0.0/8",), restored=restored)


def test_what_is_left_ends_before_the_newest_checkpoint_is_looked_up():
    launcher = FakeLauncher(steps=[6])
    again = relauncher(launcher).launch(LOST)
    assert (again.restored, [each.instance.instance_id for each in again.members]) == (6, ["i-10"])
    assert launcher.ended == ["i-0", "i-1", "i-2"]
    assert launcher.messages[0].endswith(f": launching again from {URI}")
    assert launcher.messages[-1] == f"resumes from step 6, stored in {URI}"


def test_a_refusal_is_waited_out_and_nothing_is_billed_meanwhile():
    answers = [CapacityError("none is left"), UnreachableError("it does not answer"), CloudError("throttled")]
    launcher = FakeLauncher(answers=answers, steps=[6])
    assert relauncher(launcher).launch(LOST).restored == 6
    assert launcher.ended == ["i-0", "i-1", "i-2", "i-10", "i-20", "i-30"]
    assert (launcher.clock.now() - START).total_seconds() == 5 + 10 + 20
    assert "not launched: none is left; retrying in 5 s" in launcher.messages


def test_with_a_deadline_no_wait_takes_much_of_the_time_to_it():
    text = TEXT.replace("market: spot\n", "market: spot-then-on-demand\n")
    text += "deadline:\n  finish: 20m\n  work: {steps: 100}\n"
    launcher = FakeLauncher(answers=[CapacityError("none")] * 3, steps=[6])
    relauncher(launcher, text).launch(LOST)
    assert (launcher.clock.now() - START).total_seconds() == 3 * 2


@pytest.mark.parametrize(
    ("error", "cause"),
    [(BudgetError("it buys no minute"), "buys no minute"), (CredentialsError("denied"), "denied")],
)
def test_what_no_waiting_mends_ends_the_training(error, cause):
    launcher = FakeLauncher(answers=[error])
    with pytest.raises(InstanceError, match=f"not launched again: .*{cause}") as raised:
        relauncher(launcher).launch(LOST)
    assert f"resumes from the newest checkpoint in {URI}" in raised.value.hint
    assert launcher.launches == 1


def test_the_hours_of_the_budget_end_the_training():
    launcher = FakeLauncher(answers=[CapacityError("none")] * 1000)
    with pytest.raises(InstanceError, match=r"budget\.max_hours is over: 4 h"):
        relauncher(launcher, f"{TEXT}budget: {{max_hours: 4}}\n").launch(LOST)
    assert launcher.clock.now() - START >= timedelta(hours=4)
    assert launcher.alive == []


def test_losses_without_a_newer_checkpoint_end_the_training():
    launcher = FakeLauncher(steps=[0, 3, *[6] * 20])
    again = relauncher(launcher)
    for _ in range(2 + MOST_WITHOUT_PROGRESS):
        again.launch(LOST)
    with pytest.raises(InstanceError, match="without a newer checkpoint than that of step 6"):
        again.launch(LOST)


def test_a_coordinator_lost_before_the_first_step_passes_no_checkpoint():
    """It began anew, from nothing, beside a stored checkpoint."""
    gone = AgentExited(instance_id="i-0", error=InstanceError("i-0 is gone"))
    world = World({"i-0": [gone]}, restored=300)
    with pytest.raises(StateLostError, match="the 300 steps"):
        world.go(FIRST[:1])


def test_the_state_of_a_checkpoint_survives_its_coordinator():
    healed = {"record": "event", "event": "healed", "cause": "", "step": 300}
    gone = AgentExited(instance_id="i-0", error=InstanceError("i-0 is gone"))
    script = {"i-1": [reports("i-1", healed), gone]}
    world = World(script, restored=300, launches=Market.ON_DEMAND)
    world.emit = lambda event: world.events.append(event) or stop(event)

    def stop(event):
        if event.message == "is the coordinator from now on":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.go(FIRST[:2])
    assert (world.registry.coordinator.step, world.registry.coordinator.least) == (300, 300)


@pytest.mark.parametrize("may_relaunch", [True, False])
def test_a_controller_goes_on_with_the_next_instances(monkeypatch, may_relaunch):
    """Only a launcher outside of the cluster may launch again: one inside would end itself."""
    lives = []

    def run(controller, members, first):
        lives.append((controller, [each.instance.instance_id for each in members], first))
        for each in members:
            controller.registry.add(each)
        if len(lives) < 3:
            raise LOST

    monkeypatch.setattr(Controller, "run", run)
    launcher = FakeLauncher(alive=[], steps=[0, 6, 9])
    launcher.store = SimpleNamespace(clusters=None, runs=SimpleNamespace(of_cluster=lambda _: []))
    launcher.cloud.prices = None
    control = TrainingControl(may_relaunch=may_relaunch)

    def go():
        train(launcher, recipe(TEXT), FIRST, recipe_folder=None, plan=plan(), control=control)

    if not may_relaunch:
        with pytest.raises(InstanceError, match=r"no other instance has the model's state$"):
            go()
        return
    go()
    assert [names for _, names, _ in lives] == [["i-0", "i-1", "i-2"], ["i-10"], ["i-20"]]
    assert [controller.failover.restored for controller, _, _ in lives] == [0, 6, 9]
    assert lives[0][0].registry.followed == []


def test_a_training_of_several_regions_leaves_the_one_that_has_no_capacity():
    launcher = FakeLauncher(answers=[CapacityError("none is left")], steps=[6])
    with pytest.raises(CapacityError, match="none is left"):
        relauncher(launcher, f"{TEXT}region: [us-east-1, us-west-2]\n").launch(LOST)
    assert (launcher.clock.now(), launcher.alive) == (START, [])


class Preparing:
    def __init__(self):
        self.prepared, self.failing, self.events, self.clock = [], set(), [], FakeClock()
        self.standbys = Standbys(prepare=self.prepare, clock=self.clock, emit=self.events.append)

    def prepare(self, member, place):
        name = member.instance.instance_id
        self.prepared.append((name, place))
        if name in self.failing:
            raise UnreachableError(f"{name} does not answer")

    def update(self, *workers):
        self.standbys.update(workers, "i-0")
        if self.standbys._thread is not None:
            self.standbys._thread.join()


def test_standbys_are_renewed_only_after_a_change():
    preparing = Preparing()
    for _ in range(3):
        preparing.update(worker(0), worker(1), worker(2), worker(3, InstanceStage.ARRIVING))
    assert preparing.prepared == [("i-1", 0), ("i-2", 1)]
    preparing.update(worker(0), worker(1), worker(2), worker(3))
    assert preparing.prepared[2:] == [("i-1", 0), ("i-2", 1)], "they must know of the new one"
    preparing.update(worker(0), worker(1, InstanceStage.GONE), worker(2), worker(3))
    assert preparing.prepared[4:] == [("i-2", 0), ("i-3", 1)]
    assert [event.instance_id for event in preparing.events] == ["i-1", "i-2", "i-3"]


def test_a_standby_that_does_not_answer_is_tried_again_later():
    preparing = Preparing()
    preparing.failing = {"i-1"}
    preparing.update(worker(0), worker(1))
    preparing.update(worker(0), worker(1))
    assert preparing.prepared == [("i-1", 0)]
    assert "does not answer" in preparing.events[0].message
    preparing.failing = set()
    preparing.clock.advance(PREPARE_AGAIN_S)
    preparing.update(worker(0), worker(1))
    assert preparing.prepared == [("i-1", 0), ("i-1", 0)]
    assert "stands by" in preparing.events[-1].message
