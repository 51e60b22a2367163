"""Commands from other shells while an `up` runs, and what other programs see."""

import json
import subprocess

import pytest
from terminal import TIMEOUT_S, wait_until

from tests.needs import needs

LONG = "for i in 1 2 3 4 5 6; do echo tick $i; sleep 0.5; done; echo images/sec: 5"


@pytest.fixture(scope="module")
def running(user):
    """A cluster of two whose workload goes on for a while, and is kept."""
    process = user.begin("up", user.recipe(LONG, count=2), "--keep", "--name", "busy")
    wait_until(lambda: len(user.json("status")["result"]["records"]) == 2 and _started(user))
    yield process
    process.communicate(timeout=TIMEOUT_S)
    user.run("down", "--all")


def _started(user) -> bool:
    return user.run("logs", "busy", expect=None).returncode == 0


def test_status_logs_exec_ssh_and_cost_report_at_once(user, running):
    assert running.poll() is None
    commands = [
        ("status",),
        ("exec", "busy", "echo here"),
        ("cost-report",),
        ("ssh", "busy"),
        ("logs", "busy", "--follow"),
    ]
    processes = [user.begin(*command, "--output", "json") for command in commands]
    documents = []
    for command, process in zip(commands, processes, strict=True):
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, f"{command}: {out}{err}"
        documents.append(json.loads(out))
    status, answered, _, shell, log = (document["result"] for document in documents)
    assert {record["state"] for record in status["records"]} == {"running"}
    assert [record["stdout"] for record in answered["records"]] == ["here\n", "here\n"]
    assert "HostKeyAlias=" in " ".join(shell["command"])
    assert "tick 6" in log["log"]


@pytest.mark.usefixtures("running")
def test_the_aws_command_line_sees_what_status_shows(user):
    shown = {record["instance_id"]: record for record in user.json("status")["result"]["records"]}
    answered = user.aws("ec2", "describe-instances")
    listed = [instance for reservation in answered["Reservations"] for instance in reservation["Instances"]]
    assert {instance["InstanceId"] for instance in listed} == set(shown)
    for instance in listed:
        assert instance["PublicIpAddress"] == shown[instance["InstanceId"]]["host"]
        assert instance["MetadataOptions"]["HttpTokens"] == "required"
        tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
        assert tags["dlcloud:managed"] == "true"


@needs("ssh")
@pytest.mark.usefixtures("running")
def test_ssh_reaches_the_instance_through_the_proven_host_key(user):
    command = user.json("ssh", "busy")["result"]["command"]
    done = subprocess.run(
        [*command, "echo through"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.stdout == "through\n", done.stderr


def test_an_up_in_charge_cannot_be_disturbed_by_down(user, running):
    if running.poll() is None:
        done = user.run("down", "busy", expect=1)
        assert "in charge of busy" in done.stderr


@pytest.mark.long
def test_exec_names_which_instance_failed(user, running):
    running.wait(timeout=TIMEOUT_S)
    done = user.run("exec", "busy", "test $(id -u) -lt 0", expect=4)
    assert "2 of 2" in done.stderr
    first = user.json("status")["result"]["records"][0]["instance_id"]
    done = user.run("exec", "busy", "--", "sh", "-c", f"case $HOME in *{first}*) exit 3;; esac", expect=5)
    assert first in done.stderr
    user.run("exec", "-i", "1", "--", "exit 7", expect=7)


def test_exec_prints_much_output_whole(user, running):
    running.wait(timeout=TIMEOUT_S)
    one, other = (record["instance_id"] for record in user.json("status")["result"]["records"])
    lines = [f"{number}" for number in range(1, 200_001)]
    assert user.run("exec", "busy", "-i", "1", "seq 200000").stdout.splitlines() == lines
    done = user.run("exec", "busy", "seq 200000; printf out; printf error >&2")
    whole = [f"{name}: {line}" for name in (one, other) for line in [*lines, "out"]]
    assert done.stdout.splitlines() == whole
    assert done.stderr.splitlines()[-2:] == [f"{one}: error", f"{other}: error"]
