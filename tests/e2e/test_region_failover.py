"""Several Regions: the plan ranks them, and `up` leaves one that has no capacity."""

import random
import re
import signal

import pytest
from pressing import press
from terminal import wait_until

RECIPE = """\
name: wide
cloud: local
region: [us-east-1, us-west-2]
instances: {types: [c7i.large], market: MARKET}
workload: {command: 'true'}
budget: {max_hours: 1}
"""


def write(user, market="on-demand"):
    (user.home / "wide.yaml").write_text(RECIPE.replace("MARKET", market))
    user.run("local", "start")


def limit(user, region, count="0"):
    user.run("local", "capacity", "c7i.large", count, "--zone", region)


def living(user, region):
    instances = user.client("ec2", region).describe_instances()["Reservations"]
    states = [one["State"]["Name"] for found in instances for one in found["Instances"]]
    return [state for state in states if state != "terminated"]


def groups(user, region):
    listed = user.client("ec2", region).describe_security_groups()["SecurityGroups"]
    return [group["GroupName"] for group in listed if group["GroupName"] != "default"]


def test_up_leaves_a_region_without_capacity_and_every_command_knows_where_it_is(newcomer):
    write(newcomer)
    plan = newcomer.json("plan", "wide.yaml")["result"]
    assert [offer["region"] for offer in plan["regions"]] == ["us-east-1", "us-west-2"]
    assert plan["plan"]["region"] == "us-east-1"
    checks = newcomer.json("doctor", "wide.yaml", "--cloud", "local")["result"]["records"]
    assert {row["region"] for row in checks if "USD/h" in row["detail"]} == {"us-east-1", "us-west-2"}
    limit(newcomer, "us-east-1")
    printed = newcomer.run("up", "wide.yaml", "--keep", "--name", "wide").stderr
    assert "us-east-1 gives no instances: trying us-west-2" in printed
    assert (living(newcomer, "us-east-1"), groups(newcomer, "us-east-1")) == ([], [])
    assert living(newcomer, "us-west-2") == ["running"]
    assert "wide: ready, local us-west-2" in newcomer.run("status").stdout
    assert newcomer.run("exec", "wide", "--", "echo", "here").stdout.split()[-1] == "here"
    # The kept cluster is used again where it is, although the first region has capacity now.
    limit(newcomer, "us-east-1", "5")
    newcomer.run("up", "wide.yaml", "--name", "wide")
    assert (len(living(newcomer, "us-east-1")), len(living(newcomer, "us-west-2"))) == (0, 1)
    newcomer.run("resize", "wide", "2")
    assert len(living(newcomer, "us-west-2")) == 2
    newcomer.run("down", "wide")
    for region in ("us-east-1", "us-west-2"):
        assert (living(newcomer, region), groups(newcomer, region)) == ([], [])


def test_a_region_whose_dry_run_is_refused_is_left_out_on_the_way(newcomer):
    write(newcomer)
    recipe = newcomer.home / "wide.yaml"
    recipe.write_text(recipe.read_text().replace("us-west-2]", "us-west-2, eu-west-1]"))
    newcomer.run("up", "wide.yaml", "--dry-run")
    asked = newcomer.control.calls()
    assert asked["CreateSecurityGroup (dry run)"] == 1, "EC2 is asked in the first region only"
    assert asked["GetParameters"] == 3
    newcomer.run("plan", "wide.yaml")
    assert newcomer.control.calls()["GetParameters"] == 3, "the newest image is asked for once a day"
    limit(newcomer, "us-east-1")
    # The first call makes the group in us-east-1, the second is the dry run in us-west-2.
    newcomer.control.add_fault("CreateSecurityGroup", "InvalidParameterValue", times=1, skip=1)
    printed = newcomer.run("up", "wide.yaml").stderr
    assert "us-east-1 gives no instances: trying us-west-2" in printed
    assert "us-west-2 is left out: " in printed
    assert "us-east-1 gives no instances: trying eu-west-1" in printed
    assert newcomer.store("SELECT region FROM runs") == [("eu-west-1",)]
    for region in ("us-east-1", "us-west-2", "eu-west-1"):
        assert (living(newcomer, region), groups(newcomer, region)) == ([], [])


def test_no_region_has_capacity_and_nothing_is_left(newcomer):
    write(newcomer, "spot")
    newcomer.run("local", "capacity", "c7i.large", "0")
    failed = newcomer.run("up", "wide.yaml", expect=3)
    assert "us-east-1 gives no instances: trying us-west-2" in failed.stderr
    for region in ("us-east-1", "us-west-2"):
        assert (living(newcomer, region), groups(newcomer, region)) == ([], [])
    assert newcomer.run("status").stdout == "nothing is up\n"


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.long)])
def test_an_up_that_is_killed_on_its_way_to_another_region_leaves_nothing(newcomer, kills):
    write(newcomer)
    limit(newcomer, "us-east-1")
    chance = random.Random("regions 49")
    for _ in range(kills):
        process = newcomer.begin("up", "wide.yaml")
        printed = press(process, chance, trigger="launching", within_s=2.5, signals=[signal.SIGKILL])
        assert "Traceback" not in printed
        done = newcomer.run("up", "wide.yaml")
        assert re.search(r"is down|left unfinished", done.stderr)
        for region in ("us-east-1", "us-west-2"):
            assert (living(newcomer, region), groups(newcomer, region)) == ([], [])
    assert newcomer.run("status").stdout == "nothing is up\n"


@pytest.mark.long
def test_bench_measures_a_type_once_in_the_cheapest_region_that_has_capacity(newcomer):
    write(newcomer)
    limit(newcomer, "us-east-1")
    planned = newcomer.json("bench", "wide.yaml", "--dry-run")["result"]["records"]
    assert [(row["instance_type"], row["region"]) for row in planned] == [("c7i.large", "us-east-1")]
    done = newcomer.run("bench", "wide.yaml", "--yes", "--output", "json")
    assert "us-east-1 gives no instances: trying us-west-2" in done.stderr
    assert newcomer.store("SELECT region FROM runs") == [("us-west-2",)]
    for region in ("us-east-1", "us-west-2"):
        assert (living(newcomer, region), groups(newcomer, region)) == ([], [])


@pytest.mark.long
def test_a_detached_command_leaves_a_region_without_capacity(newcomer):
    write(newcomer)
    limit(newcomer, "us-east-1")
    begun = newcomer.run("up", "wide.yaml", "--detach", "--name", "wide")
    assert "us-east-1 gives no instances: trying us-west-2" in begun.stderr
    assert (living(newcomer, "us-east-1"), groups(newcomer, "us-east-1")) == ([], [])
    assert "wide" in newcomer.run("status").stdout
    wait_until(lambda: newcomer.json("status", "wide")["result"]["records"][0]["cluster_state"] == "ready")
    newcomer.run("down", "wide")
    assert newcomer.store("SELECT region, state FROM runs") == [("us-west-2", "done")]
    for region in ("us-east-1", "us-west-2"):
        assert (living(newcomer, region), groups(newcomer, region)) == ([], [])
