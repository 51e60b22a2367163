"""Signals at random moments of ends, on the local EC2: nothing is left up that was not announced."""

import os
import random
import re
import signal
import time

import pytest
from pressing import press, read_until
from terminal import TIMEOUT_S

from dlcloud.local.site import LocalSite
from tests.fakes.control import control_of

MOMENTS = int(os.environ.get("DLCLOUD_ENDS", "6"))
SEED = int(os.environ.get("DLCLOUD_ENDS_SEED", "28"))
TYPES = ("--instance", "c5.xlarge", "--instance", "c5.2xlarge")
KINDS = ("success", "failure", "down", "success", "failure", "bench", "resize")
LEFT = "{name}: .* may (still )?be (up|left).*; dlcloud (down|resize) {name}.* terminates it"


def begin(user, kind):
    """Start a command of one kind; return its process, and the exit status that no signal changes."""
    if kind == "success":
        return user.begin("up", user.recipe()), 0
    if kind == "failure":
        return user.begin("up", user.recipe("exit 3")), 4
    if kind == "bench":
        return user.begin("bench", "--recipe", user.recipe(), *TYPES, "--yes"), 0
    user.run("up", user.recipe(count=2), "--keep", "--name", "kept")
    return (user.begin("down", "kept") if kind == "down" else user.begin("resize", "kept", "1", "--yes")), 0


def assert_all_is_announced(user, printed):
    """Every cluster that is left is named with its price and the command that ends it."""
    names = {record["cluster"] for record in user.json("status")["result"]["records"]}
    for name in names:
        kept = f"{name} is kept up"
        pattern = LEFT.format(name=re.escape(name))
        assert kept in printed or re.search(pattern, printed), f"{name} is left\n{printed}"
        user.run("down", name)
    assert user.alive() == [], printed
    assert user.run("status").stdout == "nothing is up\n"


@pytest.mark.parametrize(
    "number", [*range(3), *(pytest.param(number, marks=pytest.mark.long) for number in range(3, MOMENTS))]
)
def test_what_signals_leave_of_an_end_is_announced(user, number):
    chance = random.Random(f"{SEED} {number}")
    kind = KINDS[number % len(KINDS)]
    process, status = begin(user, kind)
    is_late = kind in {"down", "resize"} or chance.random() < 0.6
    trigger = "terminating|ending" if is_late else "running command"
    if kind == "resize":
        trigger = "."
    printed = press(process, chance, trigger=trigger, within_s=1.0 if is_late else 3.0)
    assert process.returncode in {status, 130}, f"{kind}: {process.returncode}\n{printed}"
    assert "Traceback" not in printed
    if kind == "resize":
        user.run("down", "kept", expect=None)
    assert_all_is_announced(user, printed)


@pytest.fixture
def control(user):
    control = control_of(LocalSite(user.home / ".dlcloud" / "local").find())
    yield control
    control.clear_faults()


@pytest.fixture
def stop_ec2(user):
    """Stop the process of the local EC2, so that calls hang; return what lets it go on."""
    process_id = int((user.home / ".dlcloud" / "local" / "daemon.lock").read_text())

    def stop():
        os.kill(process_id, signal.SIGSTOP)
        return lambda: os.kill(process_id, signal.SIGCONT)

    yield stop
    os.kill(process_id, signal.SIGCONT)


@pytest.mark.parametrize("command", ["echo images/sec: 5", pytest.param("exit 3", marks=pytest.mark.long)])
def test_an_end_that_hangs_is_left_by_a_third_ctrl_c_after_the_message(user, control, stop_ec2, command):
    control.add_fault("TerminateInstances", "", status=0)
    process = user.begin("up", "--name", "hung", user.recipe(command, count=2))
    read_until(process, "terminating the instances of hung")
    go_on = stop_ec2()
    process.send_signal(signal.SIGTERM)
    ending = r"terminating 2 instances of hung, a few seconds; {} "
    leaving = r"to leave them until they terminate themselves at [-0-9 ]*[0-9:]+ UTC, [0-9.]+ USD at most"
    for times in ("press Ctrl-C three times", "interrupt twice more", "interrupt again"):
        line = read_until(process, "terminating 2 instances")
        assert re.search(ending.format(times) + leaving, line), line
        time.sleep(1.2)
        process.send_signal(signal.SIGINT)
    left = read_until(process, "may still be up")
    assert re.search(r"hung: 2 instance\(s\) may still be up for .* USD/h until .*; dlcloud down hung", left)
    process.send_signal(signal.SIGINT)
    printed = process.stderr.read()
    assert "ending" not in printed
    assert "may still" not in printed
    process.stdout.read()
    assert process.wait(TIMEOUT_S) == (4 if command == "exit 3" else 130)
    go_on()
    assert len(user.alive()) == 2
    control.clear_faults()
    user.run("down", "hung")
    assert user.alive() == []


def test_one_ctrl_c_while_up_terminates_changes_nothing_but_a_line(user, control):
    control.add_fault("TerminateInstances", "InternalError", status=500, times=2)
    process = user.begin("up", user.recipe("exit 3"))
    read_until(process, "terminating the instances of")
    process.send_signal(signal.SIGINT)
    printed = process.stderr.read()
    process.stdout.read()
    assert process.wait(TIMEOUT_S) == 4
    assert "terminating 1 instance of quick" in printed
    assert "is down" in printed
    assert user.alive() == []
