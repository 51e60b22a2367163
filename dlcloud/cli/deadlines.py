"""The commands that say what a deadline costs, before any money is spent: `deadlines` and `simulate`.

The use cases are in `dlcloud/app/deadlines`. `deadlines` replays the policy that a controller asks,
`simulate` any policy; neither launches anything.
"""

import click

from dlcloud.cli.complete import complete_recipes
from dlcloud.cli.options import Hours, Number, output_option, values_option, verbose_option
from dlcloud.model.instance import SLOW_BOOT_S
from dlcloud.model.money import REGION_TRAFFIC_USD_PER_GB, ZONE_TRAFFIC_USD_PER_GB
from dlcloud.scheduling.policies import POLICIES
from dlcloud.scheduling.simulation.replay import CHANGEOVER_S, SPOT_SHARE

commands = click.Group()


@commands.command("deadlines")
@click.argument("recipe", shell_complete=complete_recipes)
@click.option(
    "--deadline", "deadlines", multiple=True, type=Hours(), help="A deadline, such as 52h or 3d; repeat it."
)
@click.option(
    "--worker-hours",
    type=Number(0.001, 1e7),
    default=None,
    help="Hours that one worker needs for the work; default: the recipe's deadline.work with per_hour.",
)
@click.option(
    "--traces", default="", metavar="PATH", help="Folder of availability traces; default: price history."
)
@values_option
@click.option("--pooled", is_flag=True, help="Each folder is a pool; files of one name are one window.")
@click.option(
    "--capacity",
    type=click.IntRange(1, 10000),
    default=None,
    metavar="N",
    help="Number of instances that one in a trace stands for. Default: 1, or count.max for yes/no traces.",
)
@click.option(
    "--availability",
    type=Number(0, 1),
    default=None,
    help="Share of the time in which each pool has capacity (with a price history).",
)
@click.option(
    "--history", default="14d", show_default=True, metavar="DURATION", help="Length of the price history."
)
@click.option(
    "--windows",
    "number",
    type=click.IntRange(1, 1000),
    default=40,
    show_default=True,
    metavar="N",
    help="Number of windows of the history.",
)
@click.option(
    "--plot", default="", metavar="FILE", help="Draw cost against deadline to this file: .svg, .png or .html."
)
@output_option
@verbose_option
def deadlines(
    *,
    recipe: str,
    deadlines: tuple[float, ...],
    worker_hours: float | None,
    traces: str,
    values: str | None,
    pooled: bool,
    capacity: int | None,
    availability: float | None,
    history: str,
    number: int,
    plot: str,
    output: str,
    verbose: bool,
) -> None:
    """Print what several deadlines of RECIPE are expected to cost, with all pools and with each alone.

    The controller's policy is replayed over availability traces, or over the account's spot price
    history. A price history does not show capacity, so capacity is assumed: --availability if given, else
    the spot placement score (7 of 10: available 70 % of the time), else 56 %. Nothing is launched.

    \b
    dlcloud deadlines recipe.yaml --deadline 52h --deadline 3d
    dlcloud deadlines recipe.yaml --traces DIR --pooled --plot deadlines.svg
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    from dlcloud.app.context import Context
    from dlcloud.app.deadlines import compare_deadlines

    with Context("deadlines", verbose=verbose) as context:
        compare_deadlines(
            context,
            recipe=recipe,
            deadlines=deadlines,
            worker_hours=worker_hours,
            traces=traces,
            values=values,
            pooled=pooled,
            capacity=capacity,
            availability=availability,
            history=history,
            number=number,
            plot=plot,
            output=output,
        )


@commands.command("simulate")
@click.argument("recipe", shell_complete=complete_recipes)
@click.option(
    "--traces", default="", metavar="PATH", help="Folder of traces, or one of them; each file is one window."
)
@values_option
@click.option("--pooled", is_flag=True, help="Each folder is a pool; files of one name are one window.")
@click.option(
    "--capacity",
    type=click.IntRange(1, 10000),
    default=None,
    metavar="N",
    help="Number of instances that one in a trace stands for. Default: 1, or count.max for yes/no traces.",
)
@click.option(
    "--generate", "seed", type=int, default=None, metavar="N", help="Generate traces, from this seed on."
)
@click.option(
    "--windows",
    "number",
    type=click.IntRange(1, 100000),
    default=100,
    show_default=True,
    metavar="N",
    help="Number of generated windows.",
)
@click.option(
    "--pools",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of generated pools.",
)
@click.option(
    "--up-hours",
    type=Number(0.01, 1000),
    default=2.4,
    show_default=True,
    help="Mean hours with capacity in generated traces.",
)
@click.option(
    "--down-hours",
    type=Number(0.01, 1000),
    default=1.9,
    show_default=True,
    help="Mean hours without capacity in generated traces.",
)
@click.option(
    "--adversary",
    is_flag=True,
    help="Replay the worst: no spot, spot that vanishes after each hour, spot that flaps at each tick.",
)
@click.option(
    "--work",
    type=Hours(),
    default=None,
    help="Time that the work takes on all workers, such as 48h; default: the recipe's.",
)
@click.option(
    "--deadline",
    "deadlines",
    multiple=True,
    type=Hours(),
    help="Time from the start, such as 52h or 3d; repeat it; default: the recipe's.",
)
@click.option(
    "--changeover",
    "changeovers",
    multiple=True,
    type=Number(0, 86400),
    default=(CHANGEOVER_S,),
    show_default=True,
    help="Seconds without progress at a change of workers; repeat it.",
)
@click.option(
    "--boot",
    type=Number(0, 86400),
    default=SLOW_BOOT_S,
    show_default=True,
    help="Seconds that a new instance is billed before its worker joins.",
)
@click.option(
    "--refusal",
    type=Number(0, 86400),
    default=None,
    help="Seconds reserved for on-demand refusals; default: an hour, at most a tenth of the time.",
)
@click.option(
    "--refuse-first",
    type=Number(0, 86400),
    default=0.0,
    show_default=True,
    help="Seconds for which the first on-demand request after the start is refused.",
)
@click.option(
    "--on-demand-usd", type=Number(0.0001, 10000), default=None, help="On-demand price of an instance-hour."
)
@click.option(
    "--spot-usd",
    type=Number(0, 10000),
    default=None,
    help=f"Spot price if traces have none; default: {SPOT_SHARE} of on-demand.",
)
@click.option(
    "--scaling-loss",
    type=Number(0, 1),
    default=0.0,
    show_default=True,
    help="Share of its speed that each further worker costs all; 0: linear.",
)
@click.option(
    "--traffic-gb",
    type=Number(0, 1e6),
    default=0.0,
    show_default=True,
    help=f"GB that a worker in another zone exchanges an hour, at {ZONE_TRAFFIC_USD_PER_GB} USD.",
)
@click.option(
    "--state-gb",
    type=Number(0, 1e6),
    default=0.0,
    show_default=True,
    help=f"Size of a checkpoint, which moves between Regions at {REGION_TRAFFIC_USD_PER_GB} USD per GB.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(list(POLICIES)),
    help="Replay only this policy; repeat it; default: all.",
)
@click.option("--plot", default="", metavar="FILE", help="Draw one window to this file: .svg, .png or .html.")
@click.option(
    "--window",
    "window_name",
    default="",
    metavar="NAME",
    help="Window that --plot draws; default: the first.",
)
@output_option
@verbose_option
def simulate(
    *,
    recipe: str,
    traces: str,
    values: str | None,
    pooled: bool,
    capacity: int | None,
    seed: int | None,
    number: int,
    pools: int,
    up_hours: float,
    down_hours: float,
    adversary: bool,
    work: float | None,
    deadlines: tuple[float, ...],
    changeovers: tuple[float, ...],
    boot: float,
    refusal: float | None,
    refuse_first: float,
    on_demand_usd: float | None,
    spot_usd: float | None,
    scaling_loss: float,
    traffic_gb: float,
    state_gb: float,
    policies: tuple[str, ...],
    plot: str,
    window_name: str,
    output: str,
    verbose: bool,
) -> None:
    """Replay spot policies over availability traces: cost, hours, interruptions, missed deadlines.

    Next to each policy stands the least that a window could have cost, had its future been known. Nothing
    is launched.

    \b
    dlcloud simulate recipe.yaml --traces DIR --work 48h --deadline 52h
    dlcloud simulate recipe.yaml --generate 1 --deadline 52h --plot window.svg
    dlcloud simulate recipe.yaml --adversary --refuse-first 3600 --deadline 52h
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    from dlcloud.app.context import Context
    from dlcloud.app.deadlines import simulate as replay_policies

    with Context("simulate", verbose=verbose) as context:
        replay_policies(
            context,
            recipe=recipe,
            traces=traces,
            values=values,
            pooled=pooled,
            capacity=capacity,
            seed=seed,
            number=number,
            pools=pools,
            up_hours=up_hours,
            down_hours=down_hours,
            adversary=adversary,
            work=work,
            deadlines=deadlines,
            changeovers=changeovers,
            boot=boot,
            refusal=refusal,
            refuse_first=refuse_first,
            on_demand_usd=on_demand_usd,
            spot_usd=spot_usd,
            scaling_loss=scaling_loss,
            traffic_gb=traffic_gb,
            state_gb=state_gb,
            policies=policies,
            plot=plot,
            window_name=window_name,
            output=output,
        )
