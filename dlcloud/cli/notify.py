"""A notification when a long command has ended: a command of the user's, or a webhook.

`--notify COMMAND|URL`, or that in the file `notify` of the home, whose first line is either.
"""

import json
import os
import subprocess
import urllib.request
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import click

Command = TypeVar("Command", bound=Callable[..., Any])

FILE = "notify"
"""Below the home."""
TIMEOUT_S = 20
WEB = ("https://", "http://")


def notify_option(name: str) -> Callable[[Command], Command]:
    """Add --notify to a command; it is carried out when the command has ended, however it has."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def notified(*, notify: str, **values: object) -> object:
            target = notify or _stored()
            if not target or values.get("dry_run"):
                return command(**values)
            subject = " ".join([f"dlcloud {name}", str(values.get("recipe") or "")]).strip()
            try:
                result = command(**values)
            except BaseException as error:
                notify_end(target, subject, _failure(error))
                raise
            notify_end(target, subject, "")
            return result

        option = click.option(
            "--notify",
            default="",
            metavar="COMMAND|URL",
            help="When it has ended, run this ($DLCLOUD_MESSAGE, $DLCLOUD_STATUS), or post JSON there.",
        )
        return cast("Command", option(notified))

    return decorate


def notify_end(target: str, subject: str, failure: str) -> None:
    """Notify that a command has ended; what prevents it is a warning."""
    status = "failed" if failure else "done"
    message = f"{subject}: {failure or 'done'}"
    try:
        if target.startswith(WEB):
            _post(target, {"text": message, "status": status})
        else:
            environment = os.environ | {"DLCLOUD_MESSAGE": message, "DLCLOUD_STATUS": status}
            subprocess.run(  # noqa: S602  the user's own command line
                target,
                shell=True,
                env=environment,
                check=True,
                timeout=TIMEOUT_S,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        # Never the target itself: a webhook's address is a secret.
        reason = (
            f"status {error.returncode}"
            if isinstance(error, subprocess.CalledProcessError)
            else type(error).__name__
        )
        click.echo(f"warning: --notify failed ({reason})", err=True)


def _post(url: str, content: dict[str, str]) -> None:
    request = urllib.request.Request(  # noqa: S310  http and https only
        url, data=json.dumps(content).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310
        pass


def _stored() -> str:
    from dlcloud.app.context import home

    try:
        return (home() / FILE).read_text("utf-8").strip().partition("\n")[0]
    except (OSError, UnicodeDecodeError):
        return ""


def _failure(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return "interrupted"
    return (str(error) or type(error).__name__).partition("\n")[0].rstrip(":")
