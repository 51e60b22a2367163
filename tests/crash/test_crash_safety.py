"""Kill `up`, `down`, `resize`, `bench` and `gc` with -9 at every API call and store write; nothing is leaked.

With DLCLOUD_CRASH_POINTS=all every point is tried; without it, every sixty-fourth, from one that
DLCLOUD_CRASH_SEED chooses, and at least one. A test that fails prints its seed, with which it fails again.
"""

import os
import random
import threading
from itertools import count

import pytest
from killable import Home

pytestmark = pytest.mark.timeout(3600)  # with every point, each test takes minutes

ALL = os.environ.get("DLCLOUD_CRASH_POINTS") == "all"
EVERY = 1 if ALL else 64
SEED = int(os.environ.get("DLCLOUD_CRASH_SEED") or random.randrange(10_000))
# Points are independent: each home with its own local EC2 tries some. Much of a point is waiting.
HOMES = int(os.environ.get("DLCLOUD_CRASH_HOMES", "6" if ALL else "1"))
NOTHING = {"instances", "volumes", "groups", "templates", "fleets", "interfaces", "roles", "profiles", "keys"}
GC = ("gc", "--cloud", "local", "--region", "us-east-1")

# One path launches by RunInstances, the other by CreateFleet with a launch template.
SINGLE = "types: [c5.xlarge]"
FLEET = "types: [c5.xlarge, c6i.xlarge]\n  market: spot"
RECIPE = """
name: crash
cloud: local
instances:
  {instances}
  count: {size}
workload:
  command: 'echo images/sec: 5'
  throughput: 'images/sec: ([0-9.]+)'
  repeats: 1
"""

both = pytest.mark.parametrize(
    "instances", [SINGLE, pytest.param(FLEET, marks=pytest.mark.long)], ids=["run-instances", "fleet"]
)


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    made = [Home(tmp_path_factory.mktemp("crash") / "home") for _ in range(HOMES)]
    yield made
    for home in made:
        home.close()


