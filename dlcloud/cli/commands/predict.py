"""`dlcloud predict`: what a measured job would do on all other CPU types of a region."""

from typing import TYPE_CHECKING

import click

from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import (
    collect_options,
    description_options,
    output_option,
    selection_options,
    verbose_option,
)
from dlcloud.model.cluster import DEFAULT_REGION

if TYPE_CHECKING:
    from dlcloud.store.selection import Selection


@click.command("predict")
@click.argument("names", metavar="[RUNS]...", nargs=-1)
@selection_options
@click.option("--region", default=DEFAULT_REGION, show_default=True, help="Whose types and prices.")
@click.option(
    "--market",
    type=click.Choice(["on-demand", "spot"]),
    default="on-demand",
    show_default=True,
    help="By whose price types are ranked.",
)
@click.option("--live", is_flag=True, help="Ask AWS for prices, spot too.")
@click.option("--all", "every", is_flag=True, help="Every type, not only the cheapest.")
@description_options
@output_option
@verbose_option
@collect_options("offers", "dlcloud.app.results.predict:Offers", ("region", "market", "live"))
def command(
    *,
    selection: "Selection",
    offers: object,
    every: bool,
    description: object,
    output: str,
    verbose: bool,
) -> None:
    """Predict throughput and USD per million items of what was measured, on all CPU types of a region.

    Each job of the stored results, or of RUNS, is predicted from the types on which it ran, with 90 %
    intervals; three types of different size and processor tell most. Every figure is marked as predicted or
    measured. Say how large the job's model is with --parameters, and for language models --tokens and
    --generates: the median error is then 14 % instead of 23 %. Jobs on GPUs, on several instances, and
    rehearsals are not predicted.
    """
    invoke(
        "dlcloud.app.results.predict:run",
        "predict",
        verbose=verbose,
        selection=selection,
        offers=offers,
        every=every,
        description=description,
        output=output,
    )
