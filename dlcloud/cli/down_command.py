"""`dlcloud down`: end clusters and all that belongs to them."""

import click

from dlcloud.cli.options import output_option, verbose_option


@click.command("down", short_help="Terminate clusters and all that belongs to them.")
@click.argument("clusters", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every cluster that is up.")
@output_option
@verbose_option
def command(*, clusters: tuple[str, ...], everything: bool, output: str, verbose: bool) -> None:
    """Terminate CLUSTERS (the only one, if none is named) with their security groups and keys."""
    from dlcloud.cli.context import Context
    from dlcloud.cli.down_flow import take_down_all

    with Context("down", verbose=verbose) as context:
        take_down_all(context, clusters, everything=everything, output=output)
