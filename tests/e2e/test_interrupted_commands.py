"""Signals at random moments of `gc`, `image` and `selftest`: nothing is left that was not announced."""

import os
import random
import re
import signal
import sqlite3

import pytest
from pressing import SIGNALS, press
from terminal import TIMEOUT_S, wait_until

from dlcloud.local.site import LocalSite
from tests.fakes.control import control_of

MOMENTS = int(os.environ.get("DLCLOUD_ENDS", "3"))
SEED = int(os.environ.get("DLCLOUD_ENDS_SEED", "28"))
GC = ("gc", "--cloud", "local", "--region", "us-east-1", "--yes")


def leave_over(user, count):
    """Launch a cluster that the store then takes for ended: what `gc` removes."""
    user.run("up", user.recipe(count=count), "--keep", "--name", "left")
    with sqlite3.connect(user.home / ".dlcloud" / "store.sqlite") as store:
        store.execute("UPDATE clusters SET state = 'down' WHERE name = 'left'")
    store.close()


def images(user):
    records = user.json("image", "--list", "--cloud", "local")["result"]["records"]
    return {record["image_id"] for record in records}


def assert_announced(user, printed, *, pattern):
    """What is up is announced, and a `gc` ends it."""
    if user.alive():
        assert re.search(pattern, printed), printed
    for record in user.json("status")["result"]["records"]:
        user.run("down", record["cluster"])
    user.run(*GC)
    assert user.alive() == [], printed
    assert user.run("status").stdout == "nothing is up\n"


@pytest.mark.long
@pytest.mark.parametrize("number", range(MOMENTS))
def test_what_signals_leave_of_a_collection_is_announced(user, number):
    chance = random.Random(f"gc {SEED} {number}")
    leave_over(user, chance.randint(1, 3))
    process = user.begin(*GC)
    trigger, within_s = chance.choice((("looking in", 3.0), ("terminating", 0.5), ("removing what", 0.5)))
    printed = press(process, chance, trigger=trigger, within_s=within_s)
    assert "Traceback" not in printed
    if "terminating" in printed:  # before that nothing was removed
        assert process.returncode in {0, 130}, printed
        pattern = r"\d instance\(s\).* may be left for [0-9.]+ USD/h; dlcloud gc removes it"
        assert_announced(user, printed, pattern=pattern)
    else:
        # A second signal while it reports the first one ends it.
        assert process.returncode in {130, *(-number for number in SIGNALS)}, printed
        assert_announced(user, printed, pattern="")


@pytest.mark.long
@pytest.mark.parametrize("number", range(MOMENTS))
def test_what_signals_leave_of_an_image_is_announced(user, number):
    chance = random.Random(f"image {SEED} {number}")
    before = images(user)
    process = user.begin("image", user.recipe(), "--yes")
    moments = (("removing keys", 1.0), ("creating image", 1.0), ("is available", 0.3), ("terminating", 1.0))
    trigger, within_s = chance.choice(moments)
    printed = press(process, chance, trigger=trigger, within_s=within_s)
    assert process.returncode in {0, 130}, printed
    assert "Traceback" not in printed
    for image_id in images(user) - before:
        is_named = f"image {image_id} is available" in printed
        assert is_named or re.search("the image of .* may be left, for .*; dlcloud gc", printed), printed
    assert_announced(user, printed, pattern="may (still )?be (up|left).*; dlcloud down .* terminates it")


@pytest.mark.long
@pytest.mark.parametrize("number", range(MOMENTS))
def test_what_signals_leave_of_a_self_test_is_announced(user, number):
    chance = random.Random(f"selftest {SEED} {number}")
    process = user.begin("selftest", "--cloud", "local")
    moment = chance.uniform(0, 25)
    printed = press(process, chance, trigger="the self-test costs", within_s=moment)
    assert process.returncode in {0, 130}, printed
    assert "Traceback" not in printed
    if user.alive() and not re.search("instances of the self-test may still be up until", printed):
        # A command that it started may go on with its end without it.
        wait_until(lambda: not user.alive(), seconds=TIMEOUT_S / 10)
    assert_announced(
        user, printed, pattern="instances of the self-test may still be up until .*; dlcloud down"
    )


@pytest.fixture
def slow_control(user):
    """Let each call of the local EC2 take half a second; return its control."""
    control = control_of(LocalSite(user.home / ".dlcloud" / "local").find())
    control.reset_calls()
    yield control
    control.set_latency(0)


def test_ctrl_c_while_an_image_is_requested_leaves_no_image(user, slow_control):
    before = images(user)
    slow_control.reset_calls()
    slow_control.set_latency(0.5)
    process = user.begin("image", user.recipe(), "--yes")
    wait_until(lambda: slow_control.calls().get("CreateImage"))
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, printed
    slow_control.set_latency(0)
    assert images(user) == before, printed
    assert user.alive() == []
