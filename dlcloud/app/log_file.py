"""The log of a command: a file, and stderr where it is asked for."""

import logging
import os
from contextlib import suppress
from datetime import UTC, datetime

from dlcloud.store.home import Paths

LOGS_KEPT = 50


class LogFile(logging.FileHandler):
    """The file of a log; what cannot be written is lost, also where the file cannot be opened."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)


def log_to_file(paths: Paths, command: str, *, verbose: bool) -> None:
    """Log to a new file of a command, and with `verbose` to stderr, too; old files are removed."""
    folder = paths.make_folder(paths.logs)
    for old in sorted(folder.glob("*.log"))[:-LOGS_KEPT]:
        with suppress(OSError):
            old.unlink(missing_ok=True)
    path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{command}-{os.getpid()}.log"
    logging.raiseExceptions = False  # a log on a full disk is lost, without a traceback on stderr
    handlers: list[logging.Handler] = [LogFile(path, delay=True)]
    if verbose:
        handlers.append(logging.StreamHandler())
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=handlers
    )
    logging.captureWarnings(True)  # those of libraries are for the log, not for users
    # Below this level botocore and paramiko log requests, with headers and keys.
    for library in ("botocore", "boto3", "urllib3", "paramiko"):
        logging.getLogger(library).setLevel(logging.WARNING)
