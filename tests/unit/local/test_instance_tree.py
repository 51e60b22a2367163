"""What the daemon does in the folder of an instance, where programs have put links and worse."""

import os
import stat
from pathlib import Path

import pytest

from dlcloud.local.instance.console import read_console
from dlcloud.local.instance.isolation import Isolation, Level, share_cache
from dlcloud.local.instance.tree import InstanceTree
from dlcloud.local.instance.tree_walk import give

ORDINARY = 4242
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGNyZWF0ZWQgZm9yIGEgdGVzdCBvZiB0cmVl ubuntu@x"
SECRET = "of the machine"
LOG = "var/log/cloud-init-output.log"
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")


@pytest.fixture
def outside(tmp_path):
    """A folder of the machine with a setuid program and a secret."""
    folder = tmp_path / "outside"
    (folder / "deep").mkdir(parents=True)
    for name in ("secret", "deep/program"):
        (folder / name).write_text(SECRET)
    (folder / "deep/program").chmod(0o4755)
    return folder


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "i-1"
    for name in ("etc/ssh", "home/.ssh", "lib", "run", "var/log"):
        (root / name).mkdir(parents=True)
    return InstanceTree(root)


def states(folder):
    return {
        path: (path.lstat().st_uid, path.lstat().st_mode, path.lstat().st_ctime_ns)
        for path in (folder, *folder.rglob("*"))
    }


@as_root
def test_links_in_the_cache_lead_to_no_change_of_owner(tmp_path, outside):
    cache = tmp_path / "cache"
    (cache / "pip/http").mkdir(parents=True)
    for link in ("x", "pip/x", "pip/http/x"):
        (cache / link).symlink_to(outside)
        (cache / f"{link}-up").symlink_to("../" * 3 + "outside")
    os.link(outside / "secret", cache / "hard")
    before = states(outside)
    os.chown(cache, ORDINARY, ORDINARY)
    share_cache(cache, Isolation(level=Level.USER, owner=ORDINARY))
    assert states(outside) == before
    assert (cache / "pip/http").stat().st_uid == ORDINARY
    assert (cache / "x").lstat().st_uid == ORDINARY


@as_root
def test_a_folder_is_given_with_its_links_and_not_their_targets(tmp_path, outside):
    folder = tmp_path / "folder"
    (folder / "kept").mkdir(parents=True)
    (folder / "link").symlink_to(outside)
    os.mkfifo(folder / "fifo")
    before = states(outside)
    give(folder, ORDINARY, keeps=("", "kept"))
    assert states(outside) == before
    owners = {path.name: path.lstat().st_uid for path in (folder, *folder.iterdir())}
    assert owners == {"folder": 0, "kept": 0, "link": ORDINARY, "fifo": ORDINARY}


@pytest.mark.parametrize("link", [LOG, "etc/ssh/ssh_host_x_key.pub", "lib/cloud-init-result"])
def test_the_console_shows_nothing_of_the_machine(tree, outside, link):
    (tree.root / LOG).write_text("booted\n")
    (tree.root / link).unlink(missing_ok=True)
    (tree.root / link).symlink_to(outside / "secret")
    assert SECRET not in read_console(tree, hostname="ip", booted_at=object())


@pytest.mark.parametrize("name", [LOG, "etc/ssh/ssh_host_x_key.pub", "lib/cloud-init-result"])
def test_the_console_does_not_wait(tree, name):
    (tree.root / LOG).write_text("booted\n")
    (tree.root / name).unlink(missing_ok=True)
    os.mkfifo(tree.root / name)
    read_console(tree, hostname="ip", booted_at=object())


def test_the_console_follows_links_within_the_instance(tree):
    (tree.root / "var/log").rmdir()
    (tree.root / "var/log").symlink_to("/run/log")
    (tree.root / "run/log").mkdir()
    (tree.root / "run/log/cloud-init-output.log").write_text("booted\n")
    (tree.root / "etc/ssh/ssh_host_x_key.pub").write_text(KEY)
    (tree.root / "etc/ssh/ssh_host_y_key.pub").write_text("no key")
    console = read_console(tree, hostname="ip", booted_at=object())
    assert "booted\n" in console
    assert KEY in console
    assert "no key" not in console


def test_a_file_beyond_the_limit_is_refused(tree):
    with (tree.root / "home/.ssh/authorized_keys").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(OSError, match="too large"):
        tree.read("home/.ssh/authorized_keys")
    assert tree.read_end("home/.ssh/authorized_keys", 4) == bytes(4)


def test_a_file_that_is_a_folder_is_read_by_nobody(tree):
    with pytest.raises(OSError, match="not a regular file"):
        tree.read("home/.ssh")
    assert stat.S_ISDIR(tree.state("home/.ssh").st_mode)
    assert tree.names("home") == [".ssh"]
    assert tree.names("home/.ssh/x") == []
    assert not tree.exists(f"../{Path(tree.root).name}/home/x")
