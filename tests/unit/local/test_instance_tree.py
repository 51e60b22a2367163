"""What the daemon does in the folder of an instance, where programs have put links and worse."""

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from dlcloud.local.instance.cloudinit import read_console
from dlcloud.local.instance.isolation import Isolation, Level, share_cache
from dlcloud.local.tree import beneath
from dlcloud.local.tree.beneath import give
from dlcloud.local.tree.copies import TreeCopy
from dlcloud.local.tree.instance_tree import InstanceTree, remove_tree

ORDINARY = 4242
OTHERS = range(os.getuid() + 1, os.getuid() + 9)
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
    (root / "etc/ssh/key").write_text("own")
    return InstanceTree(root)


def states(folder):
    return {
        path: (path.lstat().st_uid, path.lstat().st_mode, path.lstat().st_ctime_ns)
        for path in (folder, *folder.rglob("*"))
    }


@pytest.fixture(params=["kernel", "walk"])
def opened(request, monkeypatch, tree):
    """The folder's descriptor: files are opened by the kernel, and by the walk of systems without openat2."""
    if request.param == "walk":
        monkeypatch.setattr(beneath, "has_openat2", lambda: False)
    elif not beneath.has_openat2():
        pytest.skip("no openat2 here")
    root = beneath.open_root(tree.root)
    yield root
    os.close(root)


def read(root, path, **options):
    with os.fdopen(beneath.open_file(root, path, **options), "rb") as stream:
        return stream.read().decode()


@pytest.mark.parametrize("path", ["etc/ssh/key", "/etc/ssh/key", "etc/./ssh//key", "etc/ssh/../ssh/key"])
def test_a_file_is_opened(opened, path):
    assert read(opened, path) == read(opened, path, follow=True) == "own"


@pytest.mark.parametrize(
    "target",
    [
        *("{outside}/secret", "../../outside/secret", "/proc/self/root{outside}/secret"),
        *("{outside}", "../../outside", "link"),
    ],
)
@pytest.mark.parametrize("follow", [False, True])
def test_no_link_leads_out(opened, tree, outside, target, follow):
    (tree.root / "etc/link").symlink_to(target.format(outside=outside))
    for path in ("etc/link", "etc/link/secret"):
        with pytest.raises(OSError, match=r"No such|links|directory"):
            read(opened, path, follow=follow)


@pytest.mark.usefixtures("outside")
def test_dots_do_not_lead_out(opened):
    with pytest.raises(OSError, match="cross-device"):
        read(opened, "../outside/secret")
    with pytest.raises(FileNotFoundError):
        read(opened, "../outside/secret", follow=True)


def test_links_lead_where_they_do_inside(opened, tree):
    (tree.root / "usr").symlink_to("/etc/ssh")
    (tree.root / "etc/up").symlink_to("../../../etc/ssh/key")
    (tree.root / "chain").symlink_to("usr/../up")
    for path in ("usr/key", "etc/up", "chain"):
        assert read(opened, path, follow=True) == "own"
        with pytest.raises(OSError, match="links"):
            read(opened, path)


def test_what_is_no_file_is_refused_at_once(opened, tree, monkeypatch):
    os.mkfifo(tree.root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tree.root)
        listener.bind("socket")
    for name in ("fifo", "socket", "etc"):
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
            with pytest.raises(OSError, match="not a regular file"):
                read(opened, name, flags=flags)


