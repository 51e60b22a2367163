"""A notification when a long command has ended: a command of the user's, or a webhook.

`--notify COMMAND|URL`, or that in the file `notify` of the home, whose first line is either.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import click

Command = TypeVar("Command", bound=Callable[..., Any])


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
    from dlcloud.app.terminal.notification import notify

    message = f"{subject}: {failure or 'done'}"
    if reason := notify(target, message, "failed" if failure else "done"):
        click.echo(f"warning: --notify failed ({reason})", err=True)


def _stored() -> str:
    from dlcloud.app.context import home
    from dlcloud.app.terminal.notification import stored_target

    return stored_target(home())


def _failure(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return "interrupted"
    return (str(error) or type(error).__name__).partition("\n")[0].rstrip(":")
