"""`dlcloud plan`: what deadlines are expected to cost, before anything is launched."""

import click

from dlcloud.cli.complete import complete_recipes
from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import Number, collect_options, output_option, verbose_option
from dlcloud.cli.simulation_options import values_option


@click.command("plan")
@click.argument("recipe", shell_complete=complete_recipes)
@click.option("--deadline", "deadlines", multiple=True, help="As 52h or 3d; may be repeated.")
@click.option(
    "--worker-hours",
    type=Number(0.001, 1e7),
    default=None,
    help="The work, as hours of one worker; default: the recipe's deadline.work with per_hour.",
)
@click.option("--traces", default="", help="Folder of availability traces; default: price history.")
@values_option
@click.option("--pooled", is_flag=True, help="Each folder is a pool; files of one name are one window.")
@click.option(
    "--capacity",
    type=click.IntRange(1, 10000),
    default=None,
    help="Instances that one of a trace stands for; default: count.max if it only says yes or no, else 1.",
)
@click.option(
    "--availability",
    type=Number(0, 1),
    default=None,
    help="With the price history: the share of the time in which each pool has capacity.",
)
@click.option("--history", default="14d", show_default=True, help="How much of the price history.")
@click.option(
    "--windows", type=click.IntRange(1, 1000), default=40, show_default=True, help="Of the history."
)
@click.option("--plot", default="", help="Draw cost against deadline to this file: .svg, .png or .html.")
@output_option
@verbose_option
@collect_options(
    "options",
    "dlcloud.app.deadlines.plan:PlanOptions",
    (
        "deadlines",
        "worker_hours",
        "traces",
        "values",
        "pooled",
        "capacity",
        "availability",
        "history",
        "windows",
    ),
)
def command(*, recipe: str, options: object, plot: str, output: str, verbose: bool) -> None:
    """Print what several deadlines of RECIPE are expected to cost, with all pools and with each alone.

    The policy that the controller asks is replayed over availability traces, or over the spot price history
    of the account. A price history says nothing of capacity: that is assumed, by --availability, else by spot
    placement scores (a score of 7 of 10: 7/10 of the time), else 44 % of the time. Nothing is launched.

    \b
    dlcloud plan recipe.yaml --deadline 52h --deadline 3d
    dlcloud plan recipe.yaml --traces DIR --pooled --plot deadlines.svg
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    invoke(
        "dlcloud.app.deadlines.plan:run",
        "plan",
        verbose=verbose,
        recipe=recipe,
        options=options,
        plot=plot,
        output=output,
    )
