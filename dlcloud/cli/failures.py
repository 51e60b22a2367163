"""Tell a user what went wrong: the message and the next command to type, or where the log of our bug is."""

import os
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from dlcloud.cli.main import COMMANDS, EXIT_BUG
from dlcloud.core.errors import DlcloudError


def report_error(error: Exception, arguments: Sequence[str]) -> int:
    """Print an error, on stdout too where JSON was asked for; return the exit code."""
    if not isinstance(error, DlcloudError):
        error = _bug(error)
        status = EXIT_BUG
    else:
        status = error.exit_code
    click.echo(click.style("error: ", fg="red", bold=True) + error.message, err=True)
    if error.hint:
        click.echo(click.style("hint: ", fg="cyan") + error.hint, err=True)
    if _wants_json(arguments) and not error.result_shown:
        click.echo(_json(error, status, arguments))
    return status


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
    from dlcloud.cli.context import home

    return home() / "logs" / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-bug-{os.getpid()}.log"


def _wants_json(arguments: Sequence[str]) -> bool:
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    return any(
        first == "--output=json" or (first in {"--output", "-o"} and then == "json") for first, then in pairs
    )


def _json(error: DlcloudError, status: int, arguments: Sequence[str]) -> str:
    from dlcloud.report.table import envelope

    command = next((word for word in arguments if word in COMMANDS), "")
    kind = type(error).__name__
    content = {"kind": kind, "message": error.message, "hint": error.hint, "exit_code": status}
    return envelope(command, {"error": content})
