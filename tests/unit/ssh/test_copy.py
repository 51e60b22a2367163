"""Trees sent, bytes sent, files fetched; and what a hostile instance may not do."""

import os
import stat
import tarfile
from types import SimpleNamespace

import pytest

from dlcloud.model.errors import RecipeError, RemoteCommandError, UnreachableError
from dlcloud.model.globs import matches
from dlcloud.ssh import copy, fetch
from dlcloud.ssh.listing import list_entries
from tests.needs import needs
from tests.unit.ssh.test_hostile_copies import archive, member

pytestmark = needs("find", "tar")

ODD = ["a b.txt", 'it\'s "quoted" $HOME `x`.txt', "-rf", "ü/日本.txt", "back\\slash", "new\nline", "*?[x]"]


def content(folder):
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def tree(tmp_path):
    source = tmp_path / "source"
    for name in ODD:
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return source


@pytest.mark.parametrize("compress", [False, True])
def test_a_tree_with_odd_names_arrives_and_comes_home(connection, host, tree, tmp_path, compress):
    target = "odd 'folder' $x"
    copy.send_tree(connection, tree, target, only=None, compress=compress)
    assert content(host.root / "home" / target) == content(tree)
    home = tmp_path / "home"
    fetched = fetch.fetch_files(connection, target, ["**"], home, compress=compress)
    assert content(home) == content(tree)
    assert sorted(fetched) == sorted(home / name for name in ODD)


def test_five_hundred_small_files(connection, host, tmp_path):
    source = tmp_path / "many"
    for number in range(500):
        path = source / f"folder {number % 7}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(number))
    connection.send_tree(source, "many")
    assert content(host.root / "home/many") == content(source)
    fetched = connection.fetch_files("many", ["folder 3/*.txt"], tmp_path / "home")
    assert {path.name for path in fetched} == {f"{number}.txt" for number in range(3, 500, 7)}
    assert len(host.sent) == 3  # one to send; one to list and one to fetch


def test_a_single_file_goes_into_the_folder(connection, host, tmp_path):
    (tmp_path / "run.sh").write_text("echo hi")
    (tmp_path / "run.sh").chmod(0o755)
    connection.send_tree(tmp_path / "run.sh", "bin/deep")
    sent = host.root / "home/bin/deep/run.sh"
    assert (sent.read_text(), stat.S_IMODE(sent.stat().st_mode)) == ("echo hi", 0o755)


def test_caches_and_history_stay_and_only_chooses(connection, host, tmp_path):
    source = tmp_path / "code"
    for name in ["a.py", "data.bin", "sub/b.py", "__pycache__/a.pyc", "sub/__pycache__/b.pyc", ".git/HEAD"]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    connection.send_tree(source, "code", only=lambda path: path.suffix == ".py")
    assert list(content(host.root / "home/code")) == ["a.py", "sub/b.py"]


def test_links_inside_stay_links(connection, host, tmp_path):
    source = tmp_path / "linked"
    (source / "sub").mkdir(parents=True)
    (source / "sub/real.txt").write_text("real")
    (source / "alias.txt").symlink_to("sub/real.txt")
    (source / "dangling").symlink_to("later.txt")
    os.link(source / "sub/real.txt", source / "twin.txt")
    connection.send_tree(source, "linked")
    sent = host.root / "home/linked"
    assert (sent / "alias.txt").readlink().as_posix() == "sub/real.txt"
    assert (sent / "alias.txt").read_text() == (sent / "twin.txt").read_text() == "real"


@pytest.mark.parametrize("leads_to", ["../outside", "/etc/passwd", "sub/../../outside", "deep/up/../.."])
def test_a_link_that_leads_out_is_refused_before_anything_is_sent(connection, host, tmp_path, leads_to):
    source = tmp_path / "escaping"
    (source / "sub").mkdir(parents=True)
    (source / "deep").mkdir()
    (source / "deep/up").symlink_to("../sub")
    (source / "link").symlink_to(leads_to)
    with pytest.raises(RecipeError, match="leads out of"):
        connection.send_tree(source, "escaping")
    assert host.sent == []


def test_a_pipe_is_not_sent_and_a_missing_source_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert list_entries(tmp_path) == []
    with pytest.raises(RecipeError, match="no such file or folder"):
        list_entries(tmp_path / "missing")


