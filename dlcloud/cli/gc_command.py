"""`dlcloud gc`: find, price and remove what is left of clusters that nobody is in charge of."""

import click

from dlcloud.cli.options import output_option, verbose_option


@click.command("gc")
@click.argument("clusters", nargs=-1)
@click.option("--region", "regions", multiple=True, help="Only there; default: every region of the account.")
@click.option(
    "--cloud", type=click.Choice(["aws", "local"]), default="aws", show_default=True, help="Where to look."
)
@click.option("--dry-run", is_flag=True, help="Show; remove nothing.")
@click.option("-y", "--yes", is_flag=True, help="Remove without asking.")
@output_option
@verbose_option
def command(
    *,
    clusters: tuple[str, ...],
    regions: tuple[str, ...],
    cloud: str,
    dry_run: bool,
    yes: bool,
    output: str,
    verbose: bool,
) -> None:
    """Find by tag what no cluster of this machine's store accounts for, price it, and remove it.

    It needs no store: after the laptop is lost, any machine with credentials does. A cluster that one of its
    own instances controls is left alone while that lives. With CLUSTERS (ids), only what belongs to them,
    whoever controls them.
    """
    from dlcloud.cli.context import Context
    from dlcloud.cli.gc_flow import Sweeper

    with Context("gc", verbose=verbose) as context:
        sweeper = Sweeper(context=context, cloud=cloud, regions=regions, clusters=frozenset(clusters))
        sweeper.go(dry_run=dry_run, yes=yes, output=output)
