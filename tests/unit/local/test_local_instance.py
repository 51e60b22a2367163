"""An instance from inside: SSH, SFTP, user data, metadata, shutdown, and nothing left of it."""

import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dlcloud.resources.texts import template
from tests.fakes.local_ec2 import WAIT_S, processes_of, wait_for
from tests.needs import needs


@pytest.fixture(scope="module")
def instance(rig):
    return rig.up()


def test_a_command_has_input_output_error_and_status(rig, instance):
    assert rig.on(instance, "cat; echo bad >&2; exit 7", b"good") == (7, "good", "bad\n")


def test_large_data_passes_unharmed(rig, instance):
    blob = os.urandom(5_000_000)
    with rig.ssh(instance) as client:
        feed, out, _ = client.exec_command("cat > blob && cat blob")
        feed.write(blob)
        feed.channel.shutdown_write()
        assert out.read() == blob


@pytest.mark.timeout(300)
def test_what_is_pasted_into_a_terminal_arrives_whole(rig, instance):
    """A terminal takes a few KiB at a time; the daemon dropped what it had no room for."""
    with rig.ssh(instance) as client:
        command = "stty raw -echo; echo ready; sleep 1; head -c 200000 | wc -c"
        feed, out, _ = client.exec_command(command, get_pty=True)
        assert out.readline().strip() == "ready"
        feed.write(b"x" * 200_000)
        assert out.read().strip() == b"200000"


def test_a_signal_that_ends_a_command_is_reported(rig, instance):
    assert rig.on(instance, "kill -9 $$")[0] == -1


def test_the_environment_is_the_instances_own(rig, instance):
    _, text, _ = rig.on(instance, "env; pwd; umask; command -v sudo; command -v shutdown")
    lines = text.splitlines()
    root = rig.entry(instance["InstanceId"])["folder"]
    assert f"HOME={root}/home" in lines
    assert f"{root}/home" in lines
    assert f"{root}/bin/sudo" in lines
    assert f"{root}/bin/shutdown" in lines
    assert "0022" in lines
    assert not [line for line in lines if line.startswith(("VIRTUAL_ENV", "PYTHON", "MOTO_", "AWS_ACCESS"))]


@needs("bash")
def test_a_login_shell_still_finds_the_shims(rig, instance):
    root = rig.entry(instance["InstanceId"])["folder"]
    assert rig.on(instance, "bash -lc 'command -v shutdown'")[1] == f"{root}/bin/shutdown\n"


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("sudo -n -E -u root GREETING=hi sh -c 'echo $GREETING'", "hi\n"),
        ("sudo -- echo plain", "plain\n"),
        ("cloud-init status --wait", "status: done\n"),
        ("python3 -c 'import sys; print(sys.prefix == sys.base_prefix)'", "True\n"),
        ("sudo apt-get install -y git 2>/dev/null; echo $?", "100\n"),
        ("sudo apt-get -o A=1 isntall -y git 2>&1; echo $?", "E: Invalid operation isntall\n100\n"),
        ("sudo apt-get -o A=1 update -q && sudo apt-get install -y git; echo $?", "0\n"),
        ("sudo systemctl stop apt-daily.timer; echo $?", "0\n"),
    ],
)
def test_shims(rig, instance, command, output):
    assert rig.on(instance, command)[:2] == (0, output)


def test_packages_can_be_installed_once_apt_is_made_ready(rig):
    (instance_id,) = rig.run()
    rig.await_state(instance_id, "running")
    there = rig.describe(instance_id)
    install = "sudo apt-get install -y git 2>/dev/null"
    assert rig.on(there, install)[0] == 100
    assert rig.on(there, "sh", template("apt.sh").encode())[0] == 0
    assert rig.on(there, install)[0] == 0


def test_a_shell_has_a_terminal(rig, instance):
    with rig.ssh(instance) as client:
        channel = client.invoke_shell(term="vt100", width=99, height=33)
        channel.sendall(b"tty; stty size; exit 5\n")
        text = b""
        while chunk := channel.recv(65536):
            text += chunk
        assert b"/dev/" in text
        assert b"33 99" in text
        assert channel.recv_exit_status() == 5


