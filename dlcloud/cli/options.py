"""Options that several commands share, and the kinds of values that options take.

A decorator such as `selection_options` adds options to a command and hands it one value that is made of them,
so that what the options mean is written once. Nothing here imports a library beyond click at the top: --help
imports this module.
"""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from ipaddress import ip_network
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from dlcloud.app.profiles import PROFILE_VARIABLE, default_region
from dlcloud.cli.complete import complete_types

if TYPE_CHECKING:
    from dlcloud.analysis.user_job import UserJob

Command = TypeVar("Command", bound=Callable[..., Any])

FORMATS = ("table", "json", "csv", "markdown")
CLOUDS = ("aws", "local")
MARKETS = ("on-demand", "spot", "spot-then-on-demand")
MOST_NODES = 1000
_DEFAULT_REGION = "Default: that of the recipe or profile, AWS_REGION, or us-east-1."
REGION = f"AWS Region. {_DEFAULT_REGION}"
REGIONS = f"AWS Region, or several with commas, or any. {_DEFAULT_REGION}"


def region_option(command: Command) -> Command:
    """Add the Region, by default the one that recipes without a Region have."""
    option = click.option("--region", default=default_region, metavar="REGION", help=REGION)
    return option(command)


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


class Cidr(click.ParamType[str]):
    """A network in CIDR notation, spelt as EC2 does."""

    name = "network"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return str(ip_network(value))
        except ValueError as error:
            self.fail(f"{error}; for example 203.0.113.7/32", param, ctx)


class Number(click.FloatRange):
    """A number within limits; `nan` and `inf`, which no comparison keeps out, are none."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401  click's own
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return float(number)


class Hours(click.ParamType[float]):
    """A duration: `52h`, `3d`, `1d 12h` or `90m`; a number alone counts hours."""

    name = "duration"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return hours."""
        from dlcloud.recipe.deadline import read_duration  # pydantic, which no --help needs

        if not isinstance(value, str):
            return float(value)
        try:
            hours = float(value)
        except ValueError:
            length = read_duration(value)
            hours = 0.0 if length is None else length.total_seconds() / 3600
        if not 0 < hours <= 24 * 365:
            self.fail(f"{value!r} is not a duration such as 52h, 3d or 90m, of at most a year", param, ctx)
        return hours


