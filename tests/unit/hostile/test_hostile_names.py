"""Names from outside never leave their folder, by whichever way they come in."""

import importlib.util
import io
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from dlcloud.runs.run_archive import unpack_run
from dlcloud.ssh.fetch import fetch_files, fetch_listed

TEMPLATES = Path(__file__).parents[3] / "templates"
LEAVING = ("../x", "a/../../x", "/etc/x", "..", "a/..", "x" * 256, "a/" * 2100 + "x")
FINE = ("x", "a/b", "..x", "a..b/c..", "-rf", "a b+c%20.txt", "\u00e9'\"$", "..\\x", "x" * 255)


def program(name):
    spec = importlib.util.spec_from_file_location(name, TEMPLATES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_data(name, _, monkeypatch):
    """A key of a bucket, listed on an instance."""
    storage = program("storage")
    line = json.dumps({"key": f"s3://b/p/{name}", "size": 1, "etag": "x"})
    monkeypatch.setattr(storage, "list_when_known", lambda *_: line)
    return name in storage.list_files("s3://b/p", "s5cmd", {})


def by_checkpoint(name, tmp_path, _):
    """A file of a state that is put back on an instance."""
    checkpoints, content = program("checkpoints"), b"state"
    digest = checkpoints.hashlib.sha256(content).hexdigest()
    folder = tmp_path / "run"
    (folder / "checkpoints/objects").mkdir(parents=True)
    (folder / "work").mkdir()
    (folder / "checkpoints/objects" / digest).write_bytes(content)
    state = {"files": {name: {"sha256": digest, "mode": 0o600}}, "links": {}}
    (folder / "checkpoints/restore.json").write_text(json.dumps(state))
    (folder / "checkpoints.json").write_text(json.dumps({"patterns": []}))
    checkpoints.restore(folder, "x")
    return (folder / "work" / name).read_bytes() == content


ENDPOINT = SimpleNamespace(instance_id="i-1")


class Asked(Exception):  # noqa: N818
    """The instance is asked for the files."""


def start(*_, **__):
    raise Asked


def by_fetch(name, tmp_path, _):
    """A file that an instance lists for a pattern of keep.files."""
    listing = f"./{name}\0".encode()
    shell = SimpleNamespace(endpoint=ENDPOINT, check=lambda *_: listing, start=start)
    fetch_files(shell, "work", ["*", "**/*"], tmp_path, compress=False)


def by_listing(name, tmp_path, _):
    """A file that an instance has chosen of what a run wrote."""
    shell = SimpleNamespace(endpoint=ENDPOINT, start=start)
    fetch_listed(shell, "work", {name: 1}, tmp_path, compress=False)


def by_archive(name, tmp_path, _):
    """A file of a run's archive in a bucket."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        entry = tarfile.TarInfo(name if name.startswith("/") else f"files/{name}")
        entry.size = 5
        archive.addfile(entry, io.BytesIO(b"state"))
    unpack_run(stream.getvalue(), tmp_path / "run", document="none")
    return bool(list((tmp_path / "run").rglob("*")) if (tmp_path / "run").exists() else [])


@pytest.mark.parametrize("way", [by_data, by_checkpoint, by_fetch, by_listing, by_archive])
@pytest.mark.parametrize("name", [*LEAVING, *FINE], ids=lambda name: name[:20])
def test_a_name_from_outside_stays_in_its_folder(way, name, tmp_path, monkeypatch):
    try:
        is_taken = way(name, tmp_path, monkeypatch)
    except Asked:
        is_taken = True
    except (Exception, SystemExit) as error:
        # The programs of instances are loaded anew each time, with their classes.
        if type(error).__name__ not in {"StorageError", "SystemExit", "RemoteCommandError"}:
            raise
        is_taken = False
    assert bool(is_taken) is (name in FINE)
    assert not (tmp_path / "x").exists()
