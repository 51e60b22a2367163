"""`dlcloud down`: terminate clusters and all that belongs to them."""

import click

from dlcloud.cli.complete import complete_clusters
from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import collect_options, output_option, verbose_option

OPTIONS = ("all_owners", "discard", "yes", "output")


@click.command("down")
@click.argument("clusters", nargs=-1, shell_complete=complete_clusters)
@click.option("--all", "all_clusters", is_flag=True, help="Every cluster that is up.")
@click.option(
    "--discard", is_flag=True, help="Also where a detached cluster does not answer: its results are lost."
)
@click.option("--all-owners", is_flag=True, help="By name, detached clusters of other people, too.")
@click.option(
    "-y",
    "--yes",
    is_flag=True,
    help="End without asking: detached trainings, and a process in charge of several clusters.",
)
@output_option
@verbose_option
@collect_options("options", "dlcloud.app.clusters.down:DownOptions", OPTIONS)
def command(*, clusters: tuple[str, ...], all_clusters: bool, options: object, verbose: bool) -> None:
    """Terminate CLUSTERS (the only one, if none is named) with their security groups and keys.

    The results of one that was left to its own instance (`up --detach`, from any machine) are brought home
    before; of one that still trains, it asks first, on a terminal.

    A process that is in charge of the cluster (`up`, `bench`) is asked to end it; if it does not within a
    minute, it is killed, and its cluster is ended from here.
    """
    invoke(
        "dlcloud.app.clusters.down:run",
        "down",
        verbose=verbose,
        options=options,
        clusters=clusters,
        all_clusters=all_clusters,
    )
