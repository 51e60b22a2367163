"""Boots on the local EC2: slow ones, and those that never end."""

import socket

from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.local.ec2.instances import ec2_boot_s
from dlcloud.model.instance import boot_timeout_s
from tests.fakes.local_ec2 import wait_for


def port_is_open(rig, instance_id):
    entry = rig.entry(instance_id)
    with socket.socket() as client:
        return client.connect_ex((entry["host"], entry["ssh_port"])) == 0


def test_a_metal_type_runs_long_before_ssh_answers(rig):
    rig.control.set_boot_scale(0.001)
    usual, metal = rig.run()[0], rig.run(InstanceType="c7i.metal-24xl")[0]
    rig.control.set_boot_scale(1)
    slow = rig.run(InstanceType="c7i.metal-24xl")[0]
    rig.control.set_boot_scale(0)
    rig.await_state(slow, "running")
    wait_for(lambda: port_is_open(rig, usual) and port_is_open(rig, metal), "both answer")
    assert not port_is_open(rig, slow)
    rig.ec2.terminate_instances(InstanceIds=[usual, metal, slow])
    rig.await_state(slow, "terminated")


def test_the_time_to_boot_covers_the_slowest_boot_of_every_type():
    for hardware in Catalog():
        assert boot_timeout_s(hardware.name) > 1.3 * ec2_boot_s(hardware.name)


def test_boots_fail_on_demand(rig):
    rig.control.fail_boots("no-key")
    refused = rig.await_state(rig.run()[0], "terminated")
    assert refused["StateReason"]["Code"] == "Client.InternalError"
    rig.control.fail_boots("ends")
    rig.control.fail_boots("silent")
    ended, silent, usual = rig.run(3)
    shown = rig.await_state(ended, "terminated")
    assert shown["StateReason"]["Message"].startswith("Server.InternalError")
    rig.await_state(silent, "running")
    wait_for(lambda: port_is_open(rig, usual), "it answers")
    assert not port_is_open(rig, silent)
    rig.ec2.terminate_instances(InstanceIds=[silent, usual])
    rig.await_state(silent, "terminated")
