"""One SQLite file that several commands and threads use at once, and its rows as dataclasses."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
from dlcloud.store.faults import translate
from dlcloud.store.schema import migrate
from dlcloud.store.unwritable import copy_to_memory
from dlcloud.system.files import FileLock

BUSY_TIMEOUT_S = 30.0

Value = str | int | float | None
Write = tuple[str, Sequence[Value]]
T = TypeVar("T")


class Database:
    """Reads and writes rows; the tables are of `schema`.

    On a full disk or in a read-only folder it is read all the same, and what is written raises.

    Args:
        path: The SQLite file; created, mode 0600, if it is missing. Its folder must exist.

    Raises:
        StoreError: From any method, if the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = RLock()
        self._unwritable: UnwritableError | None = None
        self._unfinished: list[Write] = []
        self._postponed: list[Write] | None = None
        try:
            self._connection = self._open()
        except UnwritableError as error:
            with self._translate_errors():
                self._connection = copy_to_memory(path, error)
            self._unwritable = error

    def close(self) -> None:
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
                    self._go_on_in_memory(error)
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
            if self._connection.in_transaction:
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
                # SQLite does not wait if two processes switch a new file to WAL at once.
                with FileLock(self._path.with_name(f"{self._path.name}.lock")):
                    _prepare(connection)
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

    def _go_on_in_memory(self, error: UnwritableError) -> None:
        """Continue on a copy in memory, with what a transaction had executed so far."""
        with self._translate_errors():
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            memory = copy_to_memory(self._path, error, self._connection)
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
            raise translate(error, self._path) from error


def _prepare(connection: sqlite3.Connection) -> None:
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode = WAL")
    # A reported result is never lost, not even to a power failure.
    connection.execute("PRAGMA synchronous = FULL")
    migrate(connection)


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
