"""An instance from inside: SSH, SFTP, user data, metadata, shutdown, and nothing left of it."""

import inspect
import json
import os
import socket
import subprocess
import time
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import ec2_metadata
import paramiko
import pytest
import urllib3
from cryptography.hazmat.primitives import serialization

from dlcloud.resources.texts import template
from tests.fakes.local_ec2 import WAIT_S, processes_of, wait_for
from tests.needs import needs
from tests.programs import find

USER_DATA = """runcmd:
  - echo from the boot
"""


@pytest.fixture(scope="module")
def instance(rig):
    rig.ec2.import_key_pair(KeyName="mine", PublicKeyMaterial=rig.public_key.encode())
    return rig.up(
        KeyName="mine",
        UserData=rig.user_data(USER_DATA),
        MetadataOptions={"InstanceMetadataTags": "enabled"},
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": "read"}]}],
    )


@pytest.fixture(scope="module")
def root(rig, instance):
    return rig.entry(instance["InstanceId"])["folder"]


def test_a_command_has_input_output_error_and_status(rig, instance):
    assert rig.on(instance, "cat; echo bad >&2; exit 7", b"good") == (7, "good", "bad\n")
    assert rig.on(instance, "kill -9 $$")[0] == -1


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


def test_the_environment_is_the_instances_own(rig, instance, root):
    lines = rig.on(instance, "env; pwd; umask; command -v sudo; command -v shutdown")[1].splitlines()
    own = {f"HOME={root}/home", f"{root}/home", f"{root}/bin/sudo", f"{root}/bin/shutdown", "0022"}
    assert own <= set(lines)
    assert not [line for line in lines if line.startswith(("VIRTUAL_ENV", "PYTHON", "MOTO_", "AWS_ACCESS"))]


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
        ("shutdown -P soon 2>&1 | grep -c soon; shutdown -P soon 2>/dev/null; echo $?", "1\n1\n"),
    ],
)
def test_shims(rig, instance, command, output):
    assert rig.on(instance, command)[:2] == (0, output)


def test_packages_can_be_installed_once_apt_is_made_ready(rig):
    there, install = rig.up(), "sudo apt-get install -y git 2>/dev/null"
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


def test_files_by_sftp_begin_at_home(rig, instance, root):
    with rig.ssh(instance) as client, client.open_sftp() as sftp:
        assert sftp.normalize(".") == f"{root}/home"
        sftp.mkdir("folder")
        with sftp.open("folder/file", "wb") as file:
            file.write(b"x" * 100_000)
        sftp.chmod("folder/file", 0o700)
        assert sftp.stat(f"{root}/home/folder/file").st_size == 100_000
        assert rig.on(instance, "wc -c < folder/file")[1].strip() == "100000"


def test_the_key_pair_of_ec2_is_authorized(rig):
    rig.ec2.import_key_pair(KeyName="alone", PublicKeyMaterial=rig.public_key.encode())
    assert rig.on(rig.up(KeyName="alone", UserData=""), "echo in")[1] == "in\n"


def test_the_host_key_is_the_one_in_the_folder(rig, instance):
    with rig.ssh(instance) as client:
        host_key = client.get_transport().get_remote_server_key().get_base64()
    text = rig.on(instance, "cat $DLCLOUD_ROOT/etc/ssh/ssh_host_ed25519_key.pub")[1]
    assert text.split()[1] == host_key


@pytest.fixture
def command(rig, instance, tmp_path):
    """The words of an `ssh` command to the instance."""
    identity = tmp_path / "key"
    identity.touch(mode=0o600)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    identity.write_bytes(rig.key.private_bytes(*form))
    port = rig.entry(instance["InstanceId"])["ssh_port"]
    options = ("StrictHostKeyChecking=no", f"UserKnownHostsFile={tmp_path / 'known'}", "IdentitiesOnly=yes")
    words = [word for option in options for word in ("-o", option)]
    address = f"ubuntu@{instance['PublicIpAddress']}"
    return [find("ssh"), "-F", "none", "-i", str(identity), "-p", str(port), *words, address]


@needs("bash")
def test_a_login_shell_still_finds_the_shims(rig, instance, root):
    assert rig.on(instance, "bash -lc 'command -v shutdown'")[1] == f"{root}/bin/shutdown\n"


@needs("ssh")
def test_opensshs_client_gets_login_shells_without_prompts(command, root):
    def run(*words, text):
        argv = [*command[:-1], *words, command[-1]]
        return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=600, check=False)

    done = run(text="echo $-\necho two; read word\nmore\necho got $word\nexit 7\n")
    flags, *rest = done.stdout.splitlines()
    assert ("i" in flags, rest, done.returncode) == (False, ["two", "got more"], 7)
    assert "$ " not in done.stdout + done.stderr
    done = run(text="shopt -q login_shell && command -v shutdown")
    assert done.stdout == f"{root}/bin/shutdown\n"
    assert "is-2" in run("-tt", text="shopt -q login_shell && echo is-$((1+1)); exit\n").stdout


