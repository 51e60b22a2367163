"""Logins as OpenSSH's client and others make them: keys, scripts, sessions, ports."""

import socket
import subprocess
import time

import paramiko
import pytest
from cryptography.hazmat.primitives import serialization

from tests.fakes.local_ec2 import wait_for
from tests.needs import needs
from tests.programs import find

SSH = find("ssh")
pytestmark = needs("ssh")


@pytest.fixture(scope="module")
def instance(rig):
    return rig.up()


@pytest.fixture
def command(rig, instance, tmp_path):
    """The words of an `ssh` command to the instance, up to its options."""
    identity = tmp_path / "key"
    identity.touch(mode=0o600)
    identity.write_bytes(
        rig.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
    )
    port = str(rig.entry(instance["InstanceId"])["ssh_port"])
    options = ["StrictHostKeyChecking=no", f"UserKnownHostsFile={tmp_path / 'known'}", "IdentitiesOnly=yes"]
    words = [word for option in options for word in ("-o", option)]
    return [SSH, "-F", "none", "-i", str(identity), "-p", port, *words]


def host(instance):
    return f"ubuntu@{instance['PublicIpAddress']}"


def run(argv, text=""):
    return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=600, check=False)


def test_a_script_on_standard_input_runs_without_prompts(command, instance):
    done = run([*command, host(instance)], "echo $-\necho two; read word\nmore\necho got $word\nexit 7\n")
    flags, *rest = done.stdout.splitlines()
    assert "i" not in flags
    assert rest == ["two", "got more"]
    assert done.returncode == 7
    assert "$ " not in done.stdout + done.stderr


def test_the_shell_of_a_script_is_a_login_shell(rig, command, instance):
    done = run([*command, host(instance)], "shopt -q login_shell && command -v shutdown")
    root = rig.entry(instance["InstanceId"])["folder"]
    assert done.stdout == f"{root}/bin/shutdown\n"


def test_a_terminal_has_a_login_shell(command, instance):
    done = run([*command, "-tt", host(instance)], "shopt -q login_shell && echo is-$((1+1)); exit\n")
    assert "is-2" in done.stdout


def connect(rig, instance, key):
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    port = rig.entry(instance["InstanceId"])["ssh_port"]
    client.connect(
        instance["PublicIpAddress"], port, "ubuntu", pkey=key, allow_agent=False, look_for_keys=False
    )
    return client


def test_authorized_keys_are_read_at_every_login(rig, instance):
    second = paramiko.RSAKey.generate(2048)
    with pytest.raises(paramiko.AuthenticationException):
        connect(rig, instance, second)
    line = f"ssh-rsa {second.get_base64()} second"
    assert rig.on(instance, f"echo '{line}' >> ~/.ssh/authorized_keys")[0] == 0
    connect(rig, instance, second).close()
    assert rig.on(instance, "sed -i '/second$/d' ~/.ssh/authorized_keys")[0] == 0
    with pytest.raises(paramiko.AuthenticationException):
        connect(rig, instance, second)


def test_the_options_of_an_authorized_key_hold(rig, instance):
    limited = paramiko.RSAKey.generate(2048)
    line = f'command="echo forced" ssh-rsa {limited.get_base64()} limited'
    assert rig.on(instance, f"echo '{line}' >> ~/.ssh/authorized_keys")[0] == 0
    with connect(rig, instance, limited) as client:
        _, out, _ = client.exec_command("echo free")
        assert out.read() == b"forced\n"


def test_a_connection_has_ten_sessions(rig, instance):
    with rig.ssh(instance) as client:
        running = [client.exec_command("read line; echo $line") for _ in range(10)]
        with pytest.raises(paramiko.ChannelException) as caught:
            client.exec_command("echo eleventh")
        assert caught.value.code == 2
        with rig.ssh(instance) as other:
            assert other.exec_command("echo in")[1].read() == b"in\n"
        feed, out, _ = running.pop()
        feed.write("done\n")
        feed.channel.shutdown_write()
        assert out.read() == b"done\n"
        wait_for(lambda: opens(client), "a session is free again")


def opens(client):
    try:
        return client.exec_command("echo again")[1].read() == b"again\n"
    except paramiko.ChannelException:
        return False


def test_an_abandoned_command_holds_its_session_until_it_ends(rig, instance):
    with rig.ssh(instance) as client:
        for _ in range(10):
            client.exec_command("while [ ! -e go ]; do sleep 0.1; done")[1].channel.close()
        assert not opens(client)
        assert rig.on(instance, "touch go")[0] == 0
        wait_for(lambda: opens(client), "the commands have ended")
    rig.on(instance, "rm go")


def test_closed_sftp_sessions_are_free_again(rig, instance):
    with rig.ssh(instance) as client:
        for _ in range(25):
            sftp = client.open_sftp()
            sftp.listdir(".")
            sftp.close()
            time.sleep(0.01)
        assert opens(client)


def test_the_port_is_22_where_it_can_be_bound(rig, instance):
    entry = rig.entry(instance["InstanceId"])
    if entry["ssh_port"] != 22:
        with socket.socket() as probe, pytest.raises(OSError, match=r"denied|in use"):
            probe.bind((entry["host"], 22))
