"""`dlcloud selftest` on the local EC2."""

import signal
import time

import pytest
from terminal import TIMEOUT_S, wait_until


def test_it_proves_a_round_trip_and_leaves_nothing(user):
    result = user.json("selftest", "--cloud", "local")["result"]
    assert result["errors"] == []
    verdicts = {record["number"]: record["verdict"] for record in result["records"]}
    not_seen = {number for number, verdict in verdicts.items() if verdict == "not seen"}
    assert not_seen == {"1", "2", "4", "12", "14", "b2", "c1", "d1", "d2", "d3", "e1", "e2", "e3"}
    assert "FAILED" not in verdicts.values()
    assert user.json("status")["result"]["records"] == []


@pytest.mark.long
def test_a_refused_launch_is_reported_and_leaves_nothing(user):
    user.run("local", "capacity", "t3.micro", "1")
    done = user.run("selftest", "--cloud", "local", "--output", "json", expect=5)
    assert "dlcloud up: " in done.stdout
    assert user.json("status")["result"]["records"] == []
    assert user.json("gc", "--cloud", "local", "--dry-run")["result"]["records"] == []


def test_a_type_that_would_cost_more_is_refused(user):
    done = user.run("selftest", "--cloud", "local", "--type", "c5.18xlarge", expect=3)
    assert "the budget buys 0 minutes" in done.stderr


@pytest.mark.long
def test_one_ctrl_c_ends_what_it_launched_and_a_second_adds_a_line(user):
    user.run("local", "capacity", "t3.micro")
    process = user.begin("selftest", "--cloud", "local")
    wait_until(user.alive)
    user.control.set_latency(1.0)  # the end outlasts the signals
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    out, err = process.communicate(timeout=TIMEOUT_S)
    user.control.set_latency(0.0)
    assert process.returncode == 130, out + err
    assert (
        "terminating the instances of the self-test, a few seconds; interrupt twice more to leave them" in err
    )
    assert user.alive() == []
    assert user.run("status").stdout == "nothing is up\n"


@pytest.mark.long
def test_an_instance_whose_launcher_is_killed_ends_itself(user):
    user.run("local", "start")
    user.control.set_minute(1.0)  # 15 of them are the life of an instance
    result = user.json("selftest", "--cloud", "local", "--part", "switch")["result"]
    assert result["errors"] == []
    verdicts = {record["number"]: record for record in result["records"]}
    assert (verdicts["c1"]["verdict"], verdicts["17"]["verdict"]) == ("held", "held")
    user.control.set_minute(60.0)
    assert "after its launcher was killed" in verdicts["c1"]["evidence"]
    assert user.alive() == []
    assert user.json("status")["result"]["records"] == []


def part(user, name):
    """Return the rows of a part of the self-test, by number."""
    result = user.json("selftest", "--cloud", "local", "--part", name)["result"]
    assert result["errors"] == []
    assert user.alive() == []
    return {record["number"]: record["verdict"] for record in result["records"]}


@pytest.mark.long
def test_the_printed_policy_is_enough_and_its_role_goes(user):
    rows = part(user, "policy")
    assert (rows["d1"], rows["16"], rows["17"]) == ("held", "held", "held")
    assert user.aws("iam", "list-roles", "--path-prefix", "/dlcloud/")["Roles"] == []


@pytest.mark.long
def test_a_detached_command_outlives_its_controller(user):
    assert part(user, "detach")["d2"] == "held"


@pytest.mark.long
def test_batch_runs_two_trials(user):
    assert part(user, "batch")["d3"] == "held"


@pytest.mark.long
def test_a_rehearsal_has_no_gpu_and_says_so_of_each_row(user):
    rows = part(user, "gpu")
    assert not {"e1", "e2", "e3"} & set(rows)
    assert rows["a2"] == "held"
