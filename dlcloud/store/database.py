"""The store: one SQLite file that several commands and threads use in parallel, and its rows as dataclasses.

Every command opens it (`Database`), and `migrate` brings its tables up to date by the steps of `MIGRATIONS`.
Reported results and intents must survive a power failure, so each transaction is synced to the disk. A full
or read-only disk must keep no command from looking, and none from terminating instances: then the store is
copied to memory, what is written there is postponed, and it is tried once more at the end
(`postpone_failures`).

`open_foreign` opens a store that came from an instance, which is not trusted: a SQLite file may hold
triggers, views and expressions, which run when it is read or written.
"""

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import fields
from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import cache
from pathlib import Path
from threading import RLock
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_type_hints

from dlcloud.model.errors import StoreError, UnwritableError
from dlcloud.system.files import FileLock, unwritable_hint

MIGRATIONS = (
    """
    CREATE TABLE clusters (
        cluster_id TEXT PRIMARY KEY, name TEXT NOT NULL, cloud TEXT NOT NULL, region TEXT NOT NULL,
        recipe_hash TEXT NOT NULL, recipe_path TEXT NOT NULL, recipe_text TEXT NOT NULL,
        state TEXT NOT NULL, user TEXT NOT NULL, disk_gib INTEGER NOT NULL,
        created_at TEXT NOT NULL, ended_at TEXT
    );
    CREATE INDEX clusters_by_state ON clusters (state, name);

    CREATE TABLE members (
        instance_id TEXT PRIMARY KEY, cluster_id TEXT NOT NULL REFERENCES clusters,
        instance_type TEXT NOT NULL, market TEXT NOT NULL, zone TEXT NOT NULL, state TEXT NOT NULL,
        host TEXT NOT NULL, ssh_port INTEGER NOT NULL, hourly_usd TEXT, price_source TEXT NOT NULL,
        price_as_of TEXT, launched_at TEXT NOT NULL, ended_at TEXT
    );
    CREATE INDEX members_by_cluster ON members (cluster_id);

    CREATE TABLE intents (
        intent_id INTEGER PRIMARY KEY, cluster_id TEXT NOT NULL REFERENCES clusters,
        action TEXT NOT NULL, detail TEXT NOT NULL, begun_at TEXT NOT NULL, outcome TEXT, ended_at TEXT
    );
    CREATE INDEX intents_by_cluster ON intents (cluster_id);

    CREATE TABLE runs (
        run_id TEXT PRIMARY KEY, cluster_id TEXT NOT NULL, cluster_name TEXT NOT NULL,
        instance_id TEXT NOT NULL, workload TEXT NOT NULL, cloud TEXT NOT NULL, region TEXT NOT NULL,
        zone TEXT NOT NULL, instance_type TEXT NOT NULL, market TEXT NOT NULL, image_id TEXT NOT NULL,
        hourly_usd TEXT, price_source TEXT NOT NULL, price_as_of TEXT, state TEXT NOT NULL,
        started_at TEXT NOT NULL, ended_at TEXT, exit_status INTEGER,
        records_bytes INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX runs_by_cluster ON runs (cluster_id);
    CREATE INDEX runs_by_start ON runs (started_at);

    CREATE TABLE records (
        run_id TEXT NOT NULL REFERENCES runs, position INTEGER NOT NULL,
        kind TEXT NOT NULL, line TEXT NOT NULL,
        PRIMARY KEY (run_id, position)
    ) WITHOUT ROWID;
    CREATE INDEX records_by_kind ON records (kind, run_id);

    CREATE TABLE prices (
        instance_type TEXT NOT NULL, region TEXT NOT NULL, market TEXT NOT NULL, as_of TEXT NOT NULL,
        hourly_usd TEXT NOT NULL, source TEXT NOT NULL,
        PRIMARY KEY (instance_type, region, market, as_of)
    ) WITHOUT ROWID;
    """,
    """
    CREATE TABLE answers (
        subject TEXT PRIMARY KEY, content TEXT NOT NULL, as_of TEXT NOT NULL
    ) WITHOUT ROWID
    """,
    # For cost reports: the prices of both markets, the start of set-up, and an index of results. Keys of a
    # result never change, so they may be stored next to its record; the index finds the newest of each.
    """
    ALTER TABLE runs ADD COLUMN setup_at TEXT;
    CREATE INDEX runs_by_instance ON runs (instance_id, started_at);
    CREATE INDEX runs_by_cluster_name ON runs (cluster_name);

    CREATE TABLE run_prices (
        run_id TEXT NOT NULL REFERENCES runs, market TEXT NOT NULL, zone TEXT NOT NULL,
        hourly_usd TEXT NOT NULL, as_of TEXT NOT NULL, source TEXT NOT NULL,
        PRIMARY KEY (run_id, market)
    ) WITHOUT ROWID;

    CREATE TABLE leases (
        instance_id TEXT PRIMARY KEY, launched_at TEXT NOT NULL, ended_at TEXT, disk_gib INTEGER NOT NULL
    ) WITHOUT ROWID;

    CREATE TABLE results (
        run_id TEXT NOT NULL REFERENCES runs, position INTEGER NOT NULL,
        workload TEXT NOT NULL, instance_type TEXT NOT NULL, cloud TEXT NOT NULL,
        case_name TEXT NOT NULL, setting TEXT NOT NULL, started_at TEXT NOT NULL,
        PRIMARY KEY (run_id, position)
    ) WITHOUT ROWID;
    CREATE INDEX results_newest ON results
        (workload, instance_type, cloud, case_name, setting, started_at, run_id, position);

    INSERT INTO results
        SELECT run_id, position, workload, instance_type, cloud,
            coalesce(json_extract(line, '$.case'), ''), coalesce(json_extract(line, '$.setting'), ''),
            started_at
        FROM records JOIN runs USING (run_id) WHERE kind = 'result' AND json_valid(line)
    """,
    # The clusters of one `dlcloud bench`, and the cases it left out: with them it is resumed.
    """
    CREATE TABLE benches (
        bench_id TEXT PRIMARY KEY, digest TEXT NOT NULL, begun_at TEXT NOT NULL, ended_at TEXT
    );
    CREATE INDEX benches_by_digest ON benches (digest, begun_at);

    CREATE TABLE bench_clusters (
        bench_id TEXT NOT NULL REFERENCES benches, cluster_id TEXT NOT NULL,
        PRIMARY KEY (bench_id, cluster_id)
    ) WITHOUT ROWID;

    CREATE TABLE bench_left_out (
        bench_id TEXT NOT NULL REFERENCES benches, instance_type TEXT NOT NULL, benchmark TEXT NOT NULL,
        setting TEXT NOT NULL, reason TEXT NOT NULL,
        PRIMARY KEY (bench_id, instance_type, benchmark, setting)
    ) WITHOUT ROWID
    """,
    # EC2 took the instance back: its first hour is free.
    """
    ALTER TABLE members ADD COLUMN interrupted INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE leases ADD COLUMN interrupted INTEGER NOT NULL DEFAULT 0
    """,
    # The account that a cluster was launched in, the tags of what is launched later, and the way in.
    """
    ALTER TABLE clusters ADD COLUMN profile TEXT NOT NULL DEFAULT '';
    ALTER TABLE clusters ADD COLUMN own_tags TEXT NOT NULL DEFAULT '';
    ALTER TABLE clusters ADD COLUMN network TEXT NOT NULL DEFAULT ''
    """,
    # A command on several nodes is a run on each: that of rank 0 holds the records.
    """
    ALTER TABLE runs ADD COLUMN nodes INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE runs ADD COLUMN rank INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN head_run_id TEXT NOT NULL DEFAULT '';
    CREATE INDEX runs_by_head ON runs (head_run_id) WHERE head_run_id <> ''
    """,
    # A trial of an experiment is a run with values: the next `up` finds those that are done by them.
    """
    ALTER TABLE runs ADD COLUMN experiment TEXT NOT NULL DEFAULT '';
    ALTER TABLE runs ADD COLUMN trial INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN trial_values TEXT NOT NULL DEFAULT '';
    CREATE INDEX runs_by_experiment ON runs (experiment) WHERE experiment <> ''
    """,
    # What an intent launched, or ends: before, the ids were words of its texts.
    """
    ALTER TABLE intents ADD COLUMN fleet_id TEXT NOT NULL DEFAULT '';
    ALTER TABLE intents ADD COLUMN instance_ids TEXT NOT NULL DEFAULT '[]';
    UPDATE intents SET fleet_id = substr(outcome, 1, instr(outcome || ' ', ' ') - 1)
    WHERE action = 'launch' AND outcome LIKE 'fleet-%';
    UPDATE intents SET
        instance_ids = '["' || replace(trim(substr(outcome, length(fleet_id) + 1)), ' ', '","') || '"]'
    WHERE action = 'launch' AND (outcome LIKE 'i-%' OR outcome LIKE 'fleet-% i-%');
    UPDATE intents SET instance_ids = '["' || replace(detail, ' ', '","') || '"]'
    WHERE action = 'shrink' AND detail LIKE 'i-%'
    """,
    # The AWS account that a cluster belongs to; one of an earlier version gets it when it is reached again.
    """
    ALTER TABLE clusters ADD COLUMN account TEXT NOT NULL DEFAULT '';
    ALTER TABLE clusters ADD COLUMN partition TEXT NOT NULL DEFAULT '';
    ALTER TABLE clusters ADD COLUMN aws_profile TEXT NOT NULL DEFAULT ''
    """,
)


