"""Opening beneath a folder: by the kernel, and by the walk of systems without openat2."""

import errno
import os
import socket

import pytest

from dlcloud.local.tree import beneath

SECRET = b"of the machine"


@pytest.fixture(params=["kernel", "walk"], autouse=True)
def _way(request, monkeypatch):
    if request.param == "walk":
        monkeypatch.setattr(beneath, "has_openat2", lambda: False)
    elif not beneath.has_openat2():
        pytest.skip("no openat2 here")


@pytest.fixture
def outside(tmp_path):
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret").write_bytes(SECRET)
    return path


@pytest.fixture
def tree(tmp_path):
    """A folder with a file of its own, and its descriptor."""
    path = tmp_path / "tree"
    (path / "etc/ssh").mkdir(parents=True)
    (path / "etc/ssh/key").write_bytes(b"own")
    return path


def read(tree, path, **options):
    root = beneath.open_root(tree)
    try:
        descriptor = beneath.open_file(root, path, **options)
    finally:
        os.close(root)
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read()


@pytest.mark.parametrize("path", ["etc/ssh/key", "/etc/ssh/key", "etc/./ssh//key", "etc/ssh/../ssh/key"])
def test_a_file_is_opened(tree, path):
    assert read(tree, path) == read(tree, path, follow=True) == b"own"


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("etc/link", "{outside}/secret"),
        ("etc/link", "../../outside/secret"),
        ("etc/link", "/proc/self/root{outside}/secret"),
        ("etc/folder", "{outside}"),
        ("etc/folder", "../../outside"),
        ("etc/loop", "loop"),
    ],
)
@pytest.mark.parametrize("follow", [False, True])
def test_no_link_leads_out(tree, outside, name, target, follow):
    (tree / name).symlink_to(target.format(outside=outside))
    for path in (name, f"{name}/secret"):
        with pytest.raises(OSError, match=r"No such|links|directory"):
            read(tree, path, follow=follow)


@pytest.mark.usefixtures("outside")
def test_dots_do_not_lead_out(tree):
    with pytest.raises(OSError, match="cross-device"):
        read(tree, "../outside/secret")
    with pytest.raises(FileNotFoundError):
        read(tree, "../outside/secret", follow=True)


def test_links_lead_where_they_do_inside(tree):
    (tree / "lib").symlink_to("/etc/ssh")
    (tree / "etc/up").symlink_to("../../../etc/ssh/key")
    (tree / "chain").symlink_to("lib/../up")
    for path in ("lib/key", "etc/up", "chain"):
        assert read(tree, path, follow=True) == b"own"
        with pytest.raises(OSError, match="links"):
            read(tree, path)


def test_what_is_no_file_is_refused_at_once(tree, monkeypatch):
    os.mkfifo(tree / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tree)
        listener.bind("socket")
    for name in ("fifo", "socket", "etc"):
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
            with pytest.raises(OSError, match="not a regular file"):
                read(tree, name, flags=flags)


def test_a_new_file_takes_no_links_place(tree, outside):
    (tree / "etc/link").symlink_to(outside / "new")
    root = beneath.open_root(tree)
    try:
        with pytest.raises(OSError, match="links"):
            beneath.open_file(root, "etc/link", os.O_WRONLY | os.O_CREAT)
        os.close(beneath.open_file(root, "etc/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o640))
    finally:
        os.close(root)
    assert (tree / "etc/new").stat().st_mode & 0o777 == 0o640
    assert not (outside / "new").exists()


def test_a_further_name_of_someone_elses_file_is_refused(tree, outside):
    os.link(outside / "secret", tree / "etc/hard")
    assert read(tree, "etc/hard") == SECRET
    with pytest.raises(OSError, match="another user") as caught:
        read(tree, "etc/hard", owners=range(os.getuid() + 1, os.getuid() + 9))
    assert caught.value.errno == errno.EPERM
    assert read(tree, "etc/ssh/key", owners=range(os.getuid(), os.getuid() + 9)) == b"own"
    # Whoever removes the other name after the file was opened gains nothing.
    (outside / "secret").rename(tree / "etc/hard")
    with pytest.raises(OSError, match="another user"):
        read(tree, "etc/hard", owners=range(os.getuid() + 1, os.getuid() + 9))


def test_the_way_back_is_the_way_that_was_taken(tree, outside):
    """`..` after a folder that was moved out meanwhile leads to where it was, not to where it is."""
    folders = [os.open(tree, os.O_RDONLY), os.open(tree / "etc", os.O_RDONLY)]
    (tree / "etc").rename(outside / "etc")
    beneath._leave(folders, "", follow=True)
    assert os.fstat(folders[-1]).st_ino == tree.stat().st_ino
    os.close(folders[0])


def test_only_the_device_that_is_meant_is_opened(tree):
    root = beneath.open_root(tree)
    (tree / "dev").symlink_to("/dev")
    try:
        for path in ("etc/ssh/key", "dev/null"):
            with pytest.raises(OSError, match=r"another kind|links"):
                beneath.open_device(root, path, os.makedev(1, 3), os.O_RDWR)
    finally:
        os.close(root)
    root = beneath.open_root(beneath.Path("/"))
    try:
        os.close(beneath.open_device(root, "dev/null", os.makedev(1, 3), os.O_RDWR))
    finally:
        os.close(root)
