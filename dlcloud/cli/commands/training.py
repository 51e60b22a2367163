"""`dlcloud training`: steps, world sizes, pauses and cost of an elastic training."""

import click

from dlcloud.cli.complete import complete_clusters
from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import output_option, verbose_option


@click.command("training")
@click.argument("name", required=False, default="", shell_complete=complete_clusters)
@output_option
@verbose_option
def command(*, name: str, output: str, verbose: bool) -> int | None:
    """Show the elastic training of cluster NAME (default: the newest).

    Its steps and samples, the number of workers over time with the pause of each change, what happened and
    why, what each instance cost, and what the same steps would have cost on demand and fixed.
    """
    return invoke("dlcloud.app.results.training:run", "training", verbose=verbose, name=name, output=output)
