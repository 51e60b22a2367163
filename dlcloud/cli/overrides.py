"""Options that change a recipe for one command."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from dlcloud.cli.options import Command, collect_options

if TYPE_CHECKING:
    pass


class Assignment(click.ParamType[tuple[str, str]]):
    """NAME=TEXT; where `default` is given, NAME alone, whose text it returns."""

    name = "assignment"

    def __init__(self, default: Callable[[str], str] | None = None) -> None:
        self._default = default

    def convert(
        self, value: str | tuple[str, str], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return name and text."""
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        if not name.isidentifier() or not name.isascii():
            # Whatever it is, it may be a secret.
            self.fail("the name of a variable comes first, as in BATCH=8", param, ctx)
        if equals:
            return name, text
        if self._default is None:
            self.fail(f"{name} has no value; write {name}=VALUE", param, ctx)
        return name, self._default(name)


def override_options(command: Command) -> Command:
    """Add the options that change a recipe; the command takes them as `overrides`."""
    options = (
        click.option(
            "--cloud",
            default="",
            type=click.Choice(["", "aws", "local"]),
            metavar="CLOUD",
            help="aws, or local: rehearsed on this machine, a recipe for AWS in its tiny form.",
        ),
        click.option("--type", "types", multiple=True, metavar="TYPE", help="This instance type; repeat it."),
        click.option("--region", default="", metavar="REGION", help="In this region."),
        click.option(
            "--market",
            default="",
            type=click.Choice(["", "on-demand", "spot", "spot-then-on-demand"]),
            metavar="MARKET",
            help="on-demand, spot or spot-then-on-demand.",
        ),
        click.option("--count", default="", metavar="N", help="So many instances, or 1-4."),
        click.option("--setting", "settings", multiple=True, metavar="NAME", help="Only this setting."),
        click.option(
            "--env", "variables", multiple=True, type=Assignment(), metavar="K=V", help="A variable."
        ),
        click.option(
            "--secret",
            "secrets",
            multiple=True,
            type=Assignment(lambda name: f"env:{name}"),
            metavar="NAME[=SOURCE]",
            help="A variable whose value is not stored: yours, or of file:, ssm:, secretsmanager:.",
        ),
    )
    fields = ("cloud", "types", "region", "market", "count", "settings", "variables", "secrets")
    command = collect_options("overrides", "dlcloud.recipe.overrides:overrides_of_options", fields)(command)
    for option in reversed(options):
        command = option(command)
    return command
