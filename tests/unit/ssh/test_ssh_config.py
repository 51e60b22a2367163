"""Entries of an ssh_config file: what the system's ssh reads from them."""

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


def test_ports_are_forwarded_before_the_host(tmp_path):
    words = ssh_command(
        ENDPOINT, tmp_path / "key", tmp_path / "known", "ls", forwards=["8888:localhost:8888"]
    )
    place = words.index("-L")
    assert words[place + 1] == "8888:localhost:8888"
    assert words[-3:] == ["--", "198.51.100.1", "ls"]
    assert "ExitOnForwardFailure=yes" in words
