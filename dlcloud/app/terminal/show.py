"""Where results go: to stdout for a command, elsewhere for a caller in Python."""

from collections.abc import Callable

from typing import TYPE_CHECKING

from dlcloud.app.terminal.screen import say

if TYPE_CHECKING:
    from dlcloud.report.table import Report

Show = Callable[["Report"], None]
"""Takes the result of a use case."""


def printing(output: str) -> Show:
    """Return what prints a result on stdout in a format."""
    from dlcloud.report.table import Format, render  # noqa: PLC0415  most of what prints has no table

    return lambda report: say(render(report, Format(output)))
