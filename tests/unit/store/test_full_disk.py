"""A full disk, a read-only home: what was stored is read, the rest is an error."""

import os
import sqlite3
import subprocess

import pytest

from dlcloud.model.cluster import ClusterState
from dlcloud.model.errors import StoreError, UnwritableError
from dlcloud.model.instance import Market
from dlcloud.store.cache import AnswerCache, PriceCache
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import MIGRATIONS, Database
from dlcloud.store.runs import Runs
from tests.fakes.disk import full_disk
from tests.fakes.samples import THEN, cluster, price, run
from tests.needs import needs

THEN_TEXT = THEN.isoformat()
OLD_ROWS = (
    f"""INSERT INTO clusters (cluster_id, name, cloud, region, recipe_hash, recipe_path, recipe_text, state,
    user, disk_gib, created_at) VALUES ('old', 'old-1', 'aws', 'us-east-1', 'h', '', 'name: x', 'down',
    'ubuntu', 50, '{THEN_TEXT}')""",
    f"""INSERT INTO members (instance_id, cluster_id, instance_type, market, zone, state, host, ssh_port,
    price_source, launched_at) VALUES ('i-1', 'old', 'c7i.xlarge', 'spot', 'us-east-1a', 'terminated', '', 22,
    '', '{THEN_TEXT}')""",
    f"""INSERT INTO runs (run_id, cluster_id, cluster_name, instance_id, workload, cloud, region, zone,
    instance_type, market, image_id, price_source, state, started_at) VALUES ('r', 'old', 'old-1', 'i-1', 'q',
    'aws', 'us-east-1', 'us-east-1a', 'c7i.xlarge', 'spot', 'ami-1', '', 'done', '{THEN_TEXT}')""",
    """INSERT INTO records VALUES ('r', 0, 'result', '{"record": "result", "case": "c"}')""",
    f"INSERT INTO results VALUES ('r', 0, 'q', 'c7i.xlarge', 'aws', 'c', '', '{THEN_TEXT}')",
)
"""A cluster, an instance, a run and a result; the table of the last is new in version 3."""

LINE = b'{"record": "sample", "value": %d}\n'


@pytest.fixture
def path(tmp_path):
    """Return a store that holds one cluster, closed."""
    path = tmp_path / "store.sqlite"
    database = Database(path)
    Clusters(database).add(cluster(cluster_id="a"))
    database.close()
    return path


@pytest.fixture
def log_path(path):
    """Return a store whose newest cluster is in SQLite's log only, as after a kill."""
    database = Database(path)
    Clusters(database).add(cluster(cluster_id="b"))
    copy = path.with_name("copy.sqlite")
    for suffix in ("", "-wal"):
        copy.with_name(copy.name + suffix).write_bytes(path.with_name(path.name + suffix).read_bytes())
    copy.with_name(f"{copy.name}.lock").touch()
    database.close()
    return copy


def names(database):
    return {cluster.cluster_id for cluster in Clusters(database).all()}


def test_a_store_on_a_full_disk_is_read(path):
    with full_disk():
        database = Database(path)
        assert names(database) == {"a"}
        database.close()


def test_what_only_the_log_holds_is_read_on_a_full_disk(log_path):
    with full_disk():
        database = Database(log_path)
        assert names(database) == {"a", "b"}
        database.close()
    database = Database(log_path)
    assert names(database) == {"a", "b"}
    database.close()


def test_an_older_store_on_a_full_disk_is_read(tmp_path):
    path = tmp_path / "store.sqlite"
    write_version(path, 2)
    with full_disk():
        database = Database(path)
        assert Runs(database).all()[0].setup_at is None
        database.close()


def test_writing_on_a_full_disk_is_an_error_with_what_to_do(path):
    with full_disk():
        database = Database(path)
        with pytest.raises(UnwritableError, match="cannot be written") as caught:
            Clusters(database).add(cluster(cluster_id="b"))
        assert names(database) == {"a"}
        database.close()
    assert f"free space on {path.parent}" in caught.value.hint


def test_no_store_is_made_on_a_full_disk(tmp_path):
    with full_disk(), pytest.raises(UnwritableError, match="cannot be written"):
        Database(tmp_path / "store.sqlite")


def test_a_store_goes_on_when_the_disk_has_space_again(database, runs):
    runs.add(run("r"))
    with full_disk(), pytest.raises(UnwritableError):
        runs.add_records("r", 0, LINE % 1)
    assert runs.stored_bytes("r") == 0
    assert len(runs.add_records("r", 0, LINE % 1)) == 1
    assert runs.lines("r", "sample") == [(LINE % 1).decode().strip()]
    assert not database._connection.in_transaction


