"""Files replaced whole, and locks that are released when their holder dies."""

import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dlcloud.model.errors import StoreError
from dlcloud.system.files import FileLock, replace_file, write_file

ROOT = Path(__file__).parents[3]
HOLD = """
import sys, pathlib
from dlcloud.system.files import FileLock
FileLock(pathlib.Path(sys.argv[1])).__enter__()
print("held", flush=True)
sys.stdin.read()
"""


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_replaced_whole_with_its_mode(tmp_path):
    path = tmp_path / "file"
    write_file(path, "Grüße", durable=True)
    assert path.read_text("utf-8") == "Grüße"
    assert mode(path) == 0o600
    write_file(path, "new", mode=0o644)
    assert path.read_text() == "new"
    assert mode(path) == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_replacement_leaves_the_old_file_and_no_draft(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replace_file(path) as draft:
        draft.write_text("half" * (1 // 0))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_is_held_by_one_at_a_time(tmp_path):
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert first.acquire(wait=False)
    assert not second.acquire(wait=False)
    first.release()
    first.release()
    with second:
        assert not first.acquire(wait=False)
    assert first.acquire(wait=False)
    first.release()
    assert mode(tmp_path / "lock") == 0o600


@pytest.fixture
def holder(tmp_path):
    """Start another process, which holds the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_lock_is_released_when_its_holder_is_killed(tmp_path, holder):
    lock = FileLock(tmp_path / "lock")
    assert not lock.acquire(wait=False)
    holder.send_signal(signal.SIGKILL)
    assert lock.acquire()
    lock.release()


def test_a_lock_names_its_holder(tmp_path, holder):
    lock = FileLock(tmp_path / "lock")
    assert lock.holder() == f"process {holder.pid}"
    assert FileLock(tmp_path / "unknown").holder() == "another process"


def test_a_lock_is_held_only_between_acquire_and_release(tmp_path):
    lock = FileLock(tmp_path / "lock")
    assert not lock.is_held()
    with lock:
        assert FileLock(tmp_path / "lock").is_held()
    assert not lock.is_held()


@pytest.mark.usefixtures("holder")
def test_ctrl_c_ends_the_wait_for_a_lock(tmp_path):
    main = threading.main_thread().ident
    threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        FileLock(tmp_path / "lock").acquire()


def test_a_lock_that_cannot_be_opened_is_a_store_error(tmp_path):
    with pytest.raises(StoreError, match="lock"):
        FileLock(tmp_path / "missing" / "lock").acquire()
