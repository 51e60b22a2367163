"""`dlcloud resize`: more or fewer instances for a cluster that is up."""

import click

from dlcloud.cli.options import output_option, verbose_option


@click.command("resize")
@click.argument("cluster")
@click.argument("size", type=click.IntRange(min=1, max=1000))
@click.option("--dry-run", is_flag=True, help="Show what would be launched and ended; do neither.")
@click.option("-y", "--yes", is_flag=True, help="Spend without asking.")
@click.option(
    "--cidr", default="", help="The network that may reach new instances; default: your own address."
)
@output_option
@verbose_option
def command(
    *, cluster: str, size: int, dry_run: bool, yes: bool, cidr: str, output: str, verbose: bool
) -> int | None:
    """Let CLUSTER have SIZE instances: launch and set up what is missing, or end what is too many.

    New ones come from the pools of the cluster's recipe, as with `up`. Ended are first on-demand instances
    beyond the recipe's base, then spot, then the base; the newest first, never the oldest on-demand one.
    A resize that was cut off is finished by the next one, or by `up`.
    """
    from dlcloud.cli.context import Context
    from dlcloud.cli.elsewhere import passed_on
    from dlcloud.cli.resize_flow import Resizer

    with Context("resize", verbose=verbose) as context:
        status = passed_on(context, cluster)
        if status is not None:
            return status
        flow = Resizer(context=context, name=cluster, size=size, cidr=cidr, output=output)
        if dry_run:
            flow.show()
        else:
            flow.go(yes=yes)
    return None
