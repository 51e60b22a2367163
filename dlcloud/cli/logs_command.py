"""`dlcloud logs`: what a run's program printed."""

import click

from dlcloud.cli.options import verbose_option


@click.command("logs")
@click.argument("run", default="")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option(
    "-o", "--output", type=click.Choice(("text", "json")), default="text", help="How it is written."
)
@verbose_option
def command(*, run: str, follow: bool, output: str, verbose: bool) -> int | None:
    """Print the log of RUN (a run, a cluster or an instance; default: the newest run)."""
    from dlcloud.cli.context import Context
    from dlcloud.cli.elsewhere import passed_on
    from dlcloud.cli.logs_flow import print_log

    with Context("logs", verbose=verbose) as context:
        status = passed_on(context, run)
        if status is None:
            print_log(context, run, follow=follow, output=output)
    return status
