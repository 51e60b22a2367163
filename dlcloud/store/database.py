"""One SQLite file that several commands and threads use at once."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import RLock
from typing import Any

from dlcloud.core.errors import StoreError
from dlcloud.store.schema import migrate
from dlcloud.system.files import FileLock

BUSY_TIMEOUT_S = 30.0

Value = str | int | float | None


class Database:
    """Reads and writes rows; the tables are of `schema`.

    Args:
        path: The SQLite file; made, mode 0600, if it is missing. Its folder must exist.

    Raises:
        StoreError: From any method, where the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = RLock()
        with self._translated():
            path.touch(mode=0o600, exist_ok=True)
            self._connection = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            try:
                # SQLite does not wait for its turn where two processes switch a new file to WAL at once.
                with FileLock(path.with_name(f"{path.name}.lock")):
                    self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def read(self, statement: str, *values: Value) -> list[sqlite3.Row]:
        """Return the rows of a SELECT."""
        with self._lock, self._translated():
            return self._connection.execute(statement, values).fetchall()

    def write(self, statement: str, *values: Value) -> int:
        """Carry out a statement; returns the number of the row it inserted."""
        with self._lock, self._translated():
            return int(self._connection.execute(statement, values).lastrowid or 0)

    def insert(self, table: str, row: Mapping[str, Any], *, replace: bool = False) -> int:
        """Insert a row; its values are stored as text where SQLite has no type for them."""
        verb = "INSERT OR REPLACE" if replace else "INSERT"
        marks = ", ".join("?" * len(row))
        return self.write(
            f"{verb} INTO {table} ({', '.join(row)}) VALUES ({marks})",  # table and columns are our own words
            *(_stored(value) for value in row.values()),
        )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make everything within one step: all is stored, or nothing; one within another is part of it."""
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
        # A result once reported is never lost, not to a power cut either.
        self._connection.execute("PRAGMA synchronous = FULL")
        migrate(self._connection)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:
            hint = "set DLCLOUD_HOME to another folder to start afresh"
            raise StoreError(f"the store {self._path} cannot be used: {error}", hint) from error


def optional_time(text: str | None) -> datetime | None:
    """Read a stored time; None where none was stored."""
    return None if text is None else datetime.fromisoformat(text)


def _stored(value: object) -> Value:
    if value is None or isinstance(value, int | float):
        return value
    isoformat = getattr(value, "isoformat", None)
    return str(isoformat()) if isoformat else str(value)