def test_files_by_sftp_begin_at_home(rig, instance):
    with rig.ssh(instance) as client, client.open_sftp() as sftp:
        home = rig.on(instance, "pwd")[1].strip()
        assert sftp.normalize(".") == home
        sftp.mkdir("folder")
        with sftp.open("folder/file", "wb") as file:
            file.write(b"x" * 100_000)
        sftp.chmod("folder/file", 0o700)
        assert sftp.stat(f"{home}/folder/file").st_size == 100_000
        assert rig.on(instance, "wc -c < folder/file")[1].strip() == "100000"


def test_the_key_pair_of_ec2_is_authorized(rig):
    rig.ec2.import_key_pair(KeyName="mine", PublicKeyMaterial=rig.public_key.encode())
    instance = rig.up(KeyName="mine", UserData="")
    assert rig.on(instance, "echo in")[1] == "in\n"


def test_the_host_key_is_the_one_in_the_folder(rig, instance):
    with rig.ssh(instance) as client:
        host_key = client.get_transport().get_remote_server_key().get_base64()
    text = rig.on(instance, "cat $DLCLOUD_ROOT/etc/ssh/ssh_host_ed25519_key.pub")[1]
    assert text.split()[1] == host_key


def test_user_data_is_carried_out(rig):
    more = """write_files:
  - path: /var/lib/dlcloud/proof
    content: a proof
    permissions: '0640'
  - path: /../../escaped
    content: no
bootcmd:
  - echo early > $HOME/early
runcmd:
  - [sh, -c, 'echo "$INSTANCE_ID $1" > listed', x, 'two words']
  - 'false'
  - cat early > text
"""
    instance = rig.up(UserData=rig.user_data(more))
    assert rig.on(instance, "cloud-init status --wait")[1] == "status: done\n"
    assert rig.on(instance, "cat listed text")[1] == f"{instance['InstanceId']} two words\nearly\n"
    proof = Path(rig.entry(instance["InstanceId"])["folder"]) / "var/lib/dlcloud/proof"
    assert proof.read_bytes() == b"a proof"
    assert proof.stat().st_mode & 0o777 == 0o640
    assert not (rig.folder / "escaped").exists()


@needs("bash")
def test_a_script_as_user_data(rig):
    rig.ec2.import_key_pair(KeyName="script", PublicKeyMaterial=rig.public_key.encode())
    instance = rig.up(KeyName="script", UserData="#!/bin/bash\necho $BASH > ran\nexit 3\n")
    assert rig.on(instance, "cloud-init status --wait; cat ran")[1].endswith("bash\n")
    assert rig.on(instance, "cloud-init status --wait")[1] == "status: error\n"


def test_the_cache_is_shared(rig, instance):
    other = rig.up()
    assert rig.on(instance, "echo built > ~/.cache/environment")[0] == 0
    assert rig.on(other, "cat ~/.cache/environment")[1] == "built\n"


def test_metadata_needs_a_token(rig, instance):
    assert rig.metadata(instance, "latest/meta-data/instance-id")[0] == 401
    wrong = {"X-aws-ec2-metadata-token": "guess"}
    assert rig.metadata(instance, "latest/meta-data/instance-id", headers=wrong)[0] == 401
    assert rig.metadata(instance, "latest/api/token", method="PUT")[0] == 400
    assert rig.metadata(instance, "latest/api/token")[0] == 405


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("meta-data/instance-id", "InstanceId"),
        ("meta-data/instance-type", "InstanceType"),
        ("meta-data/ami-id", "ImageId"),
        ("meta-data/public-ipv4", "PublicIpAddress"),
        ("meta-data/local-ipv4", "PrivateIpAddress"),
        ("meta-data/hostname", "PrivateDnsName"),
    ],
)
def test_metadata_agrees_with_describe_instances(rig, instance, path, expected):
    shown = rig.describe(instance["InstanceId"])[expected]
    assert rig.metadata_v2(instance, f"latest/{path}") == (200, shown)


def test_more_metadata(rig, instance):
    assert rig.metadata_v2(instance, "latest/meta-data/placement/region") == (200, "us-east-1")
    assert rig.metadata_v2(instance, "latest/meta-data/iam/info")[0] == 404
    assert rig.metadata_v2(instance, "latest/meta-data/spot/instance-action")[0] == 404
    assert rig.metadata_v2(instance, "latest/meta-data/events/recommendations/rebalance")[0] == 404
    assert rig.metadata_v2(instance, "latest/user-data") == (200, rig.user_data())
    _, document = rig.metadata_v2(instance, "latest/dynamic/instance-identity/document")
    assert json.loads(document)["instanceId"] == instance["InstanceId"]
    assert "instance-id" in rig.metadata_v2(instance, "latest/meta-data/")[1].splitlines()


