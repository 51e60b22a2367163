"""A cluster handed over: whenever the launcher dies, at most one controller is in charge."""

import json
import os
import signal
import subprocess
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from dlcloud.detached.handover import GIVEN_UP, OLDEST_PYTHON, RUNTIME, HandOver, job_state
from dlcloud.model.cluster import CONTROLLER_TAG, HOST_KEY_TAG, ClusterState
from dlcloud.model.errors import InstanceError, UnreachableError
from dlcloud.model.instance import Image
from dlcloud.model.job_environment import JobEnvironment
from dlcloud.planning.resize import coordinator
from dlcloud.ssh.keys import KnownHosts, fingerprint
from dlcloud.store.clusters import HAND_OVER, IN_CHARGE, Clusters
from dlcloud.store.database import Database
from tests.fakes.machine import FakeMachine
from tests.fakes.samples import recipe

ROOT = Path(__file__).parents[3]
HOST_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIA=="
ELASTIC = """\
name: sample
instances:
  types: [c7i.xlarge]
workload:
  command: python3 train.py
  files: src
  elastic: {}
"""
NOT_YET = {"in-charge": (1, b"")}


class Handing:
    """A cluster that is up, and a hand-over of it to its coordinator."""

    def __init__(self, world, folder):
        self.world = world
        (self.member,) = world.provision(ELASTIC)
        world.clock.advance(10)
        self.name = self.member.instance.instance_id
        KnownHosts(world.paths.known_hosts("c0ffee")).pin(self.name, HOST_KEY)
        self.machine = FakeMachine(self.name)
        self.machine.answers = {
            "environment.py": b'{"python": "/env/bin/python"}\n',
            "pwd": b"/home/ubuntu/dlcloud/control\n",
        }
        world.dial.machines[self.name] = self.machine
        self.folder = folder
        (folder / "src").mkdir()
        self.over = HandOver(managed=world.launcher, database=world.database)

    def go(self):
        self.over.start(
            coordinator([self.member]),
            recipe(ELASTIC),
            self.folder,
            cidrs=("203.0.113.7/32",),
            image=Image(image_id="ami-1", name="ubuntu", root_device="/dev/sda1"),
            variables={"A": "b c"},
        )

    @property
    def sent(self):
        """The clusters that the store knows which was sent."""
        path = self.folder / "sent.sqlite"
        path.write_bytes(self.machine.files["dlcloud/control/home/store.sqlite"][0])
        with closing(Database(path)) as database:
            return Clusters(database).all()

    def stands(self, state, *, in_charge):
        """Let the controller's job stand so."""
        self.machine.answers["pid ||"] = json.dumps({"state": state}).encode() if state != "new" else b""
        self.machine.failing = {} if in_charge else dict(NOT_YET)

    def cut_off(self):
        self.world.clusters.begin_intent("c0ffee", HAND_OVER, self.name, self.world.clock.now())

    @property
    def outcome(self):
        return self.world.clusters.last_hand_over("c0ffee").outcome

    def ran(self, words):
        return [command for command in self.machine.commands if words in command]


@pytest.fixture
def handing(world, tmp_path):
    return Handing(world, tmp_path)


def test_the_instance_gets_role_dlcloud_recipe_and_only_this_cluster(handing):
    handing.stands("running", in_charge=True)
    handing.go()
    cloud, files = handing.world.cloud, handing.machine.files
    assert cloud.profiles == {handing.name: "dlcloud-c0ffee"}
    assert ("sg-c0ffee", "sg-c0ffee") in cloud.rules
    (tagged,) = cloud.instances.find("c0ffee")
    assert (tagged.tags[CONTROLLER_TAG], tagged.tags[HOST_KEY_TAG]) == ("ubuntu", fingerprint(HOST_KEY))
    script, mode = files["dlcloud/control/dlcloud"]
    assert mode == 0o700
    assert b"DLCLOUD_CONTROLLER=" + handing.name.encode() in script
    assert b"A='b c'" in script
    command = files["dlcloud/runs/control/command"][0]
    assert b"control /home/ubuntu/dlcloud/control/recipe/recipe.yaml --name sample-1a2b" in command
    assert b"files: files" in files["dlcloud/control/recipe/recipe.yaml"][0]
    (sent,) = handing.sent
    assert (sent.state, sent.recipe_path) == (
        ClusterState.RUNNING,
        "/home/ubuntu/dlcloud/control/recipe/recipe.yaml",
    )
    assert handing.outcome == IN_CHARGE


