"""`dlcloud status`: what the store holds of the clusters, corrected by what the cloud reports now."""

import click

from dlcloud.cli.complete import complete_clusters
from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import collect_options, output_option, verbose_option

WATCH_S = 5.0
"""Seconds between two prints of --watch."""


@click.command("status")
@click.argument("cluster", default="", shell_complete=complete_clusters)
@click.option("--all", "all_clusters", is_flag=True, help="Clusters that are down, too.")
@click.option(
    "--everywhere",
    is_flag=True,
    help="Detached clusters of other machines, in every region, too.",
)
@click.option("--all-owners", is_flag=True, help="With --everywhere: those of other people, too.")
@click.option(
    "-w", "--watch", is_flag=True, help=f"Print it anew every {WATCH_S:.0f} s, until Ctrl-C or nothing is up."
)
@output_option
@verbose_option
@collect_options("scope", "dlcloud.app.clusters.status:Scope", ("all_clusters", "everywhere", "all_owners"))
def command(*, cluster: str, scope: object, watch: bool, output: str, verbose: bool) -> int | None:
    """Show the instances of CLUSTER (default: of all) as the cloud reports them now, with their cost so far.

    Of what runs, it shows the step, the time left, and stalls; --watch goes on until nothing is up.
    A detached cluster (`up --detach`, from any machine) is found by its name.
    """
    return invoke(
        "dlcloud.app.clusters.status:run",
        "status",
        verbose=verbose,
        cluster=cluster,
        scope=scope,
        watch=watch,
        output=output,
    )
