"""Files that programs put into an instance neither stop the daemon nor lead it to the machine's files."""

import base64
import contextlib
import os
from pathlib import Path

import paramiko
import pytest

LOG = "/var/log/cloud-init-output.log"


@pytest.fixture(scope="module")
def other(rig):
    """An instance that must go on to be served."""
    return rig.up()


@pytest.fixture
def instance(rig):
    instance = rig.up()
    yield instance
    rig.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    rig.await_state(instance["InstanceId"], "terminated")


def console(rig, instance):
    output = rig.ec2.get_console_output(InstanceId=instance["InstanceId"])["Output"]
    return output if "cloud-init" in output else base64.b64decode(output).decode()


def test_fifos_in_an_instance_stop_nobody(rig, instance, other):
    """Each of them froze the daemon: the loop of all instances, or the calls that read the console."""
    paths = f"~/.ssh/authorized_keys {LOG}"
    assert rig.on(instance, f"rm -f {paths}; mkfifo {paths} && echo made")[1] == "made\n"
    with contextlib.suppress(paramiko.SSHException), rig.ssh(instance):
        pytest.fail("an instance without authorized keys let someone in")
    assert rig.on(other, "echo served")[1] == "served\n"
    rig.ec2.get_console_output(InstanceId=instance["InstanceId"])


@pytest.mark.parametrize("link", [LOG, "/etc/ssh/ssh_host_x_key.pub"])
def test_the_console_shows_no_file_of_the_machine(rig, instance, tmp_path, link):
    (tmp_path / "secret").write_text("of the machine")
    rig.on(
        instance, f"sudo ln -sf {tmp_path}/secret {link} || sudo ln -sf {tmp_path}/secret $DLCLOUD_ROOT{link}"
    )
    assert "of the machine" not in console(rig, instance)


def test_a_terminal_is_made_by_what_makes_terminals_only(rig, instance, tmp_path):
    if rig.control.status()["isolation"]["level"] != "namespaces":
        pytest.skip("terminals are those of the machine here")
    (tmp_path / "target").write_text("of the machine")
    pid = int((rig.folder / "endpoint.json").read_text().partition('"pid": ')[2].partition(",")[0])
    script = f"mount -t tmpfs tmpfs /dev/pts && ln -s {tmp_path}/target /dev/pts/ptmx && echo made"
    assert rig.on(instance, script)[1] == "made\n"
    descriptors = Path(f"/proc/{pid}/fd")
    before = len(list(descriptors.iterdir()))
    for _ in range(20):
        with rig.ssh(instance) as client:
            channel = client.get_transport().open_session()
            channel.get_pty()
            channel.exec_command("true")
            assert channel.recv_exit_status() == 255
    assert len(list(descriptors.iterdir())) < before + 20


def test_links_in_the_cache_change_no_owner(rig, instance, tmp_path):
    if rig.control.status()["isolation"]["level"] != "namespaces" or os.getuid() != 0:
        pytest.skip("nothing is given away here")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").touch()
    assert rig.on(instance, f"ln -sfn {tmp_path} ~/.cache/x && echo made")[1] == "made\n"
    try:
        rig.await_state(rig.run()[0], "running")
        assert {path.stat().st_uid for path in (tmp_path, *tmp_path.rglob("*"))} == {0}
    finally:
        rig.on(instance, "rm ~/.cache/x")