def log_in(rig, instance, key):
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    port = rig.entry(instance["InstanceId"])["ssh_port"]
    options = {"pkey": key, "allow_agent": False, "look_for_keys": False}
    client.connect(instance["PublicIpAddress"], port, "ubuntu", **options)
    return client


def test_authorized_keys_and_their_options_are_read_at_every_login(rig, instance):
    second = paramiko.RSAKey.generate(2048)
    with pytest.raises(paramiko.AuthenticationException):
        log_in(rig, instance, second)
    line = f'command="echo forced" ssh-rsa {second.get_base64()} second'
    assert rig.on(instance, f"echo '{line}' >> ~/.ssh/authorized_keys")[0] == 0
    with log_in(rig, instance, second) as client:
        assert client.exec_command("echo free")[1].read() == b"forced\n"
    assert rig.on(instance, "sed -i '/second$/d' ~/.ssh/authorized_keys")[0] == 0
    with pytest.raises(paramiko.AuthenticationException):
        log_in(rig, instance, second)


def opens(client):
    try:
        return client.exec_command("echo again")[1].read() == b"again\n"
    except paramiko.ChannelException:
        return False


def test_a_connection_has_ten_sessions(rig, instance):
    with rig.ssh(instance) as client:
        running = [client.exec_command("read line; echo $line") for _ in range(10)]
        with pytest.raises(paramiko.ChannelException) as caught:
            client.exec_command("echo eleventh")
        assert caught.value.code == 2
        with rig.ssh(instance) as other:
            assert opens(other)
        feed, out, _ = running.pop()
        feed.write("done\n")
        feed.channel.shutdown_write()
        assert out.read() == b"done\n"
        wait_for(lambda: opens(client), "a session is free again")


def test_an_abandoned_command_holds_its_session_until_it_ends(rig, instance):
    with rig.ssh(instance) as client:
        for _ in range(10):
            client.exec_command("while [ ! -e go ]; do sleep 0.1; done")[1].channel.close()
        assert not opens(client)
        assert rig.on(instance, "touch go")[0] == 0
        wait_for(lambda: opens(client), "the commands have ended")
    with rig.ssh(instance) as client:
        for _ in range(25):
            sftp = client.open_sftp()
            sftp.listdir(".")
            sftp.close()
            time.sleep(0.01)
        assert opens(client), "closed SFTP sessions are not free again"


def test_the_port_is_22_where_it_can_be_bound(rig, instance):
    entry = rig.entry(instance["InstanceId"])
    if entry["ssh_port"] != 22:
        with socket.socket() as probe, pytest.raises(OSError, match=r"denied|in use"):
            probe.bind((entry["host"], 22))


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
    assert (proof.read_bytes(), proof.stat().st_mode & 0o777) == (b"a proof", 0o640)
    assert not (rig.folder / "escaped").exists()


@needs("bash")
def test_a_script_as_user_data(rig, instance):
    script = "#!/bin/bash\necho $BASH > ran\necho last words\nexit 3\n"
    there = rig.up(KeyName=instance["KeyName"], UserData=script)
    assert rig.on(there, "cloud-init status --wait; cat ran")[1].endswith("bash\n")
    assert rig.on(there, "cloud-init status --wait")[1] == "status: error\n"
    assert "last words" in rig.console(there["InstanceId"])
    rig.end(there["InstanceId"])
    assert "last words" in rig.console(there["InstanceId"]), "the console is not kept"


def test_the_cache_is_shared(rig, instance):
    assert rig.on(instance, "echo built > ~/.cache/environment")[0] == 0
    assert rig.on(rig.up(), "cat ~/.cache/environment")[1] == "built\n"


def test_metadata_needs_a_token(rig, instance):
    assert rig.metadata(instance, "latest/meta-data/instance-id")[0] == 401
    wrong = {"X-aws-ec2-metadata-token": "guess"}
    assert rig.metadata(instance, "latest/meta-data/instance-id", headers=wrong)[0] == 401
    assert rig.metadata(instance, "latest/api/token", method="PUT")[0] == 400
    assert rig.metadata(instance, "latest/api/token")[0] == 405
    # A web page that has rebound its name to the address sends it.
    rebound = {"X-aws-ec2-metadata-token-ttl-seconds": "60", "Host": "evil.example"}
    assert rig.metadata(instance, "latest/api/token", method="PUT", headers=rebound)[0] == 403


class Redirected(urllib3.PoolManager):
    """Reaches an instance's own metadata service where the client names the link-local address."""

    def __init__(self, entry):
        super().__init__(retries=False)
        self.address = f"{entry['host']}:{entry['metadata_port']}"

    def request(self, method, url, *arguments, **options):
        return super().request(method, url.replace("169.254.169.254", self.address), *arguments, **options)


