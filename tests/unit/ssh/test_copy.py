"""Trees sent, bytes sent, files fetched; an instance that sends what no tar would gets nowhere."""

import gzip
import io
import os
import shutil
import stat
import tarfile
from random import Random
from types import SimpleNamespace

import pytest

from dlcloud.model.errors import DlcloudError, RecipeError, RemoteCommandError, StoreError, UnreachableError
from dlcloud.model.globs import matches
from dlcloud.ssh import copy, fetch
from dlcloud.ssh.listing import list_entries
from tests.needs import needs

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
    with pytest.raises(RemoteCommandError):
        connection.send_bytes(b"x", "new folder")
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


@pytest.fixture
def results(host):
    """The folder of results on the instance, and what writes files with their names there."""

    def write(*names):
        for name in names:
            path = host.root / "home/results" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        return host.root / "home/results"

    return write


def test_matching_files_are_fetched_and_no_match_is_no_error(connection, results, tmp_path, monkeypatch):
    folder = results("a.json", "sub/b.json", "sub/deep/c.json", "d.log")
    os.link(folder / "d.log", folder / "twin.log")
    home = tmp_path / "home"
    assert connection.fetch_files("results", ["*.csv", "none/**"], home) == []
    assert connection.fetch_files("results", ["*.json"], home) == [home / "a.json"]
    assert connection.fetch_files("results", ["**/*.json", "./d.log"], home) == [
        home / name for name in ["a.json", "d.log", "sub/b.json", "sub/deep/c.json"]
    ]
    assert [path.read_text() for path in connection.fetch_files("results", ["*.log"], home)] == ["d.log"] * 2
    with pytest.raises(RemoteCommandError, match="nowhere"):
        connection.fetch_files("nowhere", ["*"], home)
    monkeypatch.setattr(fetch, "MOST_FILES", 1)
    with pytest.raises(RemoteCommandError, match="2 files match in results; at most 1"):
        connection.fetch_files("results", ["*.log"], home)


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


def test_a_file_that_vanishes_before_it_is_fetched_is_an_error(connection, host, results, tmp_path):
    folder = results("a", "b")
    host.before = lambda command: (folder / "b").unlink() if "tar" in command else None
    with pytest.raises(RemoteCommandError, match="b"):
        connection.fetch_files("results", ["*"], tmp_path / "home")


def test_a_hostile_listing_is_refused(connection, host, results, tmp_path):
    results("ok")
    host.replace("find", r"printf './ok\0./../../evil\0'")
    with pytest.raises(RemoteCommandError, match="not requested"):
        connection.fetch_files("results", ["**"], tmp_path / "home")
    assert len(host.sent) == 1


def test_a_connection_that_breaks_while_files_come_home(connection, host, results, tmp_path):
    results("a")
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


def test_files_of_known_names_are_fetched_without_listing_the_folder(connection, host, results, tmp_path):
    folder = results("log", "inner/it's one.txt", "folder/x")
    (folder / "link").symlink_to("log")
    names = ["log", "missing", "inner/it's one.txt", "folder", "link", "./log"]
    before = len(host.sent)
    fetched = connection.fetch_files("results", names, tmp_path / "home")
    assert len(host.sent) == before + 1
    assert content(tmp_path / "home") == {name: name.encode() for name in ("log", "inner/it's one.txt")}
    assert sorted(path.name for path in fetched) == ["it's one.txt", "log"]
    assert connection.fetch_files("results", ["none"], tmp_path / "home") == []


SEED = int(os.environ.get("DLCLOUD_FUZZ_SEED") or Random().randrange(10_000))
ROUNDS = int(os.environ.get("DLCLOUD_FUZZ", "0")) // 100 or 15


@pytest.fixture
def send(host, connection, results, tmp_path):
    """Return what lets the instance answer with bytes, and fetches them."""
    results("wanted", "second")
    host.replace("tar", 'cat "$DLCLOUD_ROOT/evil.tar"')

    def fetch_sent(answer, *, compress=False):
        (host.root / "evil.tar").write_bytes(gzip.compress(answer) if compress else answer)
        return fetch.fetch_files(connection, "results", ["*"], tmp_path / "far/home", compress=compress)

    return fetch_sent


