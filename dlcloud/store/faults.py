"""What a failure of the store means, and what its user can do about it."""

import sqlite3
from pathlib import Path

from dlcloud.model.errors import StoreError, UnwritableError
from dlcloud.system.files import unwritable_hint

_PRIMARY = 0xFF  # extended result codes have the primary one in their lowest byte
_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_READ_ONLY = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}


class NewerSchemaError(ValueError):
    """A newer dlcloud wrote the store."""


def translate(error: Exception, path: Path) -> StoreError:
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
        return StoreError(message, "update dlcloud, or set DLCLOUD_HOME to another folder")
    return StoreError(message, "set DLCLOUD_HOME to another folder to start with an empty store")
