"""A store that can only be read: it is copied into memory, as reading must not need to write a file."""

import shutil
import sqlite3
import tempfile
from pathlib import Path

from dlcloud.model.errors import UnwritableError
from dlcloud.store.schema import migrate


def copy_to_memory(
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
    """Read the file and its log without the shared memory that SQLite would have to create beside them."""
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
