"""Where results go: to stdout for a command, elsewhere for a caller in Python."""

from collections.abc import Callable

from dlcloud.app.terminal.screen import say
from dlcloud.report.table import Format, Report, render

Show = Callable[[Report], None]
"""Takes the result of a use case."""


def printing(output: str) -> Show:
    """Return what prints a result on stdout in a format."""
    return lambda report: say(render(report, Format(output)))
