"""The habits of a first boot on EC2 that the local EC2 has: their order, users, locks and timers."""

import contextlib
import shlex
import socket

import paramiko
import pytest

from dlcloud.app.context import SystemClock
from dlcloud.model.errors import InstanceError
from dlcloud.model.remote import Endpoint
from dlcloud.resources.texts import template, user_data
from dlcloud.ssh.dial import Dialer
from dlcloud.ssh.keys import create_key, new_secret, public_key
from tests.fakes.local_ec2 import WAIT_S, wait_for

AMAZON_LINUX = "ami-0d1c10cd000002023"
DEBIAN = "ami-0d1c10cd000001204"
PER_BOOT = """write_files:
  - path: /var/lib/cloud/scripts/per-boot/b
    permissions: "0755"
    content: |
      #!/bin/sh
      echo b >>order
  - {path: /var/lib/cloud/scripts/per-boot/a, permissions: "0755", content: "#!/bin/sh\\necho a >>order\\n"}
  - {path: /var/lib/cloud/scripts/per-boot/not-executable, content: "#!/bin/sh\\necho c >>order\\n"}
runcmd:
  - echo runcmd >>order
"""


def test_per_boot_scripts_run_before_runcmd(rig):
    instance = rig.up(UserData=rig.user_data(PER_BOOT))
    rig.on(instance, "cloud-init status --wait")
    assert rig.on(instance, "cat order")[1].split() == ["a", "b", "runcmd"]


def refuses_logins(rig, instance, user="ubuntu"):
    try:
        with rig.ssh(instance, user):
            pass
    except paramiko.AuthenticationException:
        return True
    return False


def test_logins_are_refused_in_the_last_five_minutes_before_a_shutdown(rig):
    rig.control.set_minute(30.0)
    instance = rig.up(InstanceInitiatedShutdownBehavior="terminate")
    rig.on(instance, "sudo shutdown -P +10000")
    assert not refuses_logins(rig, instance)
    with rig.ssh(instance) as open_session:
        command = "sudo shutdown -P +5; sudo shutdown -P +10000"
        open_session.exec_command(command)[1].channel.recv_exit_status()
        # Another time does not let users in again; a cancel does.
        wait_for(lambda: refuses_logins(rig, instance), "logins are refused")
        assert not refuses_logins(rig, instance, user="root")
        open_session.exec_command("sudo shutdown -c")[1].channel.recv_exit_status()
    assert not refuses_logins(rig, instance)


@pytest.mark.parametrize(
    ("image", "user"),
    [({}, "ubuntu"), ({"ImageId": AMAZON_LINUX}, "ec2-user"), ({"ImageId": DEBIAN}, "admin")],
)
def test_an_image_has_one_user_and_root_names_it(rig, image, user):
    instance = rig.up(**image)
    assert rig.on(instance, "echo $USER", user=user)[1] == f"{user}\n"
    assert refuses_logins(rig, instance, user="debian")
    with rig.ssh(instance, "root") as client:
        line = client.exec_command("id")[1].readline()
    assert line == f'Please login as the user "{user}" rather than the user "root".\n'


def test_a_recipes_wrong_user_is_refused_with_the_images_own(rig, tmp_path):
    create_key(tmp_path / "key")
    instance = rig.up(UserData=rig.user_data(f"  - {public_key(tmp_path / 'key')}\n"))
    entry = rig.entry(instance["InstanceId"])
    endpoint = Endpoint(
        instance_id=instance["InstanceId"], host=entry["host"], port=entry["ssh_port"], user="debian"
    )
    dialer = Dialer(
        key_path=tmp_path / "key",
        known_hosts=tmp_path / "known_hosts",
        secret=lambda _: new_secret(),
        clock=SystemClock(),
        loopback_only=True,
    )
    with contextlib.closing(dialer), pytest.raises(InstanceError) as caught:
        dialer.dial(endpoint, wait_s=60)
    assert "login refused for user debian; the image's user is ubuntu" in caught.value.message
    assert caught.value.hint == "set instances.user to ubuntu in the recipe"


def test_a_transient_unit_runs_once_under_its_name(rig):
    rig.control.set_minute(0.05)
    instance = rig.up()
    start = "systemd-run --unit=one --property=Restart=on-failure sh -c 'echo once >>units'"
    assert rig.on(instance, f"sudo {start}")[0] == 0
    status, _, error = rig.on(instance, f"sudo {start}")
    assert (status, "already loaded" in error) == (1, True)
    assert rig.on(instance, "systemd-run --unit=two --on-active=2min sh -c 'echo timer >>units'")[0] == 0
    wait_for(lambda: rig.on(instance, "cat units")[1] == "once\ntimer\n", "the timer elapses")
    assert rig.on(instance, "systemd-run --unit=three --slice=x true")[0] == 1


def launch(rig, *, life_minutes, idle_minutes=None, minute_s=1.0, **options):
    """Launch as dlcloud does, with such minutes."""
    rig.control.set_minute(minute_s)
    text = user_data(
        public_key=rig.public_key, secret=new_secret(), life_minutes=life_minutes, idle_minutes=idle_minutes
    )
    instance = rig.up(UserData=text, InstanceInitiatedShutdownBehavior="terminate", **options)
    rig.on(instance, "cloud-init status --wait")
    return instance


