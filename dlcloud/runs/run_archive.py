"""The archive of one run in a bucket: its log, records and kept files, and a document about it."""

import io
import tarfile
from pathlib import Path

from dlcloud.model.errors import InstanceError
from dlcloud.model.untrusted import is_below

SUFFIX = ".tar.gz"
_TEXTS = ("log", "records.jsonl")
_FILES = "files"


def unpack_run(content: bytes, folder: Path, *, document: str) -> bytes:
    """Write log, records and kept files of a run to its folder; return the document.

    Args:
        content: The archive, which programs of the user's may have written.
        folder: Of the run, named by it.
        document: The name of the document in the archive; without it, it is empty.

    Raises:
        InstanceError: It is no such archive, or leads out of the folder.
    """
    text = b""
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for entry in archive:
                is_kept = entry.name.startswith(f"{_FILES}/") and is_below(entry.name)
                if entry.isreg() and entry.name == document:
                    stream = archive.extractfile(entry)
                    text = stream.read() if stream is not None else b""
                elif entry.isreg() and (entry.name in _TEXTS or is_kept):
                    archive.extract(entry, folder, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise unreadable(folder, error) from error
    return text


def unreadable(folder: Path, error: Exception) -> InstanceError:
    """Return the error of a run whose archive, or its document, cannot be read."""
    return InstanceError(f"the results of {folder.name} cannot be read: {error}")
