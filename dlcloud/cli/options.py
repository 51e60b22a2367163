"""Options that several commands share."""

import os
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from functools import wraps
from ipaddress import ip_network
from math import isfinite
from typing import Any, TypeVar, cast

import click

from dlcloud.app.variables import PROFILE_VARIABLE
from dlcloud.cli.invoke import resolve

Command = TypeVar("Command", bound=Callable[..., Any])

FORMATS = ("table", "json", "csv", "markdown")


class Day(click.ParamType[datetime]):
    """A day or a time, in UTC unless it has an offset."""

    name = "date"

    def convert(
        self, value: str | datetime, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Return an aware time; a day without a time is its beginning."""
        if isinstance(value, datetime):
            return value
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a date like 2026-09-01 or 2026-09-01T12:00", param, ctx)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


DAY = Day()


class NetworkOptions(click.ParamType[str]):
    """A network, spelt as EC2 does."""

    name = "network"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return str(ip_network(value))
        except ValueError as error:
            self.fail(f"{error}; for example 203.0.113.7/32", param, ctx)


class Number(click.FloatRange):
    """A number within limits; `nan` and `inf`, which no comparison keeps out, are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401  click's own
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return float(number)


def cidr_option(instances: str) -> Callable[[Command], Command]:
    """Add the networks that may reach some instances, as `cidrs`."""
    return click.option(
        "--cidr",
        "cidrs",
        multiple=True,
        type=NetworkOptions(),
        help=f"A network that may reach {instances}; may be repeated; default: your own address.",
    )


def output_option(command: Command) -> Command:
    option = click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default="table",
        help="Format of the result on stdout.",
    )
    return option(command)


def _use_profile(_: click.Context, __: click.Parameter, value: str | None) -> None:
    """Set the profile of this process and of those that it starts."""
    if value:
        os.environ[PROFILE_VARIABLE] = value


def verbose_option(command: Command) -> Command:
    """Add the options of every command that uses collaborators: the profile, and where the log goes."""
    command = click.option(
        "--profile",
        expose_value=False,
        callback=_use_profile,
        help="A profile of ~/.config/dlcloud/config.yaml: the account, and what its resources need.",
    )(command)
    return click.option("-v", "--verbose", is_flag=True, help="Print the log on stderr.")(command)


def collect_options(
    parameter: str,
    target: str,
    names: Collection[str] | None = None,
    *,
    apart: Collection[str] = ("verbose",),
) -> Callable[[Command], Command]:
    """Pass several options to the command as one object.

    Args:
        parameter: The command's parameter that takes the object.
        target: `module:name` of what makes the object of the options' values, its keyword arguments.
        names: The options' parameter names; None for all but `apart`.
        apart: Parameters that the command takes itself.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def collected(**values: object) -> object:
            chosen = values.keys() - set(apart) if names is None else names
            fields = {name: values.pop(name) for name in chosen}
            return command(**values, **{parameter: resolve(target)(**fields)})

        return cast("Command", collected)

    return decorate


def job_options(command: Command) -> Command:
    """Add --job and --epoch, which the command takes as `job`: a UserJob, or None; and --summary."""
    options = (
        click.option(
            "--job",
            default="",
            metavar="WORK",
            help='Your job, for hours and USD: "1.2M images", "90 epochs", "8 h at 500 images/s".',
        ),
        click.option("--epoch", default="", metavar="ITEMS", help='Of an epoch of --job: "1.28M images".'),
        click.option("--summary", is_flag=True, help="The answer alone, a line for each case."),
    )
    command = collect_options("job", "dlcloud.results.user_job:job_of_options", ("job", "epoch"))(command)
    for option in reversed(options):
        command = option(command)
    return command


def description_options(command: Command) -> Command:
    """Add --parameters, --tokens and --generates, which the command takes as `description`."""
    options = (
        click.option(
            "--parameters",
            default="",
            metavar="N",
            help="Of the job's model (25.6M, 7B): predictions are then better.",
        ),
        click.option(
            "--tokens",
            type=click.IntRange(min=1),
            default=None,
            help="Tokens of one sequence that are computed together; default: 512.",
        ),
        click.option("--generates", is_flag=True, help="The job writes tokens one by one: memory bounds it."),
    )
    names = ("parameters", "tokens", "generates")
    command = collect_options("description", "dlcloud.app.results.predict:Description", names)(command)
    for option in reversed(options):
        command = option(command)
    return command


def selection_options(command: Command) -> Command:
    """Add the options that select results: --type, --benchmark, --setting and so on.

    The command takes them, with its own parameter `names` (of runs and clusters), as a `Selection`.
    """
    options = (
        click.option("--type", "types", multiple=True, help="Of this instance type, or family (c7i)."),
        click.option("--benchmark", "benchmarks", multiple=True, help="Of this benchmark, or recipe."),
        click.option("--case", "cases", multiple=True, help="Of this case (`vgg16 batch 1`)."),
        click.option("--setting", "settings", multiple=True, help="Of this setting (fp32, int8)."),
        click.option("--cluster", "clusters", multiple=True, help="Of this cluster."),
        click.option(
            "--cloud",
            "clouds",
            multiple=True,
            type=click.Choice(["aws", "local"]),
            help="Real, or rehearsed.",
        ),
        click.option("--since", type=DAY, help="Started on this day (UTC) or later: 2026-09-01."),
        click.option("--until", type=DAY, help="Started before this day (UTC)."),
    )
    fields = ("types", "benchmarks", "cases", "settings", "clusters", "clouds", "since", "until", "names")
    command = collect_options("selection", "dlcloud.store.selection:Selection", fields)(command)
    for option in reversed(options):
        command = option(command)
    return command
