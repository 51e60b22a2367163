"""An instance that sends what no tar would: nothing leaves the folder, fills memory or disk, or runs on."""

import gzip
import io
import os
import shutil
import stat
import tarfile
from random import Random

import pytest

from dlcloud.model.errors import DlcloudError, RemoteCommandError, StoreError
from dlcloud.ssh import connection as connections
from dlcloud.ssh import fetch
from tests.needs import needs

pytestmark = needs("find", "tar")

WANTED = ["results/wanted", "results/second"]
SEED = int(os.environ.get("DLCLOUD_FUZZ_SEED") or Random().randrange(10_000))
ROUNDS = int(os.environ.get("DLCLOUD_FUZZ", "0")) // 100 or 15


@pytest.fixture
def send(host, connection, tmp_path):
    """Return what lets the instance answer with bytes, and fetches them."""
    for name in WANTED:
        (host.root / "home" / name).parent.mkdir(exist_ok=True)
        (host.root / "home" / name).write_text("x")
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
    with pytest.raises(RemoteCommandError):
        send(REFUSED[kind])
    assert {path.name for path in (tmp_path / "far").rglob("*")} <= {"home", "wanted", "second"}


@pytest.mark.parametrize("compress", [False, True])
def test_a_file_larger_than_the_disk_is_refused_before_it_is_written(send, tmp_path, compress):
    with pytest.raises(
        StoreError, match=r"'wanted' has \d+ bytes, and \d+ are free at .* beyond the 64 MiB"
    ) as caught:
        send(header(size=1 << 60) + bytes(100_000), compress=compress)
    assert "keep.files" in caught.value.hint
    assert not [path for path in (tmp_path / "far").rglob("*") if path.is_file()]


@pytest.mark.parametrize("mtime", ["1e300", "inf", "nan", "-1e300", "99999999999999999999"])
def test_an_impossible_time_of_a_file_is_ignored(send, mtime):
    sent = archive(member(pax_headers={"mtime": mtime}), member("./second"), form=tarfile.PAX_FORMAT)
    assert len(send(sent)) == 2


def test_a_file_is_never_for_others_to_write_or_to_run_as_another_user(send):
    (wanted, *_) = send(archive(member(mode=0o6777), member("./second", uid=0, gid=0)))
    assert stat.S_IMODE(wanted.stat().st_mode) & 0o7022 == 0


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


def test_more_names_than_any_run_has_are_refused(monkeypatch, send):
    monkeypatch.setattr(fetch, "MOST_FILES", 1)
    with pytest.raises(RemoteCommandError, match="2 files match in results; at most 1"):
        send(b"")


def test_output_without_an_end_is_given_up(monkeypatch, connection):
    monkeypatch.setattr(connections, "MOST_OUTPUT", 1 << 20)
    with pytest.raises(RemoteCommandError, match="printed more than 1 MiB"):
        connection.check("yes")


def test_what_an_instance_writes_to_stderr_cannot_control_the_terminal(connection):
    with pytest.raises(RemoteCommandError) as caught:
        connection.check(r"printf '\033[2J\033]0;owned\007' >&2; false")
    assert "\x1b" not in caught.value.message
