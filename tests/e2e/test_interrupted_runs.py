"""A run whose instance is reclaimed starts again on a replacement, whatever its program is."""

import re

import pytest
from terminal import TIMEOUT_S, wait_until

RECIPE = """\
name: {name}
cloud: local
instances: {{types: [c5.xlarge, c5.2xlarge], market: spot, count: {count}}}
workload:
  command: |
    touch $HOME/started
    while [ ! -e $HOME/go ]; do sleep 0.1; done
    echo done > result.txt
  repeats: 1
  {more}
budget: {{max_hours: 1}}
"""


def begin(user, name, *, count=1, more=""):
    """Start an `up`; return its process once the command runs on every instance."""
    path = user.home / f"{name}.yaml"
    path.write_text(RECIPE.format(name=name, count=count, more=more))
    process = user.begin("up", str(path), "--name", name)
    wait_until(lambda: len(user.alive()) == count and has_started(user, name))
    return process


def has_started(user, name):
    return user.run("exec", name, "--", "test", "-e", "started", expect=None).returncode == 0


def end(user, name, process):
    """Let the command end; return what `up` printed."""
    user.run("exec", name, "--", "touch", "go")
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, out + err
    assert user.alive() == []
    return out, err


@pytest.mark.parametrize("grace", [pytest.param("0", marks=pytest.mark.long), "3"])
def test_one_instance_is_reclaimed_and_the_run_ends_on_another(user, grace):
    name = f"spot{grace}"
    process = begin(user, name)
    (first,) = user.alive()
    user.run("local", "interrupt", first, "--grace", grace)
    wait_until(lambda: first not in user.alive() and user.alive() and has_started(user, name))
    (second,) = user.alive()
    out, err = end(user, name, process)
    bill = out.partition("what the runs cost")[2]
    lost, repeated = re.findall(rf"^{name}-\w+ .* (\S+)\*$", bill, re.MULTILINE)
    assert float(lost) < 0.0005, "EC2 took it back in its first hour, which is free; its bill is final"
    assert repeated.endswith("+"), "it is up while the report is printed"
    assert "interrupted, and repeated or continued by the run below" in out
    assert f"{first} was reclaimed by EC2 (a spot interruption)" in err
    assert f"{second}  replaces {first}: the run starts again" in err
    launched = re.findall(r"(c5\S+) spot in (\S+)", err)
    assert len(set(launched)) == 2, "the pool just lost comes last"


@pytest.mark.long
def test_one_job_over_two_nodes_starts_again_on_the_node_left_and_a_replacement(user):
    process = begin(user, "nodes", count=2, more="nodes: all")
    first = set(user.alive())
    lost = min(first)
    user.run("local", "interrupt", lost, "--grace", "0")
    wait_until(lambda: lost not in user.alive() and len(user.alive()) == 2 and has_started(user, "nodes"))
    assert len(first & set(user.alive())) == 1
    end(user, "nodes", process)


@pytest.mark.long
def test_a_program_that_fails_by_itself_runs_again_only_if_the_recipe_says_so(user):
    path = user.home / "failing.yaml"
    command = "echo x >> $HOME/tries; test $(wc -l < $HOME/tries) = 3"
    text = f"""\
name: failing
cloud: local
instances: {{types: [c5.xlarge]}}
workload: {{command: "{command}", repeats: 1, retries: %s}}
"""
    path.write_text(text % 0)
    user.run("up", str(path), expect=4)
    path.write_text(text % 2)
    done = user.run("up", str(path))
    assert "it runs again (retries left: 1)" in done.stderr


def test_an_instance_that_ec2_took_back_costs_no_more_in_status(user):
    path = user.home / "taken.yaml"
    path.write_text(RECIPE.format(name="taken", count=1, more="").replace("$HOME/go", "."))
    user.run("up", str(path), "--name", "taken", "--keep")
    (taken,) = user.alive()
    user.run("local", "interrupt", taken, "--grace", "0")

    def shown():
        return user.json("status", "taken")["result"]["records"][0]

    wait_until(lambda: shown()["state"] == "terminated")
    assert shown()["ended_at"]
    assert float(shown()["usd_so_far"]) < 0.0005, "its first hour is free"
    user.run("down", "taken", "--yes")
