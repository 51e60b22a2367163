"""One file, several processes: nothing is lost, a torn store is an error, and only its owner can read it."""

import os
import sqlite3
import stat
import sys
import threading
from contextlib import closing

import pytest

from dlcloud.model.errors import StoreError
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import MIGRATIONS, Database
from dlcloud.store.runs import Runs
from tests.fakes.samples import cluster


def ended_well(*processes):
    for process in processes:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors.decode()


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_two_processes_write_at_once_and_nothing_is_lost(start, tmp_path):
    ended_well(start("write", "a"), start("write", "b"))
    database = Database(tmp_path / "store.sqlite")
    runs = Runs(database)
    for name in ("a", "b"):
        values = runs.lines(f"run-{name}", "sample")
        assert values == [f'{{"record": "sample", "value": {number}}}' for number in range(100)]
        assert [intent.outcome for intent in Clusters(database).intents(name, "launch")] == ["done"] * 100
    database.close()


@pytest.mark.parametrize("attempt", range(3))
def test_two_processes_make_the_tables_at_once(start, tmp_path, attempt):  # noqa: ARG001
    ended_well(start("migrate", "a"), start("migrate", "b"))
    database = Database(tmp_path / "store.sqlite")
    assert {each.cluster_id for each in Clusters(database).all()} == {"a", "b"}
    assert database.read("PRAGMA user_version")[0][0] == len(MIGRATIONS)
    database.close()


def test_many_threads_open_a_new_store_at_once(tmp_path):
    opened, failed = [], []

    def open_it():
        try:
            opened.append(Database(tmp_path / "store.sqlite"))
        except StoreError as error:
            failed.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in opened:
        each.close()
    assert (len(opened), failed) == (8, [])


def test_a_transaction_is_all_or_nothing(database, clusters):
    def fail():
        with database.transaction():
            clusters.add(cluster(cluster_id="a"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert clusters.all() == []
    clusters.add(cluster(cluster_id="b"))
    assert [each.cluster_id for each in clusters.all()] == ["b"]


def test_another_connection_sees_nothing_of_an_open_transaction(database, clusters, tmp_path):
    other = Database(tmp_path / "store.sqlite")
    with database.transaction():
        clusters.add(cluster())
        assert Clusters(other).all() == []
    assert len(Clusters(other).all()) == 1
    other.close()


def test_closing_waits_for_what_another_thread_executes(database, clusters, tmp_path):
    """Python crashes if a connection is closed while another thread executes on it."""
    has_begun, is_closing = threading.Event(), threading.Event()

    def store():
        with database.transaction():
            has_begun.set()
            is_closing.wait(10)
            clusters.add(cluster())

    threads = [threading.Thread(target=work) for work in (store, database.close)]
    threads[0].start()
    assert has_begun.wait(10)
    threads[1].start()
    threads[1].join(0.1)
    is_closing.set()
    for thread in threads:
        thread.join(10)
    with pytest.raises(StoreError, match="closed"):
        clusters.all()
    with pytest.raises(StoreError, match="closed"):
        clusters.add(cluster())
    with closing(Database(tmp_path / "store.sqlite")) as other:
        assert len(Clusters(other).all()) == 1


def test_the_store_of_a_newer_dlcloud_is_left_unchanged(tmp_path):
    path = tmp_path / "store.sqlite"
    Database(path).close()
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(StoreError, match=r"its schema is version 99, this dlcloud reads up to") as caught:
        Database(path)
    assert str(path) in caught.value.message
    assert "dlcloud down --all" in caught.value.hint
    down = Database(path, uses_newer=True)
    Clusters(down).add(cluster())
    assert len(Clusters(down).all()) == 1, "what it knows of can be terminated"
    down.close()
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA user_version").fetchone() == (99,)
    raw.close()


def test_a_file_that_is_not_a_store_is_left_unchanged(tmp_path):
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"not a database, however long it may be " * 100)
    with pytest.raises(StoreError, match="cannot be used"):
        Database(path)
    assert path.read_bytes().startswith(b"not a database")


@pytest.mark.parametrize("make", ["folder", "missing folder", "dangling link"])
def test_a_path_that_cannot_be_a_store_is_an_error(tmp_path, make):
    path = tmp_path / "store.sqlite"
    if make == "folder":
        path.mkdir()
    elif make == "missing folder":
        path = tmp_path / "missing" / "store.sqlite"
    else:
        path.symlink_to(tmp_path / "missing" / "store.sqlite")
    with pytest.raises(StoreError, match=r"cannot be (used|written)"):
        Database(path)


def test_a_store_that_breaks_while_it_is_open_is_an_error(database):
    with pytest.raises(StoreError, match="no such table"):
        database.read("SELECT * FROM missing")
    database.close()
    with pytest.raises(StoreError, match="closed"):
        database.read("SELECT * FROM clusters")


def test_a_store_that_could_not_be_opened_holds_no_file_open(tmp_path):
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"not a database " * 100)

    def open_files():
        return sum(1 for _ in os.scandir("/proc/self/fd"))

    if sys.platform != "linux":
        pytest.skip("open files are counted in /proc")
    before = open_files()
    errors = []  # kept, as a caller may keep them: a connection would live in their frames
    for _ in range(5):
        with pytest.raises(StoreError) as caught:
            Database(path)
        errors.append(caught.value)
    assert open_files() == before


def test_the_files_of_the_store_are_for_the_user_only(clusters, tmp_path):
    old = os.umask(0o000)
    try:
        clusters.add(cluster())
        other = Database(tmp_path / "other.sqlite")
        Clusters(other).add(cluster())
    finally:
        os.umask(old)
    files = list(tmp_path.iterdir())
    assert {path.name for path in files} >= {"store.sqlite", "store.sqlite-wal", "other.sqlite-wal"}
    assert {mode(path) for path in files} == {0o600}
    other.close()