def test_a_file_that_vanishes_while_it_is_sent_is_an_error(connection, tmp_path):
    source = tmp_path / "going"
    source.mkdir()
    (source / "a").write_text("a")
    (source / "b").write_text("b")

    def vanish(path):
        (source / "b").unlink() if path.name == "b" else None
        return True

    with pytest.raises(RecipeError, match="cannot send"):
        connection.send_tree(source, "going", only=vanish)
    assert connection.check("echo on") == b"on\n"


def test_an_instance_that_cannot_unpack_says_why(connection, host, tree):
    (host.root / "home/taken").write_text("a file")
    with pytest.raises(RemoteCommandError, match="taken"):
        connection.send_tree(tree, "taken")


def test_bytes_arrive_whole_with_their_mode(connection, host):
    target = host.root / "home/new folder/it's"
    connection.send_bytes(b"one", "new folder/it's")
    assert (target.read_bytes(), stat.S_IMODE(target.stat().st_mode)) == (b"one", 0o644)
    large = os.urandom(3 << 20)
    connection.send_bytes(large, str(target), mode=0o600)
    assert (target.read_bytes(), stat.S_IMODE(target.stat().st_mode)) == (large, 0o600)
    assert [path.name for path in target.parent.iterdir()] == ["it's"]


def test_bytes_that_do_not_arrive_whole_leave_the_old_file(connection, host):
    connection.send_bytes(b"old", "settings")

    def too_slow(command):
        if "settings" in command:
            host.loop.loop.call_later(0.02, host._cut)

    host.before = too_slow
    with pytest.raises(UnreachableError):
        connection.send_bytes(bytes(256 << 20), "settings")
    assert (host.root / "home/settings").read_bytes() == b"old"


def test_bytes_onto_a_folder_are_refused(connection, host):
    (host.root / "home/folder").mkdir()
    with pytest.raises(RemoteCommandError):
        connection.send_bytes(b"x", "folder")
    assert list((host.root / "home/folder").iterdir()) == []


def test_matching_files_are_fetched_and_no_match_is_no_error(connection, host, tmp_path):
    for name in ["a.json", "sub/b.json", "sub/deep/c.json", "d.log"]:
        path = host.root / "home/results" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    home = tmp_path / "home"
    assert connection.fetch_files("results", ["*.csv", "none/**"], home) == []
    assert connection.fetch_files("results", ["*.json"], home) == [home / "a.json"]
    assert connection.fetch_files("results", ["**/*.json", "./d.log"], home) == [
        home / name for name in ["a.json", "d.log", "sub/b.json", "sub/deep/c.json"]
    ]
    with pytest.raises(RemoteCommandError, match="nowhere"):
        connection.fetch_files("nowhere", ["*"], home)


def test_files_that_the_instance_listed_are_fetched_with_links_and_odd_names(connection, host, tmp_path):
    folder = host.root / "home/run"
    (folder / "out").mkdir(parents=True)
    names = ["out/5.ckpt", "metrics [1].json", "a\nb", "-x", "caf\udce9"]
    for name in names:
        (folder / name).write_bytes(os.fsencode(name))
    (folder / "out/last.ckpt").symlink_to("5.ckpt")
    sizes = dict.fromkeys([*names, "out/last.ckpt", "vanished"], 10)
    fetched = connection.fetch_listed("run", sizes, tmp_path)
    assert fetched.left == {"vanished": "it is gone"}
    assert [os.fsdecode(path.read_bytes()) for path in fetched.paths] == [*names, "out/5.ckpt"]
    assert not (tmp_path / "out/last.ckpt").is_symlink()
    assert connection.fetch_listed("run", {}, tmp_path).paths == []


def test_a_file_too_large_for_the_disk_does_not_stop_the_others(connection, host, tmp_path, monkeypatch):
    folder = host.root / "home/run"
    folder.mkdir(parents=True)
    for name, size in [("a", 10), ("large", 5000), ("z", 10)]:
        (folder / name).write_bytes(b"x" * size)
    free = SimpleNamespace(free=fetch.KEPT_FREE + 1000)
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: free)
    fetched = connection.fetch_listed("run", {"a": 10, "large": 5000, "z": 10}, tmp_path)
    assert [path.name for path in fetched.paths] == ["a", "z"]
    assert "'large' has 5000 bytes, and 980 are free" in fetched.left["large"]