def test_a_new_file_takes_no_links_place(opened, tree, outside):
    (tree.root / "etc/link").symlink_to(outside / "new")
    with pytest.raises(OSError, match="links"):
        beneath.open_file(opened, "etc/link", os.O_WRONLY | os.O_CREAT)
    os.close(beneath.open_file(opened, "etc/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o640))
    assert (tree.root / "etc/new").stat().st_mode & 0o777 == 0o640
    assert not (outside / "new").exists()


def test_a_further_name_of_someone_elses_file_is_refused(opened, tree, outside):
    os.link(outside / "secret", tree.root / "etc/hard")
    assert read(opened, "etc/hard") == SECRET
    with pytest.raises(OSError, match="another user") as caught:
        read(opened, "etc/hard", owners=OTHERS)
    assert caught.value.errno == errno.EPERM
    assert read(opened, "etc/ssh/key", owners=range(os.getuid(), os.getuid() + 9)) == "own"
    # Whoever removes the other name after the file was opened gains nothing.
    (outside / "secret").rename(tree.root / "etc/hard")
    with pytest.raises(OSError, match="another user"):
        read(opened, "etc/hard", owners=OTHERS)


def test_the_way_back_is_the_way_that_was_taken(tree, outside):
    """`..` after a folder that was moved out meanwhile leads to where it was, not to where it is."""
    folders = [os.open(path, os.O_RDONLY) for path in (tree.root, tree.root / "etc")]
    (tree.root / "etc").rename(outside / "etc")
    beneath._leave(folders, "", follow=True)
    assert os.fstat(folders[-1]).st_ino == tree.root.stat().st_ino
    os.close(folders[0])


def test_only_the_device_that_is_meant_is_opened(opened, tree):
    (tree.root / "dev").symlink_to("/dev")
    null = os.makedev(1, 3)
    for path in ("etc/ssh/key", "dev/null"):
        with pytest.raises(OSError, match=r"another kind|links"):
            beneath.open_device(opened, path, null, os.O_RDWR)
    machine = beneath.open_root(Path("/"))
    try:
        os.close(beneath.open_device(machine, "dev/null", null, os.O_RDWR))
    finally:
        os.close(machine)


@as_root
@pytest.mark.parametrize("filled_by", [0, ORDINARY])
def test_the_cache_is_given_to_the_instances_and_not_what_its_links_lead_to(tmp_path, outside, filled_by):
    cache = tmp_path / "cache"
    (cache / "pip/http").mkdir(parents=True)
    (cache / "dlcloud/environments/key/bin").mkdir(parents=True)
    own = list(cache.rglob("*"))
    for link in ("x", "pip/x", "pip/http/x"):
        (cache / link).symlink_to(outside)
        (cache / f"{link}-up").symlink_to("../" * 3 + "outside")
    os.link(outside / "secret", cache / "hard")
    before = states(outside)
    os.chown(cache, filled_by, filled_by)
    share_cache(cache, Isolation(level=Level.USER, owner=ORDINARY))
    assert states(outside) == before
    assert {path.lstat().st_uid for path in (cache, cache / "x", *own)} == {ORDINARY}


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


def test_the_console_follows_links_within_the_instance_and_waits_for_nothing(tree, outside):
    (tree.root / "var/log").rmdir()
    (tree.root / "var/log").symlink_to("/run/log")
    (tree.root / "run/log").mkdir()
    (tree.root / "run/log/cloud-init-output.log").write_text("booted\n")
    assert "booted\n" in read_console(tree)
    for name in ("lib/cloud-init-result", LOG):
        for put in (lambda path: path.symlink_to(outside / "secret"), os.mkfifo):
            (tree.root / name).unlink(missing_ok=True)
            put(tree.root / name)
            assert SECRET not in read_console(tree)


def test_what_is_no_file_or_beyond_the_limit_is_refused(tree):
    with (tree.root / "home/.ssh/authorized_keys").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(OSError, match="too large"):
        tree.read("home/.ssh/authorized_keys")
    assert tree.read_end("home/.ssh/authorized_keys", 4) == bytes(4)
    with pytest.raises(OSError, match="not a regular file"):
        tree.read("home/.ssh")
    assert stat.S_ISDIR(tree.state("home/.ssh").st_mode)
    assert (tree.names("home"), tree.names("home/.ssh/x")) == ([".ssh"], [])
    assert not tree.exists(f"../{tree.root.name}/home/x")


def test_what_is_written_replaces_links_and_changes_nothing_outside(tree, outside):
    before = states(outside)
    for path in ("home/.ssh", "etc/ssh", "run/nologin"):
        tree.remove(path)
        (tree.root / path).symlink_to(outside)
    tree.make_folder("home/.ssh")
    tree.write("etc/ssh/ssh_host_key", b"key", mode=0o600)
    tree.write("run/nologin", b"")
    tree.remove("var/log")
    tree.link("var/log", "/run")
    tree.link("var/log", "/run/other")
    assert states(outside) == before
    assert (tree.root / "etc/ssh/ssh_host_key").read_bytes() == b"key"
    assert not (tree.root / "etc/ssh").is_symlink()
    assert (tree.root / "etc/ssh/ssh_host_key").stat().st_mode & 0o777 == 0o600
    assert (tree.root / "home/.ssh").stat().st_mode & 0o777 == 0o755
    assert tree.is_link("var/log")


def test_a_file_takes_the_place_of_a_folder_that_is_too_deep_for_recursion(tree):
    folder = os.open(tree.root / "run", os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("nologin", dir_fd=folder)
        below = os.open("nologin", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    tree.write("run/nologin", b"x")
    assert tree.read("run/nologin") == b"x"


@pytest.mark.parametrize("path", ["", ".", "..", "etc/..", "../x", "etc/../../x"])
def test_a_path_that_is_none_below_the_folder_is_not_written(tree, path):
    with pytest.raises(OSError, match="not a path below"):
        tree.write(path, b"x")


def test_a_file_is_updated_in_place_and_links_are_not(tree, outside):
    hosts = tree.root / "etc/hosts"
    hosts.write_text("longer than before\n")
    inode = hosts.stat().st_ino
    tree.update("etc/hosts", lambda content: content[:6] + b"\n")
    assert (hosts.read_text(), hosts.stat().st_ino) == ("longer\n", inode)
    hosts.unlink()
    hosts.symlink_to(outside / "secret")
    with pytest.raises(OSError, match="links"):
        tree.update("etc/hosts", lambda _: b"")


def test_a_copy_keeps_what_cp_keeps(tree, outside, tmp_path):
    root, target = tree.root, tmp_path / "copy"
    (root / "etc/file").write_text("content")
    (root / "etc/file").chmod(0o4751)
    os.link(root / "etc/file", root / "home/hard")
    (root / "home/link").symlink_to(outside / "secret")
    (root / "home/folder").symlink_to(outside)
    os.mkfifo(root / "run/fifo")
    with (root / "var/sparse").open("wb") as stream:
        stream.seek(1 << 30)
        stream.write(b"end")
    (root / "home/.ssh").chmod(0o500)
    os.utime(root / "etc", (1, 2))
    target.mkdir()
    TreeCopy(source=root, target=target, leaves_out=("lib", "home/none")).run()
    assert not (target / "lib").exists()
    assert (target / "etc/file").stat().st_mode & 0o7777 == 0o4751
    assert (target / "home/hard").stat().st_ino == (target / "etc/file").stat().st_ino
    assert (target / "home/link").readlink() == outside / "secret"
    assert stat.S_ISFIFO((target / "run/fifo").stat().st_mode)
    assert (target / "var/sparse").stat().st_blocks < 100
    with (target / "var/sparse").open("rb") as stream:
        stream.seek(1 << 30)
        assert stream.read() == b"end"
    assert (target / "home/.ssh").stat().st_mode & 0o777 == 0o500
    assert (target / "etc").stat().st_mtime == 2


@as_root
def test_a_copy_leaves_out_files_of_others(tree, outside, tmp_path):
    os.link(outside / "secret", tree.root / "home/hard")
    (tmp_path / "copy").mkdir()
    TreeCopy(source=tree.root, target=tmp_path / "copy", owners=range(ORDINARY, ORDINARY + 1)).run()
    assert not (tmp_path / "copy/home/hard").exists()


def test_folders_that_programs_have_closed_are_removed(tmp_path):
    folder = tmp_path / "i-1/closed/deeper"
    folder.mkdir(parents=True)
    (folder / "file").touch()
    for path in (folder, folder.parent):
        path.chmod(0)
    assert remove_tree(tmp_path / "i-1")
    assert not (tmp_path / "i-1").exists()
