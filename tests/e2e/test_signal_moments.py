"""One signal at a random moment of a command, from its first instruction on: 130, one line, nothing left."""

import os
import random
import signal
import time

import pytest
from terminal import TIMEOUT_S, await_handlers

MOMENTS = int(os.environ.get("DLCLOUD_MOMENTS", "6"))
SEED = os.environ.get("DLCLOUD_MOMENTS_SEED", "48")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LONGEST_S = {"status": 1.5, "exec": 1.5, "up": 8.0}
"""What the commands take, about; later signals meet none."""


@pytest.fixture(scope="module")
def kept(user):
    """Return the instances of a cluster that stays up, for `exec` and `status`."""
    user.run("up", user.recipe(), "--keep", "--name", "stays")
    yield user.alive()
    user.run("down", "stays")


@pytest.mark.parametrize("number", range(MOMENTS))
def test_a_signal_ends_a_command_with_one_line_and_leaves_nothing(user, kept, number):
    chance = random.Random(f"{SEED} {number}")
    command, sent = ("up", "status", "exec")[number % 3], SIGNALS[number // 3 % 3]
    # A third of the moments lies in the first tenth of a second.
    after_s = chance.uniform(0, chance.choice((0.1, LONGEST_S[command], LONGEST_S[command])))
    arguments = {
        "up": ["up", user.recipe(name="moment.yaml"), "--name", f"moment-{number}"],
        "status": ["status"],
        "exec": ["exec", "stays", "sleep", "0.3"],
    }
    process = user.begin(*arguments[command])
    await_handlers(process)
    time.sleep(after_s)
    process.send_signal(sent)
    output, errors = process.communicate(timeout=TIMEOUT_S)
    case = f"{command} {sent.name} {after_s:.4f} {process.returncode}\n{output}\n{errors}"
    assert "Traceback" not in output + errors, case
    assert process.returncode in {0, 130}, case
    if process.returncode == 130:
        lines = [line for line in errors.splitlines() if line]  # click leaves the line of ^C first
        assert lines.count("interrupted") == 1, case
        assert command == "up" or lines == ["interrupted"], case
    assert user.alive() == kept, case