class Points:
    """The points of one command, tried in turn until it ends before it reaches the next."""

    def __init__(self, homes, scenario):
        self._homes = homes
        self._scenario = scenario
        self._first = SEED % EVERY + 1
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._errors = []
        self._tried = 0
        self._last = 0

    def try_all(self):
        """Try them, as many at a time as there are homes; tell how many there were."""
        self._serve_all()
        while not self._tried and not self._errors and self._first > 1:
            self._first //= 2  # the command ended before it
            self._serve_all()
        for home in self._homes:
            home.run("down", "--all")  # the next test begins with nothing
        print(f"\nDLCLOUD_CRASH_SEED={SEED}")
        if self._errors:
            raise self._errors[0]
        print(f"{self._tried} of about {self._last} points tried")
        assert self._tried

    def _serve_all(self):
        self._numbers = count(self._first, EVERY)
        self._ended.clear()
        threads = [threading.Thread(target=self._serve, args=(home,)) for home in self._homes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _serve(self, home):
        while not self._ended.is_set():
            with self._lock:
                number = next(self._numbers)
            try:
                killed = self._scenario(home, number)
            except BaseException as error:  # noqa: BLE001  raised by try_all
                self._errors.append(error)
                killed = False
            with self._lock:
                self._tried += killed
                self._last = max(self._last, number)
            if not killed:
                self._ended.set()


def try_points(homes, kill, check):
    """Kill a command at each point; `kill` runs it, `check` runs what follows it."""

    def scenario(home, number):
        outcome = kill(home, number)
        if outcome["status"] != -9:
            assert outcome["status"] == 0, outcome["output"]
            return False
        where = f"killed at {number}, {outcome['points'][-1]}"
        try:
            check(home, (SEED + number) // EVERY, where)
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from error
        return True

    Points(homes, scenario).try_all()


def recipe(home, instances, size=2):
    path = home.folder / "crash.yaml"
    path.write_text(RECIPE.format(instances=instances, size=size))
    return str(path)


def assert_nothing_left(home, where):
    left = home.left()
    assert set(left) == NOTHING
    assert not any(left.values()), f"{where}: {left}"
    home.run("status", expect=0)
    assert not list((home.folder / "clusters").glob("*")), f"{where}: keys are left"


def assert_one_cluster(home, size):
    alive = home.alive()
    assert len(alive) == size, alive
    assert len(set(alive)) == 1, alive
    assert len(home.left()["groups"]) == 1


def down(home, where):
    home.run("down", "--all", expect=0)
    assert_nothing_left(home, where)


@pytest.mark.long  # an `up` that cleans up, below, passes the same points and more
@pytest.mark.parametrize("instances", [SINGLE, FLEET], ids=["run-instances", "fleet"])
def test_a_second_up_ends_in_exactly_one_right_cluster(homes, instances):
    def up(home, kill_at=0, expect=None):
        path = recipe(home, instances)
        return home.run("up", path, "--keep", "--name", "one", kill_at=kill_at, expect=expect)

    def check(home, turn, where):
        if turn % 2:
            up(home, expect=0)
            assert_one_cluster(home, 2)
        down(home, where)

    try_points(homes, up, check)


@both
def test_an_up_that_cleans_up_after_itself_is_finished_by_the_next(homes, instances):
    def check(home, _, where):
        home.run("up", recipe(home, instances), expect=0)
        assert_nothing_left(home, where)

    try_points(homes, lambda home, n: home.run("up", recipe(home, instances), kill_at=n), check)


@pytest.mark.long
@both
def test_a_second_down_leaves_nothing(homes, instances):
    def kill(home, number):
        home.run("up", recipe(home, instances), "--keep", "--name", "one", expect=0)
        return home.run("down", "one", kill_at=number)

    def check(home, _, where):
        home.run("down", "--all", expect=0)
        home.run("up", recipe(home, instances), "--dry-run", expect=0)
        assert_nothing_left(home, where)

    try_points(homes, kill, check)


@both
@pytest.mark.parametrize(
    ("before", "after"), [(1, 2), pytest.param(3, 1, marks=pytest.mark.long)], ids=["grow", "shrink"]
)
def test_any_command_after_a_killed_resize_ends_in_one_right_cluster(homes, instances, before, after):
    def kill(home, number):
        if len(home.alive()) != before:
            home.run("up", sized(home), "--keep", "--name", "one", expect=0)
        return home.run("resize", "one", str(after), "--yes", kill_at=number)

    def sized(home):
        return recipe(home, instances, before)

    def check(home, turn, where):
        if turn % 3 == 0:
            home.run("resize", "one", str(after), "--yes", expect=0)
            assert_one_cluster(home, after)
            down(home, where)
        elif turn % 3 == 1:
            size = home.size("one") or before
            home.run("up", sized(home), "--keep", "--name", "one", expect=0)
            assert_one_cluster(home, size)
            home.run("resize", "one", str(before), "--yes", expect=0)
            assert_one_cluster(home, before)
        else:
            down(home, where)

    try_points(homes, kill, check)


@pytest.mark.long
@both
def test_a_second_gc_removes_what_a_killed_one_left(homes, instances):
    def kill(home, number):
        home.run("up", recipe(home, instances), "--keep", "--name", "one", expect=0)
        home.forget()
        return home.run(*GC, "--yes", kill_at=number)

    def check(home, _, where):
        home.run(*GC, "--yes", expect=0)
        assert not any(home.left().values()), f"{where}: {home.left()}"

    try_points(homes, kill, check)


@pytest.mark.long
@both
def test_gc_with_an_empty_store_finds_and_removes_what_a_lost_laptop_left(homes, instances):
    home = homes[0]
    home.run("up", recipe(home, instances), "--keep", "--name", "one", expect=0)
    home.forget()
    outcome = home.run(*GC, "--dry-run", "-o", "csv", expect=0)
    kinds = {line.split(",")[3] for line in outcome["output"].splitlines() if ",us-east-1," in line}
    assert {"instance", "security-group"} <= kinds, outcome["output"]
    assert len(home.alive()) == 2
    home.run(*GC, "--yes", expect=0)
    assert not any(home.left().values())
    again = home.run(*GC, expect=0)
    assert "nothing is left over" in again["output"]


ROLE_POINTS = ["after DeleteInstanceProfile", "before DeleteRole"]
if ALL:
    steps = ("RemoveRoleFromInstanceProfile", "DeleteInstanceProfile", "DeleteRolePolicy", "DeleteRole")
    ROLE_POINTS = [f"{when} {step}" for step in steps for when in ("before", "after")]


@pytest.mark.parametrize("point", ROLE_POINTS)
def test_the_role_of_a_cluster_goes_with_it_wherever_down_was_killed(homes, point):
    home = homes[0]
    home.run("up", recipe(home, SINGLE), "--keep", "--name", "one", expect=0)
    home.begin_hand_over("one")
    assert home.run("down", "one", kill_on=point)["status"] == -9
    down(home, point)


@pytest.mark.parametrize("point", ROLE_POINTS[:1])
def test_gc_finds_the_role_that_a_lost_laptop_left_wherever_it_was_killed(homes, point):
    home = homes[0]
    home.run("up", recipe(home, SINGLE), "--keep", "--name", "one", expect=0)
    home.begin_hand_over("one")
    home.forget()
    assert ",iam-role," in home.run(*GC, "--dry-run", "-o", "csv", expect=0)["output"]
    assert home.run(*GC, "--yes", kill_on=point)["status"] == -9
    home.run(*GC, "--yes", expect=0)
    assert not any(home.left().values()), home.left()


def test_gc_leaves_alone_what_the_store_knows_to_be_up(homes):
    home = homes[0]
    home.run("up", recipe(home, SINGLE), "--keep", "--name", "one", expect=0)
    home.run(*GC, "--yes", expect=0)
    assert len(home.alive()) == 2
    home.run("down", "--all", expect=0)


def test_gc_leaves_alone_what_controls_itself_unless_it_is_named(homes):
    home = homes[0]
    home.run("up", recipe(home, SINGLE), "--keep", "--name", "one", expect=0)
    home.begin_hand_over("one", in_charge=True)
    home.forget()
    (cluster_id,) = set(home.alive())
    output = home.run(*GC, "--yes", expect=0)["output"]
    assert f"one ({cluster_id}) is left alone" in output
    assert len(home.alive()) == 2
    home.run(*GC, cluster_id, "--yes", expect=0)
    assert not any(home.left().values()), home.left()


@pytest.mark.skipif(not ALL, reason="a bench takes long, and launches as up does: DLCLOUD_CRASH_POINTS=all")
def test_a_second_bench_completes_one_that_was_killed_and_leaves_nothing(homes):
    def bench(home, kill_at=0, expect=None):
        path = recipe(home, SINGLE, size=1)
        types = ("-i", "c5.xlarge", "-i", "c7i.xlarge")
        return home.run("bench", *types, "--recipe", path, "-o", "csv", kill_at=kill_at, expect=expect)

    def check(home, _number, where):
        output = bench(home, expect=0)["output"]
        for name in ("c5.xlarge", "c7i.xlarge"):
            assert any(f",{name}," in line for line in output.splitlines()), f"{name}: {output}"
        assert_nothing_left(home, where)

    try_points(homes, bench, check)
