"""Another instance takes the place of one that is lost: as soon as there is capacity, within the budget."""

from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from dlcloud.model.cluster import Member
from dlcloud.model.errors import BudgetError, CapacityError, InstanceError, LostInstanceError
from dlcloud.runs.replacement import Interruption, Replacements, Restart, interruptions_of
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from tests.fakes.clock import FakeClock
from tests.fakes.samples import instance


def member(name):
    return Member(instance=instance(name))


NOW = datetime(2026, 11, 28, tzinfo=UTC)
LOST = LostInstanceError("i-1 was reclaimed")


@pytest.fixture
def clusters(tmp_path):
    with closing(Database(tmp_path / "store.sqlite")) as database:
        yield Clusters(database)


class World:
    def __init__(self, *answers, leaves=False):
        self.answers, self.asked, self.events, self.clock = list(answers), [], [], FakeClock()
        self.members = [member("i-1"), member("i-2")]
        self.replacements = Replacements(
            self.members, launch=self.launch, clock=self.clock, emit=self.events.append, leaves=leaves
        )

    def launch(self, size, connected, leaving, lost):
        self.size = size
        self.asked.append((sorted(connected), lost and lost.instance.instance_id))
        self.leaving = sorted(leaving)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [member(name) for name in answer]

    def replace(self, place=0):
        return self.replacements.replace(self.members[place], LOST).instance.instance_id


def test_a_replacement_is_launched_next_to_the_instances_that_are_left():
    world = World(["i-3"], ["i-4"])
    assert world.replace() == "i-3"
    assert world.replace(1) == "i-4"
    assert world.asked == [(["i-2"], "i-1"), (["i-3"], "i-2")]


def test_what_one_launch_gives_for_two_lost_instances_is_used_for_both():
    world = World(["i-3", "i-4"])
    assert {world.replace(), world.replace(1)} == {"i-3", "i-4"}
    assert len(world.asked) == 1


def test_without_capacity_it_is_tried_again_with_growing_pauses():
    world = World([], CapacityError("no capacity"), [], ["i-3"])
    began = world.clock.monotonic()
    assert world.replace() == "i-3"
    assert world.clock.monotonic() - began == 15 + 30 + 60
    assert any("no capacity; next try in 30 s" in event.message for event in world.events)


def test_without_time_in_the_budget_the_run_fails_with_both_reasons():
    world = World([], BudgetError("budget.max_hours leaves no time for it"))
    with pytest.raises(InstanceError, match=r"i-1 was reclaimed; it is not replaced: budget\.max_hours"):
        world.replace()


def test_a_job_of_several_regions_moves_instead_of_waiting():
    world = World([], leaves=True)
    with pytest.raises(CapacityError, match=r"i-1 was reclaimed; it is not replaced there: no pool"):
        world.replace()
    assert world.clock.slept == []


def test_a_restart_shows_its_parts():
    parts = "2.0 s until its replacement was there, 4.5 s until its start"
    seconds = {"boot": 7.0, "environment": 2.5}
    restart = Restart(noticed_at=10, stopped_at=16, replaced_at=18, seconds=seconds)
    whole = f"the program starts again 12.5 s after the notice: 6.0 s until it had stopped, {parts}"
    assert restart.describe_start(22.5) == f"{whole} (boot 7.0 s, environment 2.5 s, checkpoints 0.0 s)"
    restart = Restart(noticed_at=None, stopped_at=16, replaced_at=18)
    assert restart.describe_start(22.5).startswith(f"the program starts again 6.5 s after the loss: {parts}")
    assert (
        restart.describe_output("output", 25)
        == "its first output came 9.0 s after the loss: 2.5 s after its start"
    )


def test_the_report_of_an_interrupted_run_has_the_parts_of_its_restart(clusters):
    started = Interruption(clusters, "c-1", "i-1", lost_s=3, hourly_usd=Decimal(36), now=NOW)
    Interruption(clusters, "c-1", "i-2", lost_s=4, hourly_usd=Decimal(36), now=NOW)
    restart = Restart(noticed_at=10, stopped_at=16, replaced_at=18, seconds={"boot": 7.0, "checkpoints": 0.5})
    restart.describe_start(20)
    started.note_restart(restart)
    restart.describe_output("output", 25)
    started.note_restart(restart)
    both = interruptions_of(clusters, "c-1")
    parts = "boot 7.0 s, environment 0.0 s, checkpoints 0.5 s"
    lost = "interrupted 2 times: 7 s of work lost (0.0700 USD)"
    assert both.describe() == f"{lost}; started again after 10 s ({parts})"
    (values,) = both.to_values()["restarts"]
    assert values == {
        "after": "notice",
        "started_s": 10,
        "first_output_s": 15,
        "boot_s": 7,
        "environment_s": 0,
        "checkpoints_s": 0.5,
    }


def test_the_time_of_the_boot_is_that_of_the_request_which_was_met():
    world = World([], ["i-3"])
    world.replace()
    assert world.replacements.boot_s == {"i-3": 0}


def test_after_a_resize_the_new_size_is_kept():
    world = World(["i-3"], [], ["i-4", "i-5"])
    assert [one.instance.instance_id for one in world.replacements.resize(4)] == ["i-3"]
    assert world.asked == [(["i-1", "i-2"], None)]
    assert world.replacements.resize(4) == []
    assert world.replace() == "i-4"
    assert world.size == 3, "that of what was launched"
    assert world.replacements.resize(2, end=[member("i-2")]) == []
    assert world.asked[-1] == (["i-2", "i-3"], "i-1")
