"""A store that came from an instance: opened only if it has the tables of a dlcloud and nothing else.

A SQLite file may hold triggers, views and expressions, which run when it is read or written.
"""

import sqlite3
from pathlib import Path

from dlcloud.model.errors import StoreError
from dlcloud.store.database import Database
from dlcloud.store.schema import MIGRATIONS

LARGEST_BYTES = 1 << 32
Table = tuple[str, str, str]


def open_foreign(path: Path) -> Database:
    """Open a store that another machine wrote.

    Raises:
        StoreError: It is none, or holds anything beside the tables of its version, or is too large.
    """
    try:
        version, tables = _contents(path)
    except (sqlite3.Error, OSError, ValueError) as error:
        raise StoreError(f"the fetched store cannot be read: {error}") from error
    if not 0 < version <= len(MIGRATIONS) or tables != _tables_of(version):
        raise StoreError("the fetched store has other tables than a dlcloud writes; nothing of it is used")
    return Database(path)


def _contents(path: Path) -> tuple[int, set[Table]]:
    if path.stat().st_size > LARGEST_BYTES:
        raise ValueError(f"it has more than {LARGEST_BYTES >> 30} GiB")
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
