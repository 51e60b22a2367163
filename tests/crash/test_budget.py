"""The budget is held by the instance itself: the launcher is killed, and nothing goes on costing money.

A minute of the local instances takes a fraction of a second here; the timers count minutes all the same.
"""

import time

import pytest

from tests.fakes.control import control_of

MINUTE_S = 0.5
PATIENCE_S = 300.0
"""Less than the twelve minutes that 24 hours take here."""
RECIPE = """
name: budget
cloud: local
instances: {{types: [c5.xlarge]}}
workload: {{command: '{command}', repeats: 1}}
budget: {{max_hours: {hours}{idle}}}
"""


def hurry(home):
    control_of(home.site.find()).set_minute(MINUTE_S)


def write(home, command, *, hours=24.0, idle=""):
    path = home.folder / "budget.yaml"
    path.write_text(RECIPE.format(command=command, hours=hours, idle=idle))
    return str(path)


def await_end(home):
    began = time.monotonic()
    while home.alive():
        assert time.monotonic() - began < PATIENCE_S, "it still costs money"
        time.sleep(0.5)


def test_an_instance_ends_itself_at_its_budget_with_the_launcher_dead(home):
    hurry(home)
    path = write(home, "sleep 1", hours=0.25)  # 15 of these minutes
    home.run("up", path, "--keep", "--name", "left", expect=0)
    await_end(home)
    home.run("down", "--all", expect=0)
    assert not any(home.left().values())


def test_a_run_that_lives_holds_off_the_idle_end_and_its_end_brings_it(home):
    hurry(home)
    # 20 idle minutes are 10 s here: the run outlives them, its results come home in less.
    path = write(home, "sleep 13", idle=", idle_minutes: 20")
    home.run("up", path, "--keep", "--name", "left", expect=0)
    assert home.alive(), "the run was cut off"
    await_end(home)
    home.run("down", "--all", expect=0)


@pytest.mark.long
def test_an_instance_ends_when_idle_if_its_launcher_was_killed_before(home):
    hurry(home)
    path = write(home, "sleep 1", idle=", idle_minutes: 20")
    points = home.run("up", path, expect=0)["points"]
    killed = home.run("up", path, kill_at=points.index("before INSERT INTO runs") + 1)
    assert killed["status"] == -9
    assert home.alive()
    await_end(home)
    home.run("down", "--all", expect=0)
    assert not any(home.left().values())
