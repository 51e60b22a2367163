"""Instances that stand by: which do, what they get, when one takes over, and how, interrupted anywhere."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from dlcloud.detached.handover import HandOver
from dlcloud.detached.standby import (
    TAKEN,
    WATCH_S,
    StandbyPreparer,
    Succession,
    choose_watchers,
    wait_until_lost,
)
from dlcloud.model.cluster import CONTROLLER_TAG, HOST_KEY_TAG, Member
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import Market
from dlcloud.ssh.keys import KnownHosts, fingerprint
from dlcloud.store.clusters import SUCCESSION, Clusters
from dlcloud.store.database import Database
from tests.fakes.cloud import Failure, Killed
from tests.fakes.machine import FakeMachine
from tests.fakes.samples import instance, recipe
from tests.fakes.training import wait_until

ROOT = Path(__file__).parents[3]
HOST_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIA=="
ELASTIC = """\
name: sample
instances:
  types: [c7i.xlarge]
  count: 3
workload:
  command: python3 train.py
  elastic: {}
"""


class Trio:
    """A cluster of three, of which the first controls it, and the second stands by."""

    def __init__(self, world, folder):
        self.world, self.folder = world, folder
        members = world.provision(ELASTIC)
        world.clock.advance(10)
        self.members = members
        self.first, self.second, self.third = (m.instance.instance_id for m in members)
        for name in (self.first, self.second, self.third):
            KnownHosts(world.paths.known_hosts("c0ffee")).pin(name, HOST_KEY)
        world.cloud.instances.put_tags([self.first], {CONTROLLER_TAG: "ubuntu"})
        world.cloud.roles.put_control("c0ffee", world.launcher.cluster.tags)
        self.over = HandOver(managed=world.launcher, database=world.database)
        self.control = folder / "dlcloud" / "control"
        self.control.mkdir(parents=True)
        shutil.copy(ROOT / "templates" / "job.py", folder / "dlcloud" / "job.py")
        job = folder / "dlcloud" / "runs" / "control"
        job.mkdir(parents=True)
        (job / "command").write_text(f"echo ran >> {folder}/ran")

    def take_over(self, own=None):
        return Succession(hand_over=self.over, own=own or self.second, control=self.control).take_over()

    def controllers(self):
        instances = self.world.cloud.instances.find("c0ffee")
        return {one.instance_id for one in instances if CONTROLLER_TAG in one.tags and one.alive}

    def wait_for_controller(self):
        wait_until((self.folder / "ran").exists, "the controller", 60)


@pytest.fixture
def trio(world, tmp_path):
    return Trio(world, tmp_path)


def test_a_standby_gets_role_dlcloud_home_and_last_the_program(trio):
    machine = FakeMachine(trio.second)
    machine.answers = {
        "environment.py": b'{"python": "/env/bin/python"}\n',
        "pwd": b"/home/ubuntu/dlcloud/control\n",
    }
    trio.world.dial.machines[trio.second] = machine
    preparer = StandbyPreparer(
        hand_over=trio.over, recipe=recipe(ELASTIC), recipe_folder=trio.folder, cidrs=(), variables={"A": "b"}
    )
    preparer.prepare(trio.members[1], 1)
    assert trio.world.cloud.profiles[trio.second] == "dlcloud-c0ffee"
    script, mode = machine.files["dlcloud/control/stand-by"]
    assert mode == 0o700
    assert script.endswith(b"sleep 20\nexec /home/ubuntu/dlcloud/control/dlcloud take-over c0ffee\n")
    assert b"DLCLOUD_CONTROLLER=" + trio.second.encode() in machine.files["dlcloud/control/dlcloud"][0]
    path = trio.folder / "sent.sqlite"
    path.write_bytes(machine.files["dlcloud/control/home.new/store.sqlite"][0])
    with closing(Database(path)) as database:
        assert len(Clusters(database).members("c0ffee")) == 3
    swaps = [command for command in machine.commands if "home.new dlcloud/control/home" in command]
    assert len(swaps) == 1
    assert swaps[0].startswith("test -e dlcloud/control/taken || "), "what has taken over keeps its home"
    preparer.prepare(trio.members[1], 0)
    assert len([c for c in machine.commands if "environment.py" in c and "send" not in c]) >= 1
    assert machine.files["dlcloud/control/stand-by"][0].startswith(b"#!/bin/sh\nsleep 0\n")


def test_the_coordinator_is_ended_before_the_controller_begins(trio):
    assert trio.take_over()
    trio.wait_for_controller()
    assert trio.first not in trio.world.cloud.alive()
    assert trio.controllers() == {trio.second}
    (tagged,) = [i for i in trio.world.cloud.instances.find("c0ffee") if i.instance_id == trio.second]
    assert tagged.tags[HOST_KEY_TAG] == fingerprint(HOST_KEY)
    assert [i.detail for i in trio.world.clusters.intents("c0ffee", SUCCESSION)] == ["1"]
    assert (trio.control / TAKEN).exists()


def test_the_second_to_ask_is_refused(trio):
    assert trio.take_over()
    assert not trio.take_over(trio.third)
    assert not trio.take_over(trio.first)
    assert trio.controllers() == {trio.second}


@pytest.mark.parametrize("method", ["claims.claim", "instances.terminate", "instances.put_tags"])
@pytest.mark.parametrize("after", [True, False])
def test_a_take_over_that_is_killed_anywhere_is_continued(trio, method, after):
    number = trio.world.cloud.calls[method] + 1
    trio.world.cloud.failures = [Failure(method, Killed(), number, after=after)]
    with pytest.raises(Killed):
        trio.take_over()
    assert not (trio.folder / "ran").exists()
    assert trio.take_over()
    trio.wait_for_controller()
    assert trio.controllers() == {trio.second}
    assert len(trio.world.clusters.intents("c0ffee", SUCCESSION)) == 1


def test_nothing_begins_while_ec2_does_not_end_the_coordinator(trio):
    number = trio.world.cloud.calls["instances.terminate"] + 1
    trio.world.cloud.failures = [Failure("instances.terminate", CloudError("no answer"), number)]
    with pytest.raises(CloudError, match="no answer"):
        trio.take_over()
    assert not (trio.folder / "ran").exists()
    assert trio.second not in trio.controllers()


def test_the_coordinators_own_controller_is_only_started_again(trio):
    assert trio.take_over(trio.first)
    trio.wait_for_controller()
    assert trio.first in trio.world.cloud.alive()
    assert trio.world.clusters.intents("c0ffee", SUCCESSION) == []


def member(name, market=Market.ON_DEMAND):
    return Member(instance=instance(name, market=market))


def test_on_demand_instances_stand_by_first_and_earlier_ones_go_on():
    members = [member("i-1"), member("i-2", Market.SPOT), member("i-3"), member("i-4")]
    assert [m.instance.instance_id for m in choose_watchers(members, "i-1", set())] == ["i-3", "i-4"]
    assert [m.instance.instance_id for m in choose_watchers(members, "i-1", {"i-2"})] == ["i-2", "i-3"]


def test_an_instance_waits_while_one_controls_or_ec2_does_not_say(trio, caplog):
    clock, instances = trio.world.clock, trio.world.cloud.instances
    refused = Failure("instances.find", CloudError("no answer"), trio.world.cloud.calls["instances.find"] + 2)
    trio.world.cloud.failures = [refused]
    sleep, begun = clock.sleep, clock.monotonic()

    def sleep_until_the_third_time(seconds):
        sleep(seconds)
        if clock.monotonic() - begun == 3 * WATCH_S:
            instances.terminate([trio.first])

    clock.sleep = sleep_until_the_third_time
    wait_until_lost(trio.world.launcher, trio.second)
    assert clock.monotonic() - begun == 3 * WATCH_S
    assert "EC2 does not say" in caplog.text