@pytest.mark.parametrize("kib", range(0, 160, 16))
def test_a_transaction_that_fills_the_disk_leaves_nothing(runs, kib):
    """At whatever size of a file the disk is full, a transaction is stored whole or not at all."""
    runs.add(run("r"))
    content = b"".join(LINE % number for number in range(600))
    stored = 0
    with full_disk(kib * 1024):
        try:
            stored = len(runs.add_records("r", 0, content))
        except UnwritableError:
            assert runs.lines("r", "sample") == []
    assert len(runs.lines("r", "sample")) == stored
    assert stored + len(runs.add_records("r", 0, content)) == 600


def test_a_cached_answer_that_cannot_be_stored_is_no_error(path):
    with full_disk():
        database = Database(path)
        AnswerCache(database).put("types", "[]", THEN)
        PriceCache(database).put(price())
        assert AnswerCache(database).get("types") is None
        assert PriceCache(database).get("c7i.xlarge", "us-east-1", Market.ON_DEMAND) is None
        database.close()


def test_postponed_writes_are_seen_at_once_and_stored_later(path):
    database = Database(path)
    clusters = Clusters(database)
    with clusters.postpone_failures():
        with full_disk():
            clusters.set_state("a", ClusterState.STOPPING)
            with database.transaction():
                clusters.add(cluster(cluster_id="b"))
            assert names(database) == {"a", "b"}
        clusters.add(cluster(cluster_id="c"))
    database.close()
    database = Database(path)
    assert names(database) == {"a", "b", "c"}
    assert Clusters(database).find("a").state is ClusterState.STOPPING
    database.close()


def test_a_transaction_that_fails_halfway_is_postponed_whole(path):
    database = Database(path)
    clusters, content = Clusters(database), b"".join(LINE % number for number in range(600))
    Runs(database).add(run("r"))
    with clusters.postpone_failures(), database.transaction():
        clusters.add(cluster(cluster_id="b"))
        with full_disk(64 << 10):
            Runs(database).add_records("r", 0, content)
            database.write("COMMIT")
        database.write("BEGIN IMMEDIATE")
    database.close()
    database = Database(path)
    assert (names(database), len(Runs(database).lines("r", "sample"))) == ({"a", "b"}, 600)
    database.close()


def test_postponed_writes_that_can_never_be_stored_are_an_error(path):
    with full_disk():
        database = Database(path)
        with pytest.raises(UnwritableError), Clusters(database).postpone_failures():
            Clusters(database).set_state("a", ClusterState.DOWN)
        database.close()
    database = Database(path)
    assert Clusters(database).find("a").state is ClusterState.STARTING
    database.close()


def test_the_error_of_a_block_is_not_hidden_by_the_disk(path):
    with full_disk():
        database = Database(path)
        with pytest.raises(StoreError, match="no such column"), Clusters(database).postpone_failures():
            database.write("UPDATE clusters SET state = 'a row' WHERE no_such_column")
        database.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes into read-only folders")
@pytest.mark.parametrize("with_log", [False, True])
def test_a_store_in_a_read_only_folder_is_read(path, log_path, with_log):
    (store,) = [log_path if with_log else path]
    store.chmod(0o400)
    store.parent.chmod(0o500)
    try:
        database = Database(store)
        assert "a" in names(database)
        with pytest.raises(UnwritableError) as caught:
            Clusters(database).add(cluster(cluster_id="c"))
        database.close()
    finally:
        store.parent.chmod(0o700)
    assert "make writable" in caught.value.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@needs("mount", "umount")
@pytest.mark.parametrize("with_log", [False, True])
def test_a_store_on_a_read_only_mount_is_read(path, log_path, with_log):
    (store,) = [log_path if with_log else path]
    folder = str(store.parent)
    if subprocess.run(["mount", "--bind", "-o", "ro", folder, folder], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        database = Database(store)
        assert "a" in names(database)
        with pytest.raises(UnwritableError) as caught:
            Clusters(database).add(cluster(cluster_id="c"))
        database.close()
    finally:
        subprocess.run(["umount", folder], check=True)
    assert "make writable" in caught.value.hint


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
def test_a_store_of_each_older_schema_is_migrated(tmp_path, version):
    path = tmp_path / "store.sqlite"
    write_version(path, version)
    database = Database(path)
    assert names(database) == {"old"}
    assert [found.run_id for found in Runs(database).all()] == ["r"]
    assert database.read("SELECT case_name FROM results")[0][0] == "c"
    assert database.read("SELECT interrupted FROM members")[0][0] == 0
    assert database.read("PRAGMA user_version")[0][0] == len(MIGRATIONS)
    database.close()


def test_a_row_that_cannot_be_read_is_an_error_of_the_store(database, clusters):
    clusters.add(cluster(cluster_id="a"))
    database.write("UPDATE clusters SET state = 'shining'")
    with pytest.raises(StoreError, match="a cluster that cannot be read"):
        clusters.all()


def write_version(path, version):
    """Write the store of an older dlcloud, with a cluster, an instance, a run and a result."""
    connection = sqlite3.connect(path)
    for step in MIGRATIONS[:version]:
        connection.executescript(step)
    for statement in OLD_ROWS[: None if version > 2 else -1]:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.commit()
    connection.close()
