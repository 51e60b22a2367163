"""`dlcloud simulate`: replay spot policies over availability traces, before any money is spent."""

import click

from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import collect_options, output_option, verbose_option
from dlcloud.cli.simulation_options import SETTING, SOURCE, add_options
from dlcloud.scheduling.policies.by_name import POLICIES


@click.command("simulate")
@click.argument("recipe")
@add_options(SOURCE)
@add_options(SETTING)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(list(POLICIES)),
    help="Only this one; may be repeated; default: all.",
)
@click.option("--plot", default="", help="Draw one window to this file: .svg, .png or .html.")
@click.option("--window", "window_name", default="", help="Which window --plot draws; default: the first.")
@output_option
@verbose_option
@collect_options(
    "source",
    "dlcloud.app.deadlines.replays:Source",
    (
        "traces",
        "values",
        "pooled",
        "capacity",
        "seed",
        "windows",
        "pools",
        "up_hours",
        "down_hours",
        "adversary",
    ),
)
@collect_options(
    "setting",
    "dlcloud.app.deadlines.replays:SimulationSetting",
    (
        "work",
        "deadlines",
        "changeovers",
        "boot",
        "refusal",
        "refuse_first",
        "on_demand_usd",
        "spot_usd",
        "scaling_loss",
        "traffic_gb",
    ),
)
@collect_options("options", "dlcloud.app.deadlines.simulate:SimulateOptions")
def command(*, options: object, verbose: bool) -> None:
    """Replay spot policies over availability traces: cost, hours, interruptions, missed deadlines.

    The policies are those that choose the instances of a recipe with a deadline; beside them stands the least
    that each window could have cost, had its future been known. Nothing is launched.

    \b
    dlcloud simulate recipe.yaml --traces DIR --work 48 --deadline 52 --deadline 70
    dlcloud simulate recipe.yaml --generate 1 --work 48 --deadline 52 --plot window.svg
    dlcloud simulate recipe.yaml --adversary --refuse-first 3600 --work 48 --deadline 52
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    invoke("dlcloud.app.deadlines.simulate:run", "simulate", verbose=verbose, options=options)
