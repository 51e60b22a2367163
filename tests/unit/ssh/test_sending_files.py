"""The user's files on an instance: all at first, then what changed, exactly as here, whatever breaks."""

import json
import os
import shutil
import time

import pytest

from dlcloud.launch.user_files import COPY, send_files
from dlcloud.model.errors import RecipeError
from dlcloud.model.events import Progress, StageStarted
from dlcloud.recipe import sent_files
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
    (root / "latest").symlink_to("pkg/model.py")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    age(root)
    return root


def age(root):
    """Give every file a time at which nothing can have changed since."""
    for path in root.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (LONG_AGO_S, LONG_AGO_S))


class Sender:
    """Sends one project to runs of one instance."""

    def __init__(self, connection, host, project):
        self.connection, self.host, self.project = connection, host, project
        self.runs = 0
        self.events = []

    def __call__(self, source=None):
        """Send, and return the names that went over the line."""
        self.runs += 1
        counted = Counted(self.connection)
        send_files(
            counted,
            source or self.project,
            f"dlcloud/runs/{self.runs}/work",
            clock=FakeClock(),
            emit=self.events.append,
        )
        return counted.names

    @property
    def work(self):
        return self.host.root / "home" / "dlcloud" / "runs" / str(self.runs) / "work"

    @property
    def copy(self):
        return self.host.root / "home" / COPY


class Counted:
    """A connection that notes which files it sends."""

    def __init__(self, connection):
        self._connection = connection
        self.names = []

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def send_files(self, files, target, *, on_sent=None):
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
    assert state(send.work) == state(project)
    assert send() == []
    assert state(send.work) == state(project)
    (project / "train.py").write_text("changed")
    (project / "run.sh").chmod(0o700)
    (project / "new.py").touch()
    assert sorted(send()) == ["new.py", "run.sh", "train.py"]
    assert state(send.work) == state(project)


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

    def fail(*_, **__):
        raise RecipeError("cut off")

    broken = Sender(send.connection, send.host, project)
    broken.connection = type("Broken", (Counted,), {"send_files": fail})(send.connection)
    with pytest.raises(RecipeError, match="cut off"):
        send_files(broken.connection, project, "w", clock=FakeClock(), emit=[].append)
    assert len(send()) > 5
    assert state(send.work) == state(project)


@pytest.mark.parametrize("content", ["{", "[1]", '{"train.py": 3}', '{"../../x": "f"}'])
def test_a_spoilt_manifest_costs_a_whole_sending_and_removes_nothing_else(send, project, content):
    send()
    (send.host.root / "home" / "x").touch()
    (send.copy / "manifest.json").write_text(content)
    assert len(send()) > 5
    assert state(send.work) == state(project)
    assert (send.host.root / "home" / "x").exists()


def test_a_manifest_that_names_other_places_removes_nothing_there(send):
    send()
    (send.host.root / "home" / "x").touch()
    manifest = json.loads((send.copy / "manifest.json").read_text())
    (send.copy / "manifest.json").write_text(json.dumps({**manifest, "../../../x": "f 644 0 0"}))
    send()
    assert (send.host.root / "home" / "x").exists()


def test_the_first_files_take_two_commands_and_their_copy(send, project):
    """Nothing has to be removed before them: with a thousand instances, each command counts."""

    class Noting(Counted):
        def check(self, command, *, stdin=b""):
            verbs.append(command.partition("files.py ")[2].split()[0] if "manifest" not in command else "")
            return self._connection.check(command, stdin=stdin)

    verbs = []
    noting = Noting(send.connection)
    send_files(noting, project, "w1", clock=FakeClock(), emit=[].append)
    assert verbs == ["", "finish"]
    (project / "train.py").unlink()
    send_files(noting, project, "w2", clock=FakeClock(), emit=[].append)
    assert verbs[2:] == ["", "remove", "finish"]
    assert not (send.copy / "tree" / "train.py").exists()


def test_size_and_progress_are_shown(send, project):
    class Ticking(FakeClock):
        def monotonic(self):
            self.sleep(2)
            return super().monotonic()

    (project / "model.bin").write_bytes(bytes(3 << 20))
    send_files(send.connection, project, "w", clock=Ticking(), emit=send.events.append)
    messages = [event.message for event in send.events if isinstance(event, StageStarted)]
    assert messages == ["sending 7 files, 3.0 MiB"]
    last = [event for event in send.events if isinstance(event, Progress)][-1]
    assert last.message.startswith("sent ")
    assert last.done == last.total > 3 << 20


def test_too_much_is_refused_before_a_byte_is_sent(send, monkeypatch):
    monkeypatch.setattr(sent_files, "MOST_FILES", 3)
    with pytest.raises(RecipeError, match=r"has \d files"):
        send()
    assert send.host.sent == []