def test_a_file_with_two_names_comes_home_twice(connection, host, tmp_path):
    folder = host.root / "home/results"
    folder.mkdir()
    (folder / "a").write_text("same")
    os.link(folder / "a", folder / "b")
    assert [path.read_text() for path in connection.fetch_files("results", ["*"], tmp_path / "home")] == [
        "same"
    ] * 2


def test_a_file_that_vanishes_before_it_is_fetched_is_an_error(connection, host, tmp_path):
    folder = host.root / "home/results"
    folder.mkdir()
    (folder / "a").write_text("a")
    (folder / "b").write_text("b")
    host.before = lambda command: (folder / "b").unlink() if "tar" in command else None
    with pytest.raises(RemoteCommandError, match="b"):
        connection.fetch_files("results", ["*"], tmp_path / "home")


HOSTILE = {
    "parent": [member("../../evil", size=3)],
    "absolute": [member("/tmp/dlcloud-evil", size=3)],
    "symlink": [member("./wanted", tarfile.SYMTYPE, linkname="/etc")],
    "hardlink": [member("./wanted", tarfile.LNKTYPE, linkname="../../evil")],
    "device": [member("./wanted", tarfile.CHRTYPE)],
    "pipe": [member("./wanted", tarfile.FIFOTYPE)],
    "unasked": [member("./wanted"), member("./.bashrc", size=3)],
    "no archive": None,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused(connection, host, tmp_path, kind):
    (host.root / "home/results").mkdir()
    (host.root / "home/results/wanted").write_text("x")
    evil = os.urandom(4 << 20) if HOSTILE[kind] is None else archive(*HOSTILE[kind])
    (host.root / "evil.tar").write_bytes(evil)
    host.replace("tar", 'cat "$DLCLOUD_ROOT/evil.tar"')
    home = tmp_path / "far" / "home"
    with pytest.raises(RemoteCommandError, match=r"not requested|not a tar archive"):
        connection.fetch_files("results", ["*"], home)
    assert set(content(tmp_path / "far")) <= {"home/wanted"}
    assert not any(path.is_symlink() for path in home.rglob("*"))


def test_a_hostile_listing_is_refused(connection, host, tmp_path):
    (host.root / "home/results").mkdir()
    host.replace("find", r"printf './ok\0./../../evil\0'")
    with pytest.raises(RemoteCommandError, match="not requested"):
        connection.fetch_files("results", ["**"], tmp_path / "home")
    assert len(host.sent) == 1


def test_a_connection_that_breaks_while_files_come_home(connection, host, tmp_path):
    (host.root / "home/results").mkdir()
    (host.root / "home/results/a").write_text("a")
    host.replace("tar", "exec sleep 30")
    host.before = lambda command: host.loop.loop.call_later(0.1, host._cut) if "tar" in command else None
    with pytest.raises(UnreachableError, match="the connection broke"):
        connection.fetch_files("results", ["*"], tmp_path / "home")


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("a.json", "*.json", True),
        ("sub/a.json", "*.json", False),
        ("sub/a.json", "**/*.json", True),
        ("a.json", "**/*.json", True),
        ("a/b/c.json", "a/**", True),
        ("a/b/c.json", "a/*/c.json", True),
        ("b/c.json", "a/**", False),
        ("A.json", "a.json", False),
        ("run-3.json", "run-[0-9].json", True),
    ],
)
def test_patterns(name, pattern, expected):
    assert matches(name, [pattern]) is expected


def test_files_of_known_names_are_fetched_without_listing_the_folder(connection, host, tmp_path):
    folder = host.root / "home" / "results"
    (folder / "inner").mkdir(parents=True)
    (folder / "log").write_text("a line\n")
    (folder / "inner" / "it's one.txt").write_text("inner")
    (folder / "folder").mkdir()
    (folder / "link").symlink_to("log")
    names = ["log", "missing", "inner/it's one.txt", "folder", "link", "./log"]
    before = len(host.sent)
    fetched = connection.fetch_files("results", names, tmp_path / "home")
    assert len(host.sent) == before + 1
    assert content(tmp_path / "home") == {"log": b"a line\n", "inner/it's one.txt": b"inner"}
    assert sorted(path.name for path in fetched) == ["it's one.txt", "log"]
    assert connection.fetch_files("results", ["none"], tmp_path / "home") == []