def test_it_can_be_found_before_it_begins(handing):
    handing.stands("running", in_charge=True)
    handing.machine.failing = {"job.py start": (1, b"no room")}
    with pytest.raises(InstanceError):
        handing.go()
    assert CONTROLLER_TAG in handing.world.cloud.instances.find("c0ffee")[0].tags
    assert handing.outcome is None


@pytest.mark.parametrize(
    ("state", "message"), [("ended", "no credentials"), ("running", "was not in charge after 300 s")]
)
def test_a_controller_that_does_not_come_up_is_stopped_with_its_log(handing, state, message):
    handing.stands(state, in_charge=False)
    handing.machine.answers["tail"] = b"error: no credentials\n"
    with pytest.raises(InstanceError, match=message):
        handing.go()
    assert handing.ran("job.py stop")
    assert handing.outcome is None


@pytest.mark.parametrize(
    ("state", "in_charge"), [("new", False), ("ended", False), ("ended", True), ("running", True)]
)
def test_a_hand_over_cut_off_is_complete_where_a_controller_was_in_charge_and_else_given_up(
    handing, state, in_charge
):
    assert handing.over.finish() is False
    assert handing.machine.commands == [], "nothing was begun"
    handing.cut_off()
    handing.stands(state, in_charge=in_charge)
    assert handing.over.finish() is in_charge
    if in_charge:
        assert handing.world.clusters.controller_instance_id("c0ffee") == handing.name
        assert handing.over.finish() is True
    else:
        assert handing.outcome == GIVEN_UP
    if state == "new":
        assert handing.ran("rm -rf dlcloud/runs/control"), "withdrawn for good"


def test_one_whose_instance_does_not_answer_stays_open_until_it_is_gone(handing):
    handing.cut_off()
    handing.machine.gone = True
    with pytest.raises(UnreachableError):
        handing.over.finish()
    assert handing.outcome is None
    handing.world.cloud.instances.terminate([handing.name])
    assert handing.over.finish() is False
    assert handing.outcome == GIVEN_UP


def test_a_dead_controller_is_restarted_and_a_live_one_is_left_alone(handing):
    connection = handing.world.dial.dial(handing.member.instance.endpoint("ubuntu"))
    handing.stands("running", in_charge=True)
    handing.over.restart_dead(connection, JobEnvironment)
    assert not handing.ran("job.py start")
    handing.stands("lost", in_charge=True)
    handing.over.restart_dead(connection, JobEnvironment)
    assert handing.ran("rm -f dlcloud/runs/control/pid")
    assert handing.ran("job.py start")


def test_the_instance_is_given_what_the_package_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sorted(RUNTIME) == sorted(package.partition(">")[0] for package in project["dependencies"])
    assert project["requires-python"] == f">={OLDEST_PYTHON}"


def command_with(handing, folder, control):
    """Hand over; return the words of its job, with a script of the shell for the controller."""
    handing.stands("running", in_charge=True)
    handing.go()
    command = handing.machine.files["dlcloud/runs/control/command"][0].decode()
    for name, script in (("dlcloud", control), ("sleep", "")):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o700)
    return ["sh", "-c", command.replace("/home/ubuntu/dlcloud/control/dlcloud", str(folder / "dlcloud"))]


@pytest.mark.parametrize(
    ("ends", "status"), [("kill -9 $$", 0), ("kill -15 $$", 143), ("exit 4", 4), ("exit 0", 0)]
)
def test_a_controller_is_started_again_only_where_it_was_killed(handing, tmp_path, ends, status):
    control = f"[ -e {tmp_path}/begun ] && exit 0; touch {tmp_path}/begun; {ends}"
    command = command_with(handing, tmp_path, control)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert subprocess.run(command, env=environment, check=False).returncode == status


@pytest.mark.parametrize(("ends", "status"), [("exit 143", 143), ("kill -9 $$", 137)])
def test_the_job_of_a_controller_that_is_stopped_ends_after_it(handing, tmp_path, ends, status):
    control = f"trap 'sleep 0.5; touch ended; {ends}' TERM; echo begun; while :; do sleep 0.05; done"
    command = command_with(handing, tmp_path, control)
    job = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True, text=True)
    assert job.stdout.readline() == "begun\n"
    os.killpg(job.pid, signal.SIGTERM)
    assert job.wait(30) == status
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize(
    ("status", "state"), [(137, "lost"), (139, "lost"), (143, "ended"), (130, "ended"), (4, "ended")]
)
def test_a_controller_that_a_signal_has_ended_is_dead_and_one_that_was_asked_is_not(handing, status, state):
    connection = handing.world.dial.dial(handing.member.instance.endpoint("ubuntu"))
    handing.machine.answers["pid ||"] = json.dumps({"state": "ended", "exit_status": status}).encode()
    assert job_state(connection) == state
