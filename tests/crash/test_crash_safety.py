"""Kill `up` and `down` with -9 at every API call and every store write, and see that nothing is leaked.

With DLCLOUD_CRASH_POINTS=all every point is tried; without it, every sixteenth, others on each day.
"""

import os
from datetime import UTC, datetime
from itertools import count

import pytest

pytestmark = pytest.mark.timeout(3600)  # with every point, each test takes minutes

EVERY = 1 if os.environ.get("DLCLOUD_CRASH_POINTS") == "all" else 16
NOTHING = {"instances", "volumes", "groups", "templates", "fleets", "interfaces", "keys"}

# One path launches by RunInstances, the other by CreateFleet with a launch template.
SINGLE = "types: [c5.xlarge]"
FLEET = "types: [c5.xlarge, c6i.xlarge]\n  market: spot"
RECIPE = """
name: crash
cloud: local
instances:
  {instances}
  count: 2
workload:
  command: 'echo images/sec: 5'
  throughput: 'images/sec: ([0-9.]+)'
  repeats: 1
"""


def points(kill):
    """Yield the numbers of points until a run passes its last one alive; `kill` runs one, tells of it."""
    first = datetime.now(UTC).toordinal() % EVERY + 1
    tried = 0
    for number in count(first, EVERY):
        told = kill(number)
        if told["status"] != -9:
            assert told["status"] == 0, told["output"]
            break
        tried += 1
        yield number, told["points"][-1]
    print(f"\n{tried} of about {number} points tried")  # noqa: T201  asked for
    assert tried


def recipe(home, instances):
    path = home.folder / "crash.yaml"
    path.write_text(RECIPE.format(instances=instances))
    return str(path)


def assert_nothing_left(home, where):
    left = home.left()
    assert set(left) == NOTHING
    assert not any(left.values()), f"killed {where}: {left}"
    home.run("status", expect=0)
    assert not list((home.folder / "clusters").glob("*")), f"killed {where}: keys are left"


@pytest.mark.parametrize("instances", [SINGLE, FLEET], ids=["run-instances", "fleet"])
def test_a_second_up_ends_in_exactly_one_right_cluster(home, instances):
    path = recipe(home, instances)
    for number, where in points(lambda n: home.run("up", path, "--keep", "--name", "one", kill_at=n)):
        if number % (2 * EVERY) < EVERY:
            home.run("up", path, "--keep", "--name", "one", expect=0)
            alive = home.alive()
            assert len(alive) == 2, f"killed {where}: {alive}"
            assert len(set(alive)) == 1, f"killed {where}: {alive}"
            assert len(home.left()["groups"]) == 1, f"killed {where}"
        home.run("down", "--all", expect=0)
        assert_nothing_left(home, where)
    home.run("down", "--all", expect=0)


@pytest.mark.parametrize("instances", [SINGLE, FLEET], ids=["run-instances", "fleet"])
def test_an_up_that_cleans_up_after_itself_is_finished_by_the_next(home, instances):
    path = recipe(home, instances)
    for _, where in points(lambda n: home.run("up", path, kill_at=n)):
        home.run("up", path, expect=0)
        assert_nothing_left(home, where)


@pytest.mark.parametrize("instances", [SINGLE, FLEET], ids=["run-instances", "fleet"])
def test_a_second_down_leaves_nothing(home, instances):
    path = recipe(home, instances)

    def kill(number):
        home.run("up", path, "--keep", "--name", "one", expect=0)
        return home.run("down", "one", kill_at=number)

    for _, where in points(kill):
        home.run("down", "--all", expect=0)
        home.run("up", path, "--dry-run", expect=0)
        assert_nothing_left(home, where)


@pytest.mark.parametrize("instances", [SINGLE, FLEET], ids=["run-instances", "fleet"])
def test_gc_with_an_empty_store_finds_and_removes_what_a_lost_laptop_left(home, instances):
    path = recipe(home, instances)
    home.run("up", path, "--keep", "--name", "one", expect=0)
    home.forget()
    told = home.run("gc", "--cloud", "local", "--region", "us-east-1", "--dry-run", "-o", "csv", expect=0)
    kinds = {line.split(",")[3] for line in told["output"].splitlines() if ",us-east-1," in line}
    assert {"instance", "security-group"} <= kinds, told["output"]
    assert len(home.alive()) == 2
    home.run("gc", "--cloud", "local", "--region", "us-east-1", "--yes", expect=0)
    assert not any(home.left().values())
    again = home.run("gc", "--cloud", "local", "--region", "us-east-1", expect=0)
    assert "nothing is left over" in again["output"]


def test_gc_leaves_alone_what_the_store_knows_to_be_up(home):
    home.run("up", recipe(home, SINGLE), "--keep", "--name", "one", expect=0)
    home.run("gc", "--cloud", "local", "--region", "us-east-1", "--yes", expect=0)
    assert len(home.alive()) == 2
    home.run("down", "--all", expect=0)
