"""`dlcloud logs`: the output of a run's program, from the instance while it runs, from this machine after."""

import click

from dlcloud.cli.complete import complete_runs
from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import verbose_option


@click.command("logs")
@click.argument("run", default="", shell_complete=complete_runs)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", help="Output format.")
@verbose_option
def command(*, run: str, follow: bool, output: str, verbose: bool) -> int | None:
    """Print the log of RUN (a run, a cluster or an instance; default: the newest run).

    Of a job over several nodes it is that of rank 0; each other node has a run of its own.
    """
    return invoke(
        "dlcloud.app.clusters.logs:run", "logs", verbose=verbose, run=run, follow=follow, output=output
    )
