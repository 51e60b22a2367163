"""`dlcloud down` of a cluster that another process manages: asked, waited for, and taken over."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dlcloud.app.clusters import down
from dlcloud.app.context import SystemClock
from dlcloud.model.errors import StoreError
from dlcloud.store.home import Paths
from dlcloud.system.files import FileLock
from tests.fakes.samples import cluster

HOLDER = """
import signal, sys, time
from pathlib import Path
from dlcloud.system.files import FileLock
locks = [FileLock(Path(name)) for name in sys.argv[2:]]
for lock in locks:
    lock.acquire()
if sys.argv[1] == "answers":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("holds", flush=True)
time.sleep(60)
"""


@pytest.fixture
def home(tmp_path):
    return Paths(tmp_path)


@pytest.fixture
def hold(home):
    """Start a process that holds the locks of clusters and answers SIGTERM, or does not."""
    processes = []

    def start(how, *ids):
        for name in ids:
            home.make_folder(home.cluster(name))
        locks = [str(home.cluster_lock(name)) for name in ids]
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, how, *locks], stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        assert process.stdout.readline() == "holds\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def context_of(home, *clusters):
    events = []
    return SimpleNamespace(
        paths=home,
        clock=SystemClock(),
        emit=events.append,
        events=events,
        clusters=SimpleNamespace(active=lambda: list(clusters)),
    )


def test_a_process_that_answers_ends_and_its_cluster_is_locked(home, hold):
    process = hold("answers", "c0ffee")
    context = context_of(home, cluster())
    with down.take_charge(context, cluster(), yes=False):
        assert process.wait(timeout=10) == 130
        assert FileLock(home.cluster_lock("c0ffee")).holder_id() == os.getpid()
    assert [event.message for event in context.events] == [
        f"process {process.pid} is in charge of {cluster().name}: asking it to end"
    ]


def test_a_process_that_does_not_answer_is_killed(home, hold, monkeypatch):
    monkeypatch.setattr(down, "ANSWER_S", 0.5)
    process = hold("ignores", "c0ffee")
    context = context_of(home, cluster())
    with down.take_charge(context, cluster(), yes=False):
        assert process.wait(timeout=10) == -signal.SIGKILL
    assert "is killed, and" in context.events[-1].message


def test_a_process_in_charge_of_others_is_ended_only_with_yes(home, hold):
    process = hold("answers", "c0ffee", "feed")
    other = cluster(cluster_id="feed", name="other")
    context = context_of(home, cluster(), other)
    with pytest.raises(StoreError, match="and of other") as refused:
        down.take_charge(context, cluster(), yes=False)
    assert "--yes" in refused.value.hint
    assert process.poll() is None
    with down.take_charge(context, cluster(), yes=True):
        assert process.wait(timeout=10) == 130


def test_an_id_that_does_not_hold_the_lock_is_not_signalled(home):
    """As of a home that two machines share: the id in the file is of a process of the other one."""
    home.make_folder(home.cluster("c0ffee"))
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    lock = FileLock(home.cluster_lock("c0ffee"))
    try:
        assert lock.acquire(wait=False)
        home.cluster_lock("c0ffee").write_text(f"{stranger.pid}\n")
        with pytest.raises(StoreError, match=f"process {stranger.pid} is in charge"):
            down.take_charge(context_of(home, cluster()), cluster(), yes=True)
        assert stranger.poll() is None
    finally:
        lock.release()
        stranger.kill()
        stranger.wait()