def test_an_interruption_is_announced_and_then_ends_the_instance(rig):
    instance = rig.up(InstanceMarketOptions={"MarketType": "spot"})
    rig.control.interrupt(instance["InstanceId"], rebalance=True)
    assert rig.metadata_v2(instance, "latest/meta-data/events/recommendations/rebalance")[0] == 200
    assert rig.metadata_v2(instance, "latest/meta-data/spot/instance-action")[0] == 404
    rig.control.interrupt(instance["InstanceId"], grace_s=100.0)
    status, text = rig.metadata_v2(instance, "latest/meta-data/spot/instance-action")
    notice = json.loads(text)
    assert (status, notice["action"]) == (200, "terminate")
    ends = datetime.strptime(notice["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert 0 < (ends - datetime.now(UTC)).total_seconds() <= 100
    rig.control.interrupt(instance["InstanceId"], grace_s=0.0)
    ended = rig.await_state(instance["InstanceId"], "terminated")
    assert ended["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def test_lost_capacity_interrupts_the_youngest_spot_instances(rig):
    spot = {"InstanceType": "c5.xlarge", "InstanceMarketOptions": {"MarketType": "spot"}}
    old, young = rig.run(**spot)[0], rig.run(**spot)[0]
    rig.control.set_capacity("c5.xlarge", 1, grace_s=0.0)
    rig.await_state(young, "terminated")
    assert rig.state(old) in ("pending", "running")


def test_a_time_that_means_nothing_is_refused(rig, instance):
    status, _, text = rig.on(instance, "shutdown -P soon")
    assert (status, "soon" in text) == (1, True)


@needs("setsid")
def test_a_detached_job_outlives_its_connection_and_not_its_instance(rig):
    instance = rig.up()
    root = rig.entry(instance["InstanceId"])["folder"]
    job = (
        "setsid nohup sh -c 'trap \"\" TERM; while sleep 0.05; do date > beat; done' > log 2>&1 < /dev/null &"
    )
    with rig.ssh(instance) as client:
        _, out, _ = client.exec_command(job)
        assert out.channel.recv_exit_status() == 0
        # Cut, not closed.
        client.get_transport().sock.close()
    beat = Path(root) / "home/beat"
    wait_for(beat.exists, "the job works")
    before = beat.stat().st_mtime_ns
    wait_for(lambda: beat.exists() and beat.stat().st_mtime_ns > before, "it goes on")
    assert processes_of({str(root)})
    rig.end(instance["InstanceId"])
    assert not processes_of({str(root)})
    assert not Path(root).exists()


@needs("bash")
def test_a_running_command_sees_sigterm_and_its_client_the_end(rig):
    """sshd ends at the same moment: what the command prints after that is lost, as on EC2."""
    instance = rig.up()
    with socket.create_server(("127.0.0.1", 0)) as server, rig.ssh(instance) as client:
        tell = f"echo asked > /dev/tcp/127.0.0.1/{server.getsockname()[1]}"
        # bash may report the end of `sleep` on a standard error that nothing reads any more: SIGPIPE.
        _, out, _ = client.exec_command(
            f"exec 2>/dev/null; trap '{tell}; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
        )
        assert out.readline() == "ready\n"
        rig.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
        assert out.read() == b""
        assert out.channel.recv_exit_status() == -1
        server.settimeout(WAIT_S)
        connection, _ = server.accept()
        with connection:
            assert connection.recv(100) == b"asked\n"


def test_an_instance_that_is_ended_while_it_boots_leaves_nothing(rig):
    rig.control.set_boot_delay(30.0)
    ids = rig.run(5, UserData=rig.user_data("bootcmd:\n  - sleep 60\n"))
    roots = [Path(rig.entry(instance_id)["folder"]) for instance_id in ids]
    rig.ec2.terminate_instances(InstanceIds=ids)
    for instance_id in ids:
        rig.await_state(instance_id, "terminated")
    assert not [root for root in roots if root.exists() or processes_of({str(root)})]