def reader(rig, instance):
    return ec2_metadata.EC2Metadata(Redirected(rig.entry(instance["InstanceId"])))


def test_ec2_metadata_reads_what_describe_instances_shows(rig, instance):
    metadata = reader(rig, instance)
    [shown] = instance["NetworkInterfaces"]
    [card] = metadata.network_interfaces.values()
    for thing, least in ((metadata, 33), (card, 10)):
        properties = [
            name
            for name, value in inspect.getmembers(type(thing))
            if isinstance(value, property | cached_property) and not name.startswith("_")
        ]
        assert len(properties) >= least
        for name in properties:
            getattr(thing, name)
    reservation = rig.ec2.describe_instances(InstanceIds=[instance["InstanceId"]])["Reservations"][0]
    assert metadata.instance_id == instance["InstanceId"]
    assert metadata.instance_type == instance["InstanceType"]
    assert metadata.ami_id == instance["ImageId"]
    assert metadata.public_ipv4 == instance["PublicIpAddress"]
    assert metadata.private_ipv4 == instance["PrivateIpAddress"]
    assert metadata.reservation_id == reservation["ReservationId"]
    assert metadata.mac == card.mac == shown["MacAddress"]
    assert metadata.ami_launch_index == instance["AmiLaunchIndex"] == 0
    assert metadata.security_groups == [group["GroupName"] for group in shown["Groups"]]
    assert metadata.public_hostname == instance["PublicDnsName"]
    assert metadata.private_hostname == instance["PrivateDnsName"]
    assert metadata.instance_life_cycle == "on-demand"
    assert metadata.instance_profile_name is None
    assert metadata.spot_instance_action is None
    assert metadata.account_id == reservation["OwnerId"]
    assert (metadata.partition, metadata.domain, metadata.region) == ("aws", "amazonaws.com", "us-east-1")
    assert metadata.availability_zone_id.startswith("use1-az")
    assert metadata.user_data == rig.user_data(USER_DATA).encode()
    assert metadata.public_keys["mine"].openssh_key.split()[1] == rig.public_key.split()[1]
    assert metadata.tags["Name"] == "read"
    assert (card.interface_id, card.subnet_id) == (shown["NetworkInterfaceId"], shown["SubnetId"])
    assert (card.vpc_id, card.device_number) == (shown["VpcId"], 0)
    assert card.private_ipv4s == [instance["PrivateIpAddress"]]
    assert card.ipv4_associations == {instance["PublicIpAddress"]: [instance["PrivateIpAddress"]]}
    assert card.security_group_ids == [group["GroupId"] for group in shown["Groups"]]
    assert card.vpc_ipv4_cidr_block
    host = rig.metadata_v2(instance, "latest/meta-data/hostname")
    assert host == (200, instance["PrivateDnsName"])
    assert rig.metadata_v2(instance, "latest/meta-data/events/recommendations/rebalance")[0] == 404
    document = json.loads(rig.metadata_v2(instance, "latest/dynamic/instance-identity/document")[1])
    assert document["instanceId"] == instance["InstanceId"]
    assert "instance-id" in rig.metadata_v2(instance, "latest/meta-data/")[1].splitlines()


def test_tags_are_shown_only_where_enabled(rig):
    plain = rig.up()
    assert rig.metadata_v2(plain, "latest/meta-data/tags/instance")[0] == 404
    assert "tags/" not in rig.metadata_v2(plain, "latest/meta-data/")[1].splitlines()


def test_the_console_shows_the_boot(rig, instance):
    wait_for(lambda: "status: done" in rig.console(instance["InstanceId"]), "the boot is over")
    assert "from the boot" in rig.console(instance["InstanceId"])


def test_an_interruption_is_announced_and_then_ends_the_instance(rig):
    instance = rig.up(InstanceMarketOptions={"MarketType": "spot"})
    instance_id, metadata = instance["InstanceId"], reader(rig, instance)
    rig.control.interrupt(instance_id, rebalance=True)
    assert rig.metadata_v2(instance, "latest/meta-data/events/recommendations/rebalance")[0] == 200
    assert (metadata.instance_life_cycle, metadata.spot_instance_action) == ("spot", None)
    rig.control.interrupt(instance_id, grace_s=100.0)
    notice = metadata.spot_instance_action
    assert notice.action == "terminate"
    assert 0 < (notice.time - datetime.now(UTC)).total_seconds() <= 100
    rig.control.interrupt(instance_id, grace_s=0.0)
    ended = rig.await_state(instance_id, "terminated")
    assert ended["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def test_lost_capacity_interrupts_the_youngest_spot_instances(rig):
    spot = {"InstanceType": "c5.xlarge", "InstanceMarketOptions": {"MarketType": "spot"}}
    old, young = rig.run(**spot)[0], rig.run(**spot)[0]
    rig.control.set_capacity("c5.xlarge", 1, grace_s=0.0)
    rig.await_state(young, "terminated")
    assert rig.state(old) in ("pending", "running")


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
