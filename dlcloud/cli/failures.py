"""Report an error to the user: its message and the next command to type, or the log of a bug of ours."""

import errno
import os
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from dlcloud.model.errors import DlcloudError, StoreError, UnwritableError
from dlcloud.model.untrusted import printable
from dlcloud.system.files import unwritable_hint

EXIT_BUG = 70  # Source: sysexits.h, EX_SOFTWARE


def report_error(error: Exception, *, command: str, arguments: Sequence[str]) -> int:
    """Print an error, on stdout too where JSON was asked for; return the exit code."""
    if isinstance(error, DlcloudError):
        status = error.exit_code
    elif isinstance(error, OSError) and (error.errno == errno.EIO or unwritable_hint(error)):
        message = f"cannot write {error.filename or 'the output'}: {error.strerror}"
        hint = unwritable_hint(error)
        error = UnwritableError(message, f"{hint} its disk" if hint else "")
        status = error.exit_code
    elif isinstance(error, FileNotFoundError) and not home().exists():
        message = f"{home()} was removed while this command used it"
        error = StoreError(message, "what it launched on AWS: dlcloud gc --all-owners; it ends itself, too")
        status = error.exit_code
    else:
        error, status = _bug(error), EXIT_BUG
    click.echo(click.style("error: ", fg="red", bold=True) + printable(error.message), err=True)
    if error.hint:
        click.echo(click.style("hint: ", fg="cyan") + printable(error.hint), err=True)
    if _is_json_wanted(arguments) and not error.result_shown:
        click.echo(_json(error, status, command))
    return status


def home() -> Path:
    """Return the folder of all that dlcloud keeps."""
    from dlcloud.app.context import home as folder

    return folder()


def _bug(error: Exception) -> DlcloudError:
    path = _log_path()
    text = "".join(traceback.format_exception(error))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(text)
    except OSError:
        return DlcloudError(f"a bug in dlcloud, and its log could not be written:\n{text}")
    return DlcloudError(
        f"a bug in dlcloud ({type(error).__name__}: {error})",
        f"please report it with {path}; then dlcloud status",
    )


def _log_path() -> Path:
    return home() / "logs" / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-bug-{os.getpid()}.log"


def _is_json_wanted(arguments: Sequence[str]) -> bool:
    pairs = zip(arguments, [*arguments[1:], ""], strict=False)
    return any(
        option == "--output=json" or (option in {"--output", "-o"} and value == "json")
        for option, value in pairs
    )


def _json(error: DlcloudError, status: int, command: str) -> str:
    from dlcloud.report.table import envelope

    content = {
        "kind": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "exit_code": status,
    }
    return envelope(command, {"error": content})
