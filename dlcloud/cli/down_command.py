"""`dlcloud down`: end clusters and all that belongs to them."""

import click

from dlcloud.cli.options import output_option, verbose_option


@click.command("down")
@click.argument("clusters", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every cluster that is up.")
@click.option(
    "--discard", is_flag=True, help="Also where a detached cluster does not answer: its results are lost."
)
@output_option
@verbose_option
def command(
    *, clusters: tuple[str, ...], everything: bool, discard: bool, output: str, verbose: bool
) -> None:
    """Terminate CLUSTERS (the only one, if none is named) with their security groups and keys.

    The results of one that was left to its own instance (`up --detach`, from any machine) are brought home
    before.
    """
    from dlcloud.cli.context import Context
    from dlcloud.cli.down_flow import Downer

    with Context("down", verbose=verbose) as context:
        Downer(context=context, discard=discard, output=output).go(clusters, everything=everything)