class NewerSchemaError(ValueError):
    """A newer dlcloud wrote the store."""


def migrate(connection: sqlite3.Connection, *, uses_newer: bool = False) -> None:
    """Migrate the tables to this version; if several processes try at the same time, one of them does it.

    Raises:
        NewerSchemaError: A newer dlcloud wrote the store.
    """
    version = _version(connection)
    if version == len(MIGRATIONS) or (uses_newer and version > len(MIGRATIONS)):
        return
    if version > len(MIGRATIONS):
        message = f"its schema is version {version}, this dlcloud reads up to {len(MIGRATIONS)}"
        raise NewerSchemaError(message)
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in MIGRATIONS[_version(connection) :]:
            for statement in step.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


BUSY_TIMEOUT_S = 30.0
Value = str | int | float | None
Write = tuple[str, Sequence[Value]]
T = TypeVar("T")
_PRIMARY = 0xFF  # extended result codes have the primary one in their lowest byte
_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_READ_ONLY = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_LARGEST_BYTES = 1 << 32
Table = tuple[str, str, str]


class Database:
    """Reads and writes rows; the tables are of `schema`.

    On a full disk or in a read-only folder it is read all the same, and what is written raises.

    Args:
        path: The SQLite file; created, mode 0600, if it is missing. Its folder must exist.
        uses_newer: Use the store of a newer dlcloud, which adds columns and removes none, unless a table
            that is asked for has changed: what it knows of must be terminated by any version.

    Raises:
        StoreError: From any method, if the file cannot be read or written.
    """

    def __init__(self, path: Path, *, uses_newer: bool = False) -> None:
        self._path = path
        self._uses_newer = uses_newer
        self._lock = RLock()
        self._unwritable: UnwritableError | None = None
        self._unfinished: list[Write] = []
        self._postponed: list[Write] | None = None
        try:
            self._connection = self._open()
        except UnwritableError as error:
            with self._translate_errors():
                self._connection = _copy_to_memory(path, error)
            self._unwritable = error

    def close(self) -> None:
        """Close the file; what other threads ask for from then on raises StoreError.

        Ctrl-C leaves threads behind. SQLite's module crashes if one executes while its connection is closed.
        """
        with self._lock:
            self._connection.close()

    def read(self, statement: str, *values: Value) -> list[sqlite3.Row]:
        with self._lock, self._translate_errors():
            return self._connection.execute(statement, values).fetchall()

    def write(self, statement: str, *values: Value) -> int:
        """Execute a statement; return the number of the row it inserted."""
        with self._lock:
            if self._unwritable is None:
                try:
                    return self._execute(statement, values)
                except UnwritableError as error:
                    if self._postponed is None:
                        raise
                    self._continue_in_memory(error)
            elif self._postponed is None:
                raise UnwritableError(self._unwritable.message, self._unwritable.hint)
            return self._postpone(statement, values)

    def insert(self, table: str, row: Mapping[str, Any], *, replace: bool = False) -> int:
        """Insert a row; values without a type of SQLite are stored as text."""
        verb = "INSERT OR REPLACE" if replace else "INSERT"
        marks = ", ".join("?" * len(row))
        return self.write(
            f"{verb} INTO {table} ({', '.join(row)}) VALUES ({marks})",  # table and columns are our own words
            *(_stored(value) for value in row.values()),
        )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Store everything within the block, or nothing; a nested transaction is part of the outer one."""
        with self._lock:
            with self._translate_errors():
                is_nested = self._connection.in_transaction
            if is_nested:
                yield
                return
            self.write("BEGIN IMMEDIATE")
            try:
                yield
                self.write("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    @contextmanager
    def postpone_failures(self) -> Iterator[None]:
        """Let nothing within the block fail because nothing can be stored; try to store it at the end.

        For what must be done even if it cannot be recorded: the termination of instances.

        Raises:
            UnwritableError: The block was done, and still nothing can be stored.
        """
        if self._postponed is not None:
            yield
            return
        self._postponed = []
        try:
            yield
        except BaseException:
            with suppress(StoreError):
                self._store_postponed()
            raise
        else:
            self._store_postponed()
        finally:
            self._postponed = None

    def _open(self) -> sqlite3.Connection:
        with self._translate_errors():
            self._path.touch(mode=0o600, exist_ok=True)
            connection = sqlite3.connect(
                self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            try:
                # SQLite does not wait if two processes switch a new file to WAL at the same time.
                with FileLock(self._path.with_name(f"{self._path.name}.lock")):
                    _prepare(connection, uses_newer=self._uses_newer)
            except BaseException:
                connection.close()
                raise
            return connection

    def _execute(self, statement: str, values: Sequence[Value]) -> int:
        with self._translate_errors():
            row = int(self._connection.execute(statement, values).lastrowid or 0)
        # A transaction that ends in memory needs what it executed before.
        if self._postponed is not None and self._connection.in_transaction:
            self._unfinished.append((statement, values))
        else:
            self._unfinished = []
        return row

    def _roll_back(self) -> None:
        """End a transaction that failed; SQLite itself has ended it where the disk is full."""
        if self._connection.in_transaction:
            self.write("ROLLBACK")
        self._unfinished = []

    def _continue_in_memory(self, error: UnwritableError) -> None:
        """Continue on a copy in memory, with what a transaction had executed so far."""
        with self._translate_errors():
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            memory = _copy_to_memory(self._path, error, self._connection)
            self._connection.close()
        self._connection, self._unwritable = memory, error
        for statement, values in self._unfinished:
            self._postpone(statement, values)
        self._unfinished = []

    def _postpone(self, statement: str, values: Sequence[Value]) -> int:
        with self._translate_errors():
            row = int(self._connection.execute(statement, values).lastrowid or 0)
        if self._postponed is not None:
            self._postponed.append((statement, values))
        return row

    def _store_postponed(self) -> None:
        with self._lock:
            if not self._postponed:
                return
            connection = self._open()
            try:
                with self._translate_errors():
                    for statement, values in self._postponed:
                        connection.execute(statement, values)
            except BaseException:
                connection.close()
                raise
            self._connection.close()
            self._connection, self._unwritable = connection, None

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError, OverflowError) as error:
            raise _translate(error, self._path) from error


def read_row(kind: type[T], row: sqlite3.Row, **others: object) -> T:
    """Build a dataclass from the columns that have the names of its fields.

    Args:
        kind: A dataclass; a field without a column has its default.
        row: Values as `Database.insert` stores them.
        others: Values of fields that are not read from the row.

    Raises:
        StoreError: A value is not of its field's type.
    """
    columns = set(row.keys()) - others.keys()
    try:
        values = {
            name: row[name] if convert is None or row[name] is None else convert(row[name])
            for name, convert in _converters(cast("type", kind)).items()
            if name in columns
        }
        return kind(**values, **others)
    except (ValueError, TypeError, ArithmeticError) as error:
        message = f"the store holds a {kind.__name__.lower()} that cannot be read: {error!r}"
        raise StoreError(message, "restore store.sqlite from a backup, or move it away") from error


def open_foreign(path: Path) -> Database:
    """Open a store that another machine wrote.

    Raises:
        StoreError: It is none, or holds anything except the tables of its version, or is too large.
    """
    try:
        version, tables = _contents(path)
    except (sqlite3.Error, OSError, ValueError) as error:
        raise StoreError(f"the fetched store cannot be read: {error}") from error
    if not 0 < version <= len(MIGRATIONS) or tables != _tables_of(version):
        raise StoreError("the fetched store has other tables than a dlcloud writes; nothing of it is used")
    return Database(path)


def rows_of_tables(path: Path) -> dict[str, int]:
    """Return the version of a store's schema and the number of rows of each table, without changing it.

    Raises:
        StoreError: It cannot be read.
    """
    if not path.exists():
        return {}
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            names = sorted(name for kind, name, _ in _tables(connection) if kind == "table")
            count = 'SELECT count(*) FROM "{}"'
            rows = {name: int(connection.execute(count.format(name)).fetchone()[0]) for name in names}
            return {"schema": _version(connection), **rows}
    except (sqlite3.Error, OSError) as error:
        raise _translate(error, path) from error


def _prepare(connection: sqlite3.Connection, *, uses_newer: bool) -> None:
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode = WAL")
    # A reported result is never lost, not even to a power failure.
    connection.execute("PRAGMA synchronous = FULL")
    migrate(connection, uses_newer=uses_newer)


@cache
def _converters(kind: type[Any]) -> dict[str, Callable[[Any], object] | None]:
    """Return by field what makes its value of the stored one; None where they are the same."""
    hints = get_type_hints(kind)
    return {field.name: _converter(hints[field.name]) for field in fields(kind)}


def _converter(hint: Any) -> Callable[[Any], object] | None:  # noqa: ANN401  a type, or a union with None
    (kind,) = [option for option in get_args(hint) or [hint] if option is not NoneType][:1]
    if kind is datetime:
        return datetime.fromisoformat
    return kind if isinstance(kind, type) and issubclass(kind, Decimal | Enum | bool) else None


def _stored(value: object) -> Value:
    if value is None or isinstance(value, int | float):
        return value
    isoformat = getattr(value, "isoformat", None)
    return str(isoformat()) if isoformat else str(value)


def _copy_to_memory(
    path: Path, error: UnwritableError, source: sqlite3.Connection | None = None
) -> sqlite3.Connection:
    """Return a copy of the store in memory, with the tables of this version.

    Args:
        path: The SQLite file.
        error: Why it cannot be written.
        source: A connection to it that still reads; None: it could not be opened for writing.

    Raises:
        UnwritableError: `error`, if there is no store to read.
        sqlite3.Error: It cannot be read either.
    """
    if source is None and (not path.exists() or not path.stat().st_size):
        raise error
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        if source is not None:
            source.backup(memory)
        else:
            _read_file(path, memory)
        memory.row_factory = sqlite3.Row
        migrate(memory)
    except BaseException:
        memory.close()
        raise
    return memory


def _read_file(path: Path, memory: sqlite3.Connection) -> None:
    """Read the file and its log without the shared memory that SQLite would have to create next to them."""
    log = path.with_name(f"{path.name}-wal")
    if not log.exists() or not log.stat().st_size:
        _read(path, memory, "mode=ro&immutable=1")
        return
    try:
        _read(path, memory, "mode=rw")
    except sqlite3.OperationalError:
        # A log that cannot be opened for writing is read elsewhere.
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / path.name
            shutil.copyfile(path, copy)
            shutil.copyfile(log, copy.with_name(log.name))
            _read(copy, memory, "mode=rw")


def _read(path: Path, memory: sqlite3.Connection, options: str) -> None:
    """Copy a store into memory.

    With an exclusive lock, SQLite keeps the index of the log in memory (sqlite.org, "Write-Ahead Logging",
    section "Use of WAL Without Shared-Memory").
    """
    reader = sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True, isolation_level=None)
    try:
        reader.execute("PRAGMA locking_mode = EXCLUSIVE")
        reader.backup(memory)
    finally:
        reader.close()


def _translate(error: Exception, path: Path) -> StoreError:
    """Return the error that a user sees for a failure of SQLite or of the file system."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    message = f"the store {path} cannot be used: {error}"
    hint = "free space on" if code in _FULL else "make writable" if code in _READ_ONLY else ""
    if not hint and isinstance(error, OSError):
        hint = unwritable_hint(error)
    if hint:
        hint = f"{hint} {path.parent}, then run the command again"
        return UnwritableError(f"the store {path} cannot be written: {error}", hint)
    if code in _BUSY:
        return StoreError(message, "another dlcloud command is writing to it; try again")
    if code in _BROKEN:
        hint = f"mv {path} {path}.broken; then dlcloud gc lists the instances that are up"
        return StoreError(message, hint)
    if isinstance(error, NewerSchemaError):
        return StoreError(message, "update dlcloud; dlcloud down --all terminates what is up without it")
    return StoreError(message, "set DLCLOUD_HOME to another folder to start with an empty store")


def _contents(path: Path) -> tuple[int, set[Table]]:
    if path.stat().st_size > _LARGEST_BYTES:
        raise ValueError(f"it has more than {_LARGEST_BYTES >> 30} GiB")
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        return version, _tables(connection)
    finally:
        connection.close()


def _tables_of(version: int) -> set[Table]:
    connection = sqlite3.connect(":memory:")
    try:
        for step in MIGRATIONS[:version]:
            connection.executescript(step)
        return _tables(connection)
    finally:
        connection.close()


def _tables(connection: sqlite3.Connection) -> set[Table]:
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {(kind, name, " ".join(str(sql).split())) for kind, name, sql in rows}
