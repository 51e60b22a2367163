"""Options that several commands share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

FORMATS = ("table", "json", "csv", "markdown")


def output_option(command: Command) -> Command:
    """Add --output."""
    option = click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default="table",
        help="How the result is written to stdout.",
    )
    return option(command)


def verbose_option(command: Command) -> Command:
    """Add --verbose."""
    return click.option("-v", "--verbose", is_flag=True, help="Diagnosis on stderr, too.")(command)
