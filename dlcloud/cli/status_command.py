"""`dlcloud status`: what is up, and what it has cost so far."""

import click

from dlcloud.cli.options import output_option, verbose_option


@click.command("status", short_help="What is up, and what it has cost so far.")
@click.option("--all", "everything", is_flag=True, help="Clusters that are down, too.")
@output_option
@verbose_option
def command(*, everything: bool, output: str, verbose: bool) -> None:
    """Show every cluster's instances as the cloud tells of them now, with their cost so far."""
    from dlcloud.cli.context import Context
    from dlcloud.cli.status_flow import instance_lines, status_report
    from dlcloud.report.table import Format, render

    with Context("status", verbose=verbose) as context:
        lines = instance_lines(context, everything=everything)
        click.echo(render(status_report(lines, now=context.clock.now()), Format(output)))
