"""`up`, `resize` and `up --detach` killed at random moments: the next command leaves nothing up."""

import os
import random
import signal
import time

import pytest
from terminal import TIMEOUT_S, wait_until

KILLS = int(os.environ.get("DLCLOUD_KILLS", "3"))
SEED = os.environ.get("DLCLOUD_KILLS_SEED", "48")
LONGEST_S = {"up": 8.0, "resize": 6.0, "detach": 20.0}
"""What the commands take, about; later kills meet none."""


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(number, marks=pytest.mark.long) for number in range(1, KILLS))]
)
def test_what_a_killed_command_has_launched_is_terminated_by_the_next(user, number):
    chance, name = random.Random(f"{SEED} {number}"), f"killed-{number}"
    kind = ("up", "resize", "detach")[number % 3]
    count = "{min: 1, max: 3}" if kind == "resize" else chance.randint(1, 2)
    recipe = user.recipe(count=count, name=f"{name}.yaml")
    if kind == "resize":
        user.run("up", recipe, "--keep", "--name", name)
    words = {
        "up": ("up", recipe, "--name", name),
        "resize": ("resize", name, str(chance.randint(1, 3))),
        "detach": ("up", recipe, "--detach", "--yes", "--name", name),
    }
    after_s = chance.uniform(0, LONGEST_S[kind])
    process = user.begin(*words[kind])
    time.sleep(after_s)
    os.killpg(process.pid, signal.SIGKILL)
    output, errors = process.communicate(timeout=TIMEOUT_S)
    again = chance.choice(("down", "up", "gc")) if kind == "up" else "down"
    if again == "up":
        user.run("up", recipe, "--name", name)
    done = user.run("down", "--all", "--yes", expect=None)
    if again == "gc":
        user.run("gc", "--cloud", "local", "--region", "us-east-1", "--yes")
    case = (
        f"{kind} {after_s:.2f} {again} {process.returncode}\n{output}\n{errors}\n{done.stdout}{done.stderr}"
    )
    assert done.returncode == 0, case
    wait_until(lambda: not user.alive(), seconds=60)
    assert user.alive() == [], case
    assert user.run("status").stdout == "nothing is up\n", case
