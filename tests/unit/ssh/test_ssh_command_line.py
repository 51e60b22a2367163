"""The system's own ssh holds to the pinned key: by a command line, and by entries of an ssh_config file."""

import shutil
import subprocess

from dlcloud.model.remote import Endpoint
from dlcloud.ssh.command_line import config_entry, ssh_command
from tests.needs import needs

ENDPOINT = Endpoint(instance_id="i-0001", host="198.51.100.1", port=2222, user="ubuntu")


@needs("ssh")
def test_ssh_reads_an_entry_with_the_pinned_key_by_both_names(tmp_path):
    path = tmp_path / "with a blank" / "config"
    path.parent.mkdir()
    path.write_text(config_entry(["x-1a2b", "i-0001"], ENDPOINT, path.parent / "key", path.parent / "known"))
    for name in ("x-1a2b", "i-0001"):
        done = subprocess.run(
            ["ssh", "-G", "-F", str(path), name], capture_output=True, text=True, timeout=60, check=True
        )
        options = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
        assert (options["hostname"], options["port"], options["user"]) == ("198.51.100.1", "2222", "ubuntu")
        assert options["hostkeyalias"] == "i-0001"
        assert options["stricthostkeychecking"] in {"yes", "true"}
        assert options["userknownhostsfile"] == str(path.parent / "known")


def test_ports_are_forwarded_before_the_host_and_without_a_command_a_session_is_opened(tmp_path):
    words = ssh_command(
        ENDPOINT, tmp_path / "key", tmp_path / "known", "ls", forwards=["8888:localhost:8888"]
    )
    assert words[words.index("-L") + 1] == "8888:localhost:8888"
    assert words[-3:] == ["--", "198.51.100.1", "ls"]
    assert "ExitOnForwardFailure=yes" in words
    words = ssh_command(ENDPOINT, tmp_path / "key", tmp_path / "known", None)
    assert words[0] == "ssh"
    assert words[-2:] == ["--", "198.51.100.1"]
    assert {"HostKeyAlias=i-0001", "StrictHostKeyChecking=yes"} <= set(words)


def ssh(endpoint, folder, command):
    words = ssh_command(endpoint, folder / "key", folder / "known_hosts", command)
    done = subprocess.run(words, capture_output=True, check=False, timeout=600, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


@needs("ssh")
def test_the_systems_ssh_accepts_the_pinned_host_and_refuses_a_changed_key(
    host, make_host, make_dialer, key_path, tmp_path
):
    make_dialer(host).dial(host.endpoint)
    odd = tmp_path / 'a "b" %h c'
    shutil.copytree(key_path.parent, odd)
    for folder in (key_path.parent, odd):
        assert ssh(host.endpoint, folder, "echo it works; exit 7") == (7, b"it works\n", b"")
    other = make_host(host.instance_id).start()
    status, _, _ = ssh(other.endpoint, key_path.parent, "echo sent")
    assert status == 255
    assert (other.logins, other.commands) == (0, [])
