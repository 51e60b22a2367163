"""`dlcloud status`: what is up, and what it has cost so far."""

import click

from dlcloud.cli.options import output_option, verbose_option


@click.command("status")
@click.argument("cluster", default="")
@click.option("--all", "everything", is_flag=True, help="Clusters that are down, too.")
@click.option(
    "--everywhere",
    is_flag=True,
    help="What other machines left to its own coordinators, in every region, too.",
)
@output_option
@verbose_option
def command(*, cluster: str, everything: bool, everywhere: bool, output: str, verbose: bool) -> int | None:
    """Show the instances of CLUSTER (default: of all) as the cloud tells of them now, with their cost so far.

    One that was left to its own instance (`up --detach`, from any machine) is asked for by its name.
    """
    from dlcloud.cli.context import Context
    from dlcloud.cli.status_flow import instance_lines, status_report
    from dlcloud.report.table import Format, render

    with Context("status", verbose=verbose) as context:
        if cluster:
            from dlcloud.cli.elsewhere import passed_on

            status = passed_on(context, cluster)
            if status is not None:
                return status
        lines = instance_lines(context, cluster, everything=everything, everywhere=everywhere)
        click.echo(render(status_report(lines, now=context.clock.now()), Format(output)))
    return None