class NodeCounts(click.ParamType[tuple[int, ...]]):
    """Numbers of instances: `1,2,4`."""

    name = "counts"

    def convert(
        self, value: "str | tuple[int, ...]", param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the numbers."""
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in value.split(",")]
        if not all(word.isascii() and word.isdigit() and 1 <= int(word) <= MOST_NODES for word in words):
            self.fail(f"{value!r} is not a list of numbers from 1 to {MOST_NODES}, such as 1,2,4", param, ctx)
        return tuple(map(int, words))


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


def add_options(command: Command, *options: Callable[[Command], Command]) -> Command:
    """Add options to a command, in the order in which its help lists them."""
    for option in reversed(options):
        command = option(command)
    return command


def output_option(command: Command) -> Command:
    """Add the format of a result that is a table."""
    option = click.option(
        "-o", "--output", type=click.Choice(FORMATS), default="table", help="Format of the result on stdout."
    )
    return option(command)


def plain_output_option(meaning: str) -> Callable[[Command], Command]:
    """Add the format of a result that is no table."""
    return click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", help=meaning)


def verbose_option(command: Command) -> Command:
    """Add the options of every command that uses collaborators: the profile, and where the log goes."""

    def use_profile(_: click.Context, __: click.Parameter, value: str | None) -> None:
        # For this process and for those that it starts.
        if value:
            os.environ[PROFILE_VARIABLE] = value

    return add_options(
        command,
        click.option(
            "--profile",
            expose_value=False,
            callback=use_profile,
            metavar="NAME",
            help="Profile of ~/.config/dlcloud/config.yaml: the account, and settings of its resources.",
        ),
        click.option("-v", "--verbose", is_flag=True, help="Print the log on stderr."),
    )


def cidr_option(command: Command) -> Command:
    """Add the networks that may reach what is launched, as `cidrs`."""
    option = click.option(
        "--cidr",
        "cidrs",
        multiple=True,
        type=Cidr(),
        help="A network that may reach the instances; repeat it; default: your own address.",
    )
    return option(command)


def type_options(meaning: str) -> Callable[[Command], Command]:
    """Add -t/--type as `types`; the spelling `-i/--instance` of earlier versions is understood, too."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def with_types(*, types: tuple[str, ...], named: tuple[str, ...], **others: object) -> object:
            return command(types=(*types, *named), **others)

        return add_options(
            cast("Command", with_types),
            click.option(
                "-t",
                "--type",
                "types",
                multiple=True,
                metavar="TYPE",
                shell_complete=complete_types,
                help=meaning,
            ),
            click.option(
                "-i", "--instance", "named", multiple=True, hidden=True, shell_complete=complete_types
            ),
        )

    return decorate


def market_options(meaning: str) -> Callable[[Command], Command]:
    """Add --market; the spelling `--spot` of earlier versions is understood, too."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def with_market(*, market: str | None, spot: bool, **others: object) -> object:
            if market and spot and market != "spot":
                raise click.UsageError(f"--spot and --market {market} contradict each other")
            return command(market="spot" if spot else market, **others)

        return add_options(
            cast("Command", with_market),
            click.option("--market", type=click.Choice(MARKETS), default=None, help=meaning),
            click.option("--spot", is_flag=True, hidden=True),
        )

    return decorate


def requirement_options(command: Command) -> Command:
    """Add what instance types must have; the command takes it as `needs`, by keys of a recipe."""
    single = ("gpu", "gpu_memory_gib", "vcpus", "memory_gib", "architecture", "max_usd_per_hour")

    @wraps(command)
    def with_needs(**values: object) -> object:
        needs = {key: value for key in (*single, "instruction_set", "exclude") if (value := values.pop(key))}
        return command(needs=needs, **values)

    return add_options(
        cast("Command", with_needs),
        click.option(
            "--gpu",
            default="",
            metavar="NAME[:N]",
            help="GPUs of an instance: L4 (one), L4:2, L4:1+, any or none.",
        ),
        click.option("--gpu-memory-gib", default="", metavar="N", help="Memory of each GPU: 24, or 24-48."),
        click.option("--vcpus", default="", metavar="N", help="vCPUs: 8 (at least), or 8-16."),
        click.option("--memory-gib", default="", metavar="N", help="Memory: 64 (at least), or 64-128."),
        click.option("--architecture", type=click.Choice(("x86_64", "arm64")), help="Processor."),
        click.option(
            "--instruction-set",
            multiple=True,
            metavar="NAME",
            help="Instruction set of the CPU, such as avx512_vnni or amx; repeat it.",
        ),
        click.option(
            "--max-usd-per-hour", default="", metavar="USD", help="Highest price of an instance an hour."
        ),
        click.option("--exclude", multiple=True, metavar="TYPE", help="A type or pattern to leave out: t3.*"),
    )


def override_options(command: Command) -> Command:
    """Add the options that change a recipe; the command takes them as `overrides`."""

    @wraps(command)
    def with_overrides(
        *,
        cloud: str | None,
        types: tuple[str, ...],
        needs: dict[str, Any],
        region: str,
        market: str | None,
        count: str,
        settings: tuple[str, ...],
        variables: tuple[tuple[str, str], ...],
        secrets: tuple[tuple[str, str], ...],
        **others: object,
    ) -> object:
        from dlcloud.recipe.overrides import Overrides

        overrides = Overrides(
            cloud=cloud or "",
            types=types,
            needs=needs,
            region=region,
            market=market or "",
            count=count,
            settings=settings,
            environment=dict(variables),
            secrets=dict(secrets),
        )
        return command(overrides=overrides, **others)

    return add_options(
        cast("Command", with_overrides),
        click.option(
            "--cloud",
            default=None,
            type=click.Choice(CLOUDS),
            help="Where to run: aws, or local (a rehearsal on this machine, of a recipe for AWS in its"
            " tiny form).",
        ),
        type_options("Instance type, or g6.*; repeat it for several, in the order of trying."),
        requirement_options,
        click.option("--region", default="", metavar="REGION", help=REGIONS),
        market_options("The market of the instances."),
        click.option("--count", default="", metavar="N", help="Number of instances, or a range such as 1-4."),
        click.option(
            "--setting", "settings", multiple=True, metavar="NAME", help="Run only this setting; repeat it."
        ),
        click.option(
            "--env",
            "variables",
            multiple=True,
            type=Assignment(),
            metavar="K=V",
            help="Set an environment variable; repeat it.",
        ),
        click.option(
            "--secret",
            "secrets",
            multiple=True,
            type=Assignment(lambda name: f"env:{name}"),
            metavar="NAME[=SOURCE]",
            help="Pass a secret as an environment variable: from your environment (default), file:, ssm: or "
            "secretsmanager:.",
        ),
    )


values_option = click.option(
    "--values",
    type=click.Choice(("obtainable", "preempted")),
    default=None,
    help="Meaning of 1 in JSON traces of zeros and ones that do not state it: one instance "
    "obtainable, or preempted.",
)
"""What the values of traces mean: the names of `dlcloud.scheduling.simulation.traces.Meaning`."""


def job_options(command: Command) -> Command:
    """Add --job and --epoch, which the command takes as `job`: a UserJob, or None; and --summary."""

    @wraps(command)
    def with_job(*, job: str, epoch: str, **others: object) -> object:
        from dlcloud.analysis.user_job import job_of_options

        read: UserJob | None = job_of_options(job=job, epoch=epoch)
        return command(job=read, **others)

    return add_options(
        cast("Command", with_job),
        click.option(
            "--job",
            default="",
            metavar="WORK",
            help='Your job, for hours and USD: "1.2M images", "90 epochs", "8 h at 500 images/s".',
        ),
        click.option(
            "--epoch",
            default="",
            metavar="ITEMS",
            help='Items in one epoch, for a --job given in epochs: "1.28M images".',
        ),
        click.option("--summary", is_flag=True, help="Print only the answer, one line for each case."),
    )


def description_options(command: Command) -> Command:
    """Add --parameters, --tokens and --generates, which the command takes as `reference`."""

    @wraps(command)
    def with_reference(*, parameters: str, tokens: str, generates: bool, **others: object) -> object:
        from dlcloud.prediction.resemblance import read_description, read_tokens

        if others.get("model"):
            return command(reference=None, tokens=tokens, **others)
        of_model = {"tokens": tokens} if "model" in others else {}
        reference = read_description(parameters, read_tokens(tokens), generates=generates)
        return command(reference=reference, **of_model, **others)

    return add_options(
        cast("Command", with_reference),
        click.option(
            "--parameters",
            default="",
            metavar="N",
            help="Model size in parameters, such as 25.6M or 7B; unknown for a language model of any size.",
        ),
        click.option(
            "--tokens",
            default="",
            metavar="N",
            help="Number of tokens of one sequence that are computed together. [default: 512]",
        ),
        click.option(
            "--generates", is_flag=True, help="The job generates tokens one at a time (memory-bound)."
        ),
    )


def selection_options(command: Command) -> Command:
    """Add the options that select results: --type, --benchmark, --setting and so on.

    The command takes them, with its own parameter `names` (of runs and clusters), as a `Selection`.
    """

    @wraps(command)
    def with_selection(
        *,
        names: tuple[str, ...],
        types: tuple[str, ...],
        benchmarks: tuple[str, ...],
        cases: tuple[str, ...],
        settings: tuple[str, ...],
        clusters: tuple[str, ...],
        clouds: tuple[str, ...],
        since: datetime | None,
        until: datetime | None,
        **others: object,
    ) -> object:
        from dlcloud.store.measurements import Selection

        selection = Selection(
            names=names,
            types=types,
            benchmarks=benchmarks,
            cases=cases,
            settings=settings,
            clusters=clusters,
            clouds=clouds,
            since=since,
            until=until,
        )
        return command(selection=selection, **others)

    return add_options(
        cast("Command", with_selection),
        click.option(
            "-t",
            "--type",
            "types",
            multiple=True,
            metavar="TYPE",
            help="Only this instance type, or family (c7i).",
        ),
        click.option(
            "--benchmark", "benchmarks", multiple=True, metavar="NAME", help="Only this benchmark or recipe."
        ),
        click.option(
            "--case", "cases", multiple=True, metavar="CASE", help="Only this case (`vgg16 batch 1`)."
        ),
        click.option(
            "--setting", "settings", multiple=True, metavar="NAME", help="Only this setting (fp32, int8)."
        ),
        click.option("--cluster", "clusters", multiple=True, metavar="NAME", help="Only this cluster."),
        click.option(
            "--cloud",
            "clouds",
            multiple=True,
            type=click.Choice(CLOUDS),
            help="Only measurements on aws, or only rehearsals (local).",
        ),
        click.option("--since", type=DAY, help="Started on this day (UTC) or later: 2026-09-01."),
        click.option("--until", type=DAY, help="Started before this day (UTC)."),
    )


def notify_option(name: str) -> Callable[[Command], Command]:
    """Add --notify to a command: a command of the user's, or a webhook, once it has finished or failed.

    Without the option, the file `notify` of the dlcloud home may hold either on its first line.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def notified(*, notify: str, **values: object) -> object:
            from dlcloud.app.context import home
            from dlcloud.app.terminal.notification import stored_target

            target = notify or stored_target(home())
            if not target or values.get("dry_run"):
                return command(**values)
            subject = " ".join(
                [f"dlcloud {name}", str(values.get("recipe") or values.get("recipe_option") or "")]
            ).strip()
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
            help="Run this at the end ($DLCLOUD_MESSAGE, $DLCLOUD_STATUS), or post JSON to it.",
        )
        return cast("Command", option(notified))

    return decorate


def notify_end(target: str, subject: str, failure: str) -> None:
    """Notify that a command has ended; what prevents it is a warning."""
    from dlcloud.app.terminal.notification import notify

    message = f"{subject}: {failure or 'done'}"
    if reason := notify(target, message, "failed" if failure else "done"):
        click.echo(f"warning: --notify failed ({reason})", err=True)


def _failure(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return "interrupted"
    return (str(error) or type(error).__name__).partition("\n")[0].rstrip(":")
