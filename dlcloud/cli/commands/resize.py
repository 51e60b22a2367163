"""`dlcloud resize`: more or fewer instances for a cluster that is up."""

import click

from dlcloud.cli.complete import complete_clusters
from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import cidr_option, collect_options, output_option, verbose_option


@click.command("resize")
@click.argument("cluster", shell_complete=complete_clusters)
@click.argument("size", type=click.IntRange(min=1, max=1000))
@click.option("--dry-run", is_flag=True, help="Show what would be launched and ended; do neither.")
@click.option("-y", "--yes", is_flag=True, help="Spend without asking.")
@click.option(
    "--keep-free",
    type=click.IntRange(0, 1000),
    default=None,
    help="Of a training with instances.reservations: so many reserved instances stay idle for others.",
)
@cidr_option("new instances")
@output_option
@verbose_option
@collect_options("options", "dlcloud.app.clusters.resize:ResizeOptions", ("dry_run", "cidrs", "keep_free"))
def command(*, cluster: str, size: int, yes: bool, options: object, output: str, verbose: bool) -> int | None:
    """Let CLUSTER have SIZE instances: launch and set up what is missing, or end what is too many.

    New ones come from the pools of the cluster's recipe, as with `up`. Ended are first on-demand instances
    beyond the recipe's base, then spot, then the base; the newest first, never the oldest on-demand one.
    A resize that was cut off is finished by the next one, or by `up`.
    """
    return invoke(
        "dlcloud.app.clusters.resize:run",
        "resize",
        verbose=verbose,
        cluster=cluster,
        size=size,
        yes=yes,
        options=options,
        output=output,
    )
