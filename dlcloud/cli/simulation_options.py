"""The options of `dlcloud simulate` that say what is replayed."""

from collections.abc import Callable, Sequence

import click

from dlcloud.cli.options import Command, Number
from dlcloud.model.boots import SLOW_BOOT_S
from dlcloud.model.surcharges import ZONE_TRAFFIC_USD_PER_GB
from dlcloud.scheduling.simulation.defaults import CHANGEOVER_S, SPOT_SHARE
from dlcloud.scheduling.simulation.formats import Meaning

values_option = click.option(
    "--values",
    type=click.Choice(list(Meaning)),
    default=None,
    help="Meaning of 1 in JSON traces of zeros and ones that do not say it: one instance obtainable "
    "(skypilot-org/spot-traces) or preempted (Can't Be Late's simulator). No default. Windows of "
    "FrontierCS/Frontier-CS are recognized as preempted.",
)

SOURCE = (
    click.option("--traces", default="", help="Folder of traces, or one of them; each file is one window."),
    values_option,
    click.option("--pooled", is_flag=True, help="Each folder is a pool; files of one name are one window."),
    click.option(
        "--capacity",
        type=click.IntRange(1, 10000),
        default=None,
        help="Instances that one of a trace stands for; default: all that the recipe may have if traces only "
        "say yes or no, else 1.",
    ),
    click.option("--generate", "seed", type=int, default=None, help="Make up traces, from this seed on."),
    click.option(
        "--windows",
        type=click.IntRange(1, 100000),
        default=100,
        show_default=True,
        help="Of --generate: windows, each from its own seed.",
    ),
    click.option("--pools", type=click.IntRange(1, 100), default=1, show_default=True, help="Of --generate."),
    click.option(
        "--up-hours",
        type=Number(0.01, 1000),
        default=1.2,
        show_default=True,
        help="Of --generate: mean spell with capacity; exponentially distributed.",
    ),
    click.option(
        "--down-hours",
        type=Number(0.01, 1000),
        default=1.5,
        show_default=True,
        help="Of --generate: mean spell without.",
    ),
    click.option(
        "--adversary",
        is_flag=True,
        help="Replay the worst: no spot, spot that vanishes after each hour, spot that flaps at each tick.",
    ),
)


SETTING = (
    click.option(
        "--work",
        type=Number(0.01, 10000),
        default=None,
        help="Hours on all workers; default: the recipe's.",
    ),
    click.option(
        "--deadline",
        "deadlines",
        multiple=True,
        type=Number(0.01, 10000),
        help="Hours from the start; may be repeated; default: the recipe's.",
    ),
    click.option(
        "--changeover",
        "changeovers",
        multiple=True,
        type=Number(0, 86400),
        default=(CHANGEOVER_S,),
        show_default=True,
        help="Seconds without progress at a change of workers; may be repeated.",
    ),
    click.option(
        "--boot",
        type=Number(0, 86400),
        default=SLOW_BOOT_S,
        show_default=True,
        help="Seconds that a new instance is billed before its worker joins; the others train on. By default "
        "the 90th percentile of boots measured on EC2.",
    ),
    click.option(
        "--refusal",
        type=Number(0, 86400),
        default=None,
        help="Policies keep so many seconds for a refusal of on-demand instances; default: an hour, at most "
        "a tenth of the time.",
    ),
    click.option(
        "--refuse-first",
        type=Number(0, 86400),
        default=0.0,
        show_default=True,
        help="The first on-demand request after the start is refused for so many seconds.",
    ),
    click.option("--on-demand-usd", type=Number(0.0001, 10000), default=None, help="Of an instance-hour."),
    click.option(
        "--spot-usd",
        type=Number(0, 10000),
        default=None,
        help=f"Where traces have no prices; default: {SPOT_SHARE} of on-demand.",
    ),
    click.option(
        "--scaling-loss",
        type=Number(0, 1),
        default=0.0,
        show_default=True,
        help="Share of its speed that each further worker costs all; 0: linear.",
    ),
    click.option(
        "--traffic-gb",
        type=Number(0, 1e6),
        default=0.0,
        show_default=True,
        help=f"GB that a worker in another zone exchanges an hour, at {ZONE_TRAFFIC_USD_PER_GB} USD.",
    ),
)


def add_options(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
