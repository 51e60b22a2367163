"""One SQLite file that several commands and threads use at once, and its rows as dataclasses."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import cache
from pathlib import Path
from threading import RLock
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_type_hints

from dlcloud.core.errors import StoreError
from dlcloud.store.schema import migrate
from dlcloud.system.files import FileLock

BUSY_TIMEOUT_S = 30.0

Value = str | int | float | None
T = TypeVar("T")


class Database:
    """Reads and writes rows; the tables are of `schema`.

    Args:
        path: The SQLite file; created, mode 0600, if it is missing. Its folder must exist.

    Raises:
        StoreError: From any method, if the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = RLock()
        with self._translate_errors():
            path.touch(mode=0o600, exist_ok=True)
            self._connection = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            try:
                # SQLite does not wait if two processes switch a new file to WAL at once.
                with FileLock(path.with_name(f"{path.name}.lock")):
                    self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        self._connection.close()

    def read(self, statement: str, *values: Value) -> list[sqlite3.Row]:
        with self._lock, self._translate_errors():
            return self._connection.execute(statement, values).fetchall()

    def write(self, statement: str, *values: Value) -> int:
        """Execute a statement; return the number of the row it inserted."""
        with self._lock, self._translate_errors():
            return int(self._connection.execute(statement, values).lastrowid or 0)

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
            except BaseException:
                self.write("ROLLBACK")
                raise
            self.write("COMMIT")

    def _prepare(self) -> None:
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA journal_mode = WAL")
        # A reported result is never lost, not even to a power failure.
        self._connection.execute("PRAGMA synchronous = FULL")
        migrate(self._connection)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:
            hint = "set DLCLOUD_HOME to another folder to start with an empty store"
            raise StoreError(f"the store {self._path} cannot be used: {error}", hint) from error


def read_row(kind: type[T], row: sqlite3.Row, **others: object) -> T:
    """Build a dataclass from the columns that have the names of its fields.

    Args:
        kind: A dataclass; a field without a column has its default.
        row: Values as `Database.insert` stores them.
        others: Values of fields that are not read from the row.
    """
    columns = set(row.keys()) - others.keys()
    values = {
        name: row[name] if convert is None or row[name] is None else convert(row[name])
        for name, convert in _converters(cast("type", kind)).items()
        if name in columns
    }
    return kind(**values, **others)


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