def archive(*members, form=tarfile.GNU_FORMAT):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for info in members:
            tar.addfile(info, io.BytesIO(bytes(min(info.size, 100))) if info.size else None)
    return stream.getvalue()


def member(name="./wanted", kind=tarfile.REGTYPE, size=0, **other):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    for key, value in other.items():
        setattr(info, key, value)
    return info


def header(**values):
    return member(**values).tobuf(tarfile.GNU_FORMAT)


REFUSED = {
    "parent": archive(member("../../evil", size=3)),
    "absolute": archive(member("/tmp/dlcloud-evil", size=3)),
    "symlink": archive(member("./wanted", tarfile.SYMTYPE, linkname="/etc")),
    "hardlink": archive(member("./wanted", tarfile.LNKTYPE, linkname="../../evil")),
    "device": archive(member("./wanted", tarfile.CHRTYPE)),
    "pipe": archive(member("./wanted", tarfile.FIFOTYPE)),
    "unasked": archive(member("./wanted"), member("./.bashrc", size=3)),
    "no archive": os.urandom(4 << 20),
    "a sparse file": archive(member(kind=tarfile.GNUTYPE_SPARSE, size=0)),
    "a name twice": archive(member(), member()),
    "a negative size": header(size=-(1 << 60)) + bytes(1024),
    "a long name without an end": header(kind=tarfile.GNUTYPE_LONGNAME, size=1 << 60) + b"a" * 100_000,
    "a header of a petabyte": header(kind=tarfile.XHDTYPE, size=1 << 50) + b"a" * 100_000,
    "a sparse file by headers": archive(
        member(
            pax_headers={
                "GNU.sparse.size": str(1 << 50),
                "GNU.sparse.map": "0,1",
                "GNU.sparse.name": "wanted",
            }
        ),
        form=tarfile.PAX_FORMAT,
    ),
    "a name by headers": archive(
        member(pax_headers={"path": "../../../evil"}, name="./wanted"), form=tarfile.PAX_FORMAT
    ),
    "an archive without an end": archive(member(), member("./second")) + bytes(3 << 20),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_no_tar_would_send_is_refused(send, tmp_path, kind):
    with pytest.raises(RemoteCommandError, match="i-0abc"):
        send(REFUSED[kind])
    assert {path.name for path in (tmp_path / "far").rglob("*")} <= {"home", "wanted", "second"}
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("mtime", ["1e300", "inf", "nan", "-1e300", "99999999999999999999"])
def test_impossible_times_and_wide_modes_of_files_are_ignored(send, mtime):
    odd = member(pax_headers={"mtime": mtime}, mode=0o6777)
    wanted, _ = send(archive(odd, member("./second", uid=0, gid=0), form=tarfile.PAX_FORMAT))
    assert stat.S_IMODE(wanted.stat().st_mode) & 0o7022 == 0


@pytest.mark.parametrize("compress", [False, True])
def test_a_file_larger_than_the_disk_is_refused_before_it_is_written(send, tmp_path, compress):
    with pytest.raises(
        StoreError, match=r"'wanted' has \d+ bytes, and \d+ are free at .* beyond the 64 MiB"
    ) as caught:
        send(header(size=1 << 60) + bytes(100_000), compress=compress)
    assert "keep.files" in caught.value.hint
    assert not [path for path in (tmp_path / "far").rglob("*") if path.is_file()]


def test_damaged_archives_are_refused_or_read_and_stay_inside(send, tmp_path):
    random = Random(SEED)
    whole = archive(
        member(size=100),
        member("./second", pax_headers={"comment": "x" * 700, "mtime": "1.5"}),
        form=tarfile.PAX_FORMAT,
    )
    for number in range(ROUNDS):
        sent = bytearray(whole)
        for _ in range(random.choice([1, 3, 30])):
            sent[random.randrange(len(sent))] = random.randrange(256)
        try:
            send(bytes(sent))
        except DlcloudError:
            pass
        except Exception as error:
            raise AssertionError(f"DLCLOUD_FUZZ_SEED={SEED}, round {number}") from error
        assert {path.name for path in tmp_path.glob("far/*")} <= {"home"}
        shutil.rmtree(tmp_path / "far", ignore_errors=True)
