"""Standbys are prepared once, again after each change of the workers, and tried again after a failure."""

from datetime import timedelta

from dlcloud.elastic.failover import PREPARE_AGAIN_S, Standbys
from dlcloud.model.cluster import Member
from dlcloud.model.errors import UnreachableError
from dlcloud.scheduling.scaling import InstanceStage, TrainingInstance
from tests.fakes.clock import FakeClock
from tests.fakes.samples import THEN, instance


def worker(number, state=InstanceStage.TRAINING):
    made = instance(f"i-{number}", launched_at=THEN + timedelta(minutes=number))
    return TrainingInstance(member=Member(instance=made), state=state)


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
