"""`dlcloud bench`: several types at once, one refused, failing or interrupted."""

import signal

import pytest
from terminal import TIMEOUT_S, wait_until

TYPES = ("-i", "c5.xlarge", "-i", "c7i.xlarge")


@pytest.mark.long
def test_a_type_without_capacity_stops_no_other_and_is_completed_later(user):
    recipe = user.recipe(name="own.yaml")
    user.run("local", "capacity", "c5.xlarge", "0")
    try:
        done = user.run("bench", *TYPES, "--recipe", recipe, expect=5)
    finally:
        user.run("local", "capacity", "c5.xlarge")
    assert "c5.xlarge was refused" in done.stderr
    assert "c7i.xlarge" in done.stdout
    assert user.alive() == []
    resumed = "resuming an earlier bench"
    assert resumed in user.run("bench", *TYPES, "--recipe", recipe, "--dry-run").stderr
    again = user.json("bench", *TYPES, "--recipe", recipe)
    rows = again["result"]["records"]
    assert sorted(row["instance_type"] for row in rows) == ["c5.xlarge", "c7i.xlarge"]
    dry = user.run("bench", *TYPES, "--recipe", recipe, "--dry-run")
    assert resumed not in dry.stderr
    plan = dry.stdout
    assert plan.count("0.17") >= 2
    assert all(len(line) <= 80 for line in plan.splitlines()), plan


def test_no_type_and_a_program_failing_everywhere_have_own_exit_codes(user):
    user.run("bench", "-i", "p9.xlarge", "--recipe", user.recipe(), expect=3)
    failing = user.recipe("echo something broke; exit 7", name="failing.yaml")
    done = user.run("bench", "-i", "c5.xlarge", "--recipe", failing, expect=4)
    assert "something broke" in done.stderr
    assert user.alive() == []
    for words in (("-i", "c5"), ("-i", "c5.xlarge", "-b", "nothing"), ()):
        user.run("bench", *words, "--cloud", "local", expect=2)


def test_ctrl_c_ends_every_instance_and_a_kill_is_made_up_for_by_the_next(user):
    recipe = user.recipe("sleep 3; echo images/sec: 5", name="slow.yaml")
    for number in (signal.SIGINT, signal.SIGKILL):
        process = user.begin("bench", *TYPES, "--recipe", recipe)
        wait_until(user.alive)  # one at a time: the machine is one
        process.send_signal(number)
        _, output = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == (130 if number is signal.SIGINT else -9), output
        assert user.alive() == [] or number is signal.SIGKILL
    left = set(user.alive())
    rows = user.json("bench", *TYPES, "--recipe", recipe)["result"]["records"]
    assert sorted(row["instance_type"] for row in rows) == ["c5.xlarge", "c7i.xlarge"]
    assert len(left) == 1
    assert user.alive() == []
    assert user.run("status").stdout == "nothing is up\n"
