"""The user's files on an instance: from here or from another one, then what changed, whatever breaks."""

import itertools
import json
import os
import shutil
import time

import pytest

from dlcloud.launch.setup import FOLDER, EnvironmentPeer
from dlcloud.launch.user_files import COPY, FEWEST, LEAST_BYTES, PLACE, Sharing, send_files
from dlcloud.model.errors import RecipeError
from dlcloud.model.events import Progress, StageStarted
from dlcloud.recipe import sent_files
from dlcloud.resources.texts import template
from dlcloud.ssh.listing import list_files
from tests.fakes.clock import FakeClock
from tests.needs import needs

pytestmark = needs("tar")

LONG_AGO_S = 1_000_000_000


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    for name in ("train.py", "pkg/model.py", "pkg/deep/x.py", "data/small.bin"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    for path in root.rglob("*"):  # nothing can have changed since
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    (root / "latest").symlink_to("pkg/model.py")
    return root


class Sender:
    """Sends one project to runs of one instance."""

    def __init__(self, connection, host, project):
        self.connection, self.host, self.project = connection, host, project
        self.runs, self.events, self.clock = 0, [], FakeClock()

    def __call__(self, source=None, **how):
        """Send, and return the names that went over the line."""
        self.runs += 1
        self.counted = Counted(self.connection, **how)
        target = f"dlcloud/runs/{self.runs}/work"
        send_files(self.counted, source or self.project, target, clock=self.clock, emit=self.events.append)
        return self.counted.names

    @property
    def work(self):
        return self.host.root / "home" / "dlcloud" / "runs" / str(self.runs) / "work"

    @property
    def copy(self):
        return self.host.root / "home" / COPY


class Counted:
    """A connection that notes which files it sends, and the verbs of files.py; it may break at the first."""

    def __init__(self, connection, *, breaks=False):
        self._connection, self._breaks = connection, breaks
        self.names, self.verbs = [], []

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def check(self, command, *, stdin=b""):
        if "manifest" not in command:
            self.verbs.append(command.partition("files.py ")[2].split()[0])
        return self._connection.check(command, stdin=stdin)

    def send_files(self, files, target, *, on_sent=None):
        if self._breaks:
            raise RecipeError("cut off")
        self.names += [file.name for file in files]
        self._connection.send_files(files, target, on_sent=on_sent)


@pytest.fixture
def send(connection, host, project):
    return Sender(connection, host, project)


def state(root):
    """Return what a folder holds: kinds, modes and contents."""
    return {
        str(path.relative_to(root)): (
            str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None,
            None if path.is_symlink() else path.stat().st_mode & 0o777,
        )
        for path in root.rglob("*")
    }


def test_all_is_sent_once_then_only_what_changed(send, project):
    assert "pkg/deep/x.py" in send()
    assert send.counted.verbs == ["finish"], "with a thousand instances, each command counts"
    assert state(send.work) == state(project)
    assert send() == []
    assert state(send.work) == state(project)
    (project / "train.py").write_text("changed")
    (project / "run.sh").chmod(0o700)
    (project / "new.py").touch()
    (project / "pkg/model.py").unlink()
    assert sorted(send()) == ["new.py", "run.sh", "train.py"]
    assert send.counted.verbs == ["remove", "finish"]
    assert state(send.work) == state(project)
    assert not (send.copy / "tree" / "pkg/model.py").exists()


def test_what_was_removed_or_became_something_else_follows(send, project):
    send()
    shutil.rmtree(project / "pkg" / "deep")
    (project / "data" / "small.bin").unlink()
    (project / "data").rmdir()
    (project / "data").write_text("a file now")
    (project / "latest").unlink()
    (project / "latest").mkdir()
    (project / "run.sh").unlink()
    (project / "run.sh").symlink_to("train.py")
    send()
    assert state(send.work) == state(project)


def test_a_run_may_change_its_files_and_the_next_has_the_users(send, project):
    send()
    (send.work / "train.py").write_text("overwritten by the run")
    shutil.rmtree(send.work / "pkg")
    assert send() == []
    assert state(send.work) == state(project)


def test_a_file_that_may_still_change_is_sent_again(send, project):
    path = project / "train.py"
    send()
    path.write_text("first..")
    now = time.time()
    os.utime(path, (now, now))
    send()
    path.write_text("second.")
    os.utime(path, (now, now))
    assert send() == ["train.py"]
    assert (send.work / "train.py").read_text() == "second."


def test_another_folder_replaces_all_that_was_there(send, project, tmp_path):
    send()
    other = tmp_path / "other"
    shutil.copytree(project, other, symlinks=True)
    (other / "train.py").unlink()
    assert "pkg/model.py" in send(other)
    assert state(send.work) == state(other)
    single = tmp_path / "only.py"
    single.write_text("alone")
    assert send(single) == ["only.py"]
    assert [path.name for path in send.work.iterdir()] == ["only.py"]


def test_after_a_sending_that_was_cut_off_all_is_sent_again(send, project):
    send()
    (project / "train.py").write_text("changed")
    with pytest.raises(RecipeError, match="cut off"):
        send(breaks=True)
    assert len(send()) > 5
    assert state(send.work) == state(project)


def test_size_and_progress_are_shown_and_too_much_is_refused_before_a_byte_is_sent(
    send, project, monkeypatch
):
    (project / "model.bin").write_bytes(bytes(3 << 20))
    monkeypatch.setattr(send.clock, "monotonic", itertools.count(0.0, 2.0).__next__)
    send()
    messages = [event.message for event in send.events if isinstance(event, StageStarted)]
    assert messages == ["sending 7 files, 3.0 MiB"]
    last = [event for event in send.events if isinstance(event, Progress)][-1]
    assert last.message == "sent 3.0 MiB of 3.0 MiB"
    send.host.commands.clear()
    monkeypatch.setattr(sent_files, "MOST_FILES", 3)
    with pytest.raises(RecipeError, match=r"has \d files"):
        send()
    assert send.host.sent == []


@pytest.mark.parametrize("content", ["{", "[1]", '{"train.py": 3}', '{"../../x": "f"}', None])
def test_a_spoilt_manifest_costs_a_whole_sending_and_removes_nothing_else(send, project, content):
    send()
    (send.host.root / "home" / "x").touch()
    manifest = send.copy / "manifest.json"
    also_there = {**json.loads(manifest.read_text()), "../../../x": "f 644 0 0"}
    manifest.write_text(json.dumps(also_there) if content is None else content)
    assert len(send()) > 5 or content is None
    assert state(send.work) == state(project)
    assert (send.host.root / "home" / "x").exists()


@pytest.fixture
def connections(make_host, make_dialer):
    """Connections to two instances, by id, and the folders of their homes."""
    hosts = [make_host(name).start() for name in ("i-0abc", "i-0def")]
    dialer = make_dialer(*hosts)
    for host in hosts:
        host.prove()
    opened = {host.endpoint.instance_id: dialer.dial(host.endpoint) for host in hosts}
    for connection in opened.values():
        connection.send_contents({"peer.py": template("peer.py").encode()}, FOLDER)
    return opened, [host.root / "home" for host in hosts]


@pytest.fixture
def shared(connections, tmp_path):
    """What sends a project to either of the instances."""
    opened, _ = connections
    project = tmp_path / "project"
    (project / "inner").mkdir(parents=True)
    (project / "inner" / "data.bin").write_bytes(b"data" * (LEAST_BYTES // 4 // FEWEST))
    (project / "run.py").write_text("print('hello')\n")
    files = list_files(project).entries
    sharing = Sharing(allow=lambda: None)
    sharing.expect(FEWEST)

    def send(name):
        peer = EnvironmentPeer(instance_id=name, host="127.0.0.1", connect=lambda: opened[name])
        sent = []
        sharing.send(opened[name], peer, files, "my work", on_sent=sent.append)
        return sum(sent)

    return send


def test_the_second_instance_copies_from_the_first(connections, shared):
    _, (first, second) = connections
    assert shared("i-0abc") > 0
    assert shared("i-0def") == 0
    for home in (first, second):
        assert (home / "my work" / "inner" / "data.bin").stat().st_size == LEAST_BYTES // FEWEST
        assert (home / "my work" / "run.py").read_text() == "print('hello')\n"


def test_an_archive_that_was_changed_is_not_unpacked_but_sent_from_here(connections, shared):
    _, (first, second) = connections
    shared("i-0abc")
    (archive,) = (first / PLACE).glob("*/archive")
    archive.write_bytes(archive.read_bytes()[:-1] + b"!")
    assert shared("i-0def") > 0
    assert (second / "my work" / "run.py").read_text() == "print('hello')\n"


def test_small_files_are_written_whole_over_earlier_ones(connections):
    opened, (home, _) = connections
    for text in (b"first", b"second"):
        opened["i-0abc"].send_contents({"one.txt": text, "two.txt": b"2"}, "a folder")
    assert sorted(path.name for path in (home / "a folder").iterdir()) == ["one.txt", "two.txt"]
    assert (home / "a folder" / "one.txt").read_bytes() == b"second"
    assert (home / "a folder" / "one.txt").stat().st_mode & 0o777 == 0o644
