"""A detached training whose coordinator is lost, with no launcher anywhere: another instance goes on."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import User, wait_until

from dlcloud.elastic.agents import PACKAGE
from tests.environments import python_with

pytestmark = pytest.mark.skipif(
    "DLCLOUD_SUCCESSION" not in os.environ, reason="minutes: set DLCLOUD_SUCCESSION=1"
)
NAME = "orphans"
STEPS = 40 * 15
RECIPE = """\
name: orphaned
cloud: local
instances:
  types: [c7i.xlarge, c6i.xlarge]
  count: {min: 1, max: 3}
  market: spot
  on_demand_base: 1
workload:
  command: python3 -m trainer.examples.digits --epochs 40 --delay-ms 150 --save model.pt
  elastic: {checkpoint_seconds: 10, leave_seconds: 4}
keep:
  files: ['*.pt']
"""


@pytest.fixture
def left(user: User) -> Iterator[User]:
    (user.home / "orphans.yaml").write_text(RECIPE)
    python_with(PACKAGE / "requirements" / "elastic.txt")
    user.run("up", str(user.home / "orphans.yaml"), "--detach", "--name", NAME)
    yield user
    user.run("down", NAME, "--yes", expect=None)


def controllers(user: User) -> list[str]:
    filters = "Name=tag-key,Values=dlcloud:controller", "Name=instance-state-name,Values=running,pending"
    found = user.aws("ec2", "describe-instances", "--filters", *filters)["Reservations"]
    return [instance["InstanceId"] for group in found for instance in group["Instances"]]


def standbys(user: User) -> list[Path]:
    """Return the programs of the instances that are ready to take over, the coordinator's own included."""
    return list((user.home / ".dlcloud" / "local").glob("instances/*/home/dlcloud/control/stand-by"))


def processes_of(instance_id: str, word: str = "") -> list[int]:
    """Return the processes of an instance whose command has a word in it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes()
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if b"DLCLOUD_ROOT=" in environment and instance_id.encode() in environment and word in line:
            found.append(int(entry.name))
    return found


def goes_on(user: User) -> None:
    before = steps(user)
    wait_until(lambda: steps(user) > before)


def steps(user: User) -> int:
    time.sleep(1)
    answer = user.run("training", NAME, "--output", "json", expect=None).stdout
    records = json.loads(answer or "{}").get("result", {}).get("records", [{}])
    return int(records[0].get("steps", 0)) if records else 0


@pytest.mark.long
def test_a_lost_coordinator_is_replaced_by_an_instance_that_stands_by(left: User):
    (first,) = controllers(left)
    wait_until(lambda: len(standbys(left)) >= 3)
    wait_until(lambda: steps(left) > 0)
    left.aws("ec2", "terminate-instances", "--instance-ids", first)
    wait_until(lambda: controllers(left) not in ([], [first]))
    (second,) = controllers(left)
    goes_on(left)
    for process in (killed := processes_of(second, "recipe.yaml --name")):
        os.kill(process, signal.SIGKILL)
    wait_until(lambda: set(processes_of(second, "recipe.yaml --name")) - set(killed))
    goes_on(left)
    wait_until(lambda: len(standbys(left)) >= 3)
    for process in processes_of(second):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    wait_until(lambda: controllers(left) not in ([], [second]))
    (third,) = controllers(left)
    goes_on(left)
    wait_until(lambda: left.json("status", NAME)["result"]["records"][0]["cluster_state"] == "ready")
    assert controllers(left) == [third]
    down = left.json("down", NAME)["result"]
    (training,) = down["trainings"][0]["records"]
    assert training["steps"] == STEPS
    recorded = [
        json.loads(line)["step"]
        for path in (left.home / ".dlcloud" / "runs").glob("*/records.jsonl")
        for line in path.read_text().splitlines()
        if '"record":"step"' in line
    ]
    assert set(recorded) == set(range(1, STEPS + 1)), "the record has no hole"
    assert list((left.home / ".dlcloud" / "runs").glob("*/files/model.pt"))
    assert left.alive() == []