@pytest.mark.parametrize("minutes", [{"life_minutes": 4}, {"life_minutes": 600, "idle_minutes": 4}])
def test_an_instance_admits_logins_until_it_ends_itself(rig, minutes):
    instance = launch(rig, **minutes)
    # All of its life lies in the last five minutes before its end.
    assert rig.on(instance, "ls $DLCLOUD_ROOT/run/units")[1].split() == ["dlcloud-life", "dlcloud-watchdog"]
    rig.await_state(instance["InstanceId"], "terminated")


LOCK = "WHAT=shutdown\\nMODE=block\\nUID=0\\nWHO=apt\\nWHY=packages\\n"
HOLD = f"mkdir -p $DLCLOUD_ROOT/run/systemd/inhibit && printf '{LOCK}' >$DLCLOUD_ROOT/run/systemd/inhibit/1"


@pytest.mark.parametrize("minutes", [{"life_minutes": 10}, {"life_minutes": 600, "idle_minutes": 10}])
def test_a_program_that_locks_shutdowns_does_not_hold_the_end_off(rig, minutes):
    instance = launch(rig, **minutes)
    assert rig.on(instance, HOLD)[0] == 0
    refused = rig.on(instance, "sudo systemctl poweroff")
    assert (refused[0], "Operation inhibited" in refused[2], "WHO=apt" in refused[2]) == (1, True, True)
    rig.await_state(instance["InstanceId"], "terminated")


def test_another_boot_does_not_move_the_end_of_the_budget(rig):
    instance = launch(rig, life_minutes=600)
    ends_at = rig.on(instance, "cat $DLCLOUD_ROOT/var/lib/dlcloud/ends-at")[1]
    boot = "rm -r $DLCLOUD_ROOT/run/units && $DLCLOUD_ROOT/var/lib/cloud/scripts/per-boot/dlcloud"
    assert rig.on(instance, f"sudo sh -c '{boot}'")[0] == 0
    units = "ls $DLCLOUD_ROOT/run/units"
    wait_for(lambda: "dlcloud-budget" in rig.on(instance, units)[1], "the rest of the budget has a timer")
    assert rig.on(instance, "cat $DLCLOUD_ROOT/var/lib/dlcloud/ends-at")[1] == ends_at


def test_an_image_of_an_instance_has_neither_its_end_nor_its_proof(rig):
    first = launch(rig, life_minutes=600)
    image = rig.ec2.create_image(InstanceId=first["InstanceId"], Name="of an instance")["ImageId"]
    rig.ec2.get_waiter("image_available").wait(ImageIds=[image], WaiterConfig={"Delay": 1})
    second = launch(rig, life_minutes=600, ImageId=image)
    assert "dlcloud-budget" not in rig.on(second, "ls $DLCLOUD_ROOT/run/units")[1]
    kept = [
        [rig.on(one, f"cat $DLCLOUD_ROOT/var/lib/dlcloud/{name}")[1] for name in ("ends-at", "host-proof")]
        for one in (first, second)
    ]
    assert float(kept[1][0]) > float(kept[0][0])
    assert kept[1][1] != kept[0][1]


def test_a_virtual_machine_may_stand_for_the_processes(rig):
    # A machine that answers one connection at the instance's address, and asks the metadata service.
    program = (
        "import os, socket; host, port = os.environ['SSH_ADDRESS'].split(':');"
        "metadata = os.environ['METADATA_ADDRESS'].split();"
        "socket.create_connection((metadata[0], int(metadata[1])));"
        "print('booted', os.environ['INSTANCE_ID'], flush=True);"
        "server = socket.create_server((host, int(port))); server.accept()"
    )
    rig.control.set_machine(f"exec python3 -c {shlex.quote(program)}")
    instance = rig.up(InstanceInitiatedShutdownBehavior="terminate")
    rig.control.set_machine("")
    instance_id = instance["InstanceId"]
    wait_for(lambda: f"booted {instance_id}" in rig.console(instance_id), "its console is the machine's")
    entry = rig.entry(instance_id)

    def connects():
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection((entry["host"], entry["ssh_port"])).close()
            return True
        return False

    wait_for(connects, "the machine answers at the instance's address")
    ended = rig.await_state(instance_id, "terminated")
    assert ended["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


def test_a_lock_of_apt_at_boot_is_waited_for(rig):
    rig.control.set_apt_lock(WAIT_S)
    instance = rig.up()
    # DPkg::Lock::Timeout does not help.
    assert rig.on(instance, "sudo apt-get -o DPkg::Lock::Timeout=60 update")[0] == 100
    prepare = template("apt.sh").replace("sleep 10", "sleep 0.2").encode()
    with rig.ssh(instance) as client:
        feed, out, _ = client.exec_command("sh")
        feed.write(prepare)
        feed.channel.shutdown_write()
        assert any("held by process" in line for line in out), "it does not wait"
        rig.on(instance, "echo 0 >$DLCLOUD_ROOT/var/lib/apt-lock")
        assert out.channel.recv_exit_status() == 0
