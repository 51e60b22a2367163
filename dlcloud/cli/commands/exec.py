"""`dlcloud exec`: a command on every instance."""

import click

from dlcloud.cli.complete import complete_clusters
from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import output_option, verbose_option


@click.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("cluster", shell_complete=complete_clusters)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("-i", "--instance", default="", help="Only this instance: its id, or its number from 1.")
@output_option
@verbose_option
def command(*, cluster: str, words: tuple[str, ...], instance: str, output: str, verbose: bool) -> int | None:
    """Run COMMAND on every instance of CLUSTER at once and print its output, instance by instance.

    The output of a single instance is printed as it arrives.

    Ends with 4 if it failed everywhere, 5 if it failed somewhere.
    """
    return invoke(
        "dlcloud.app.clusters.exec:run",
        "exec",
        verbose=verbose,
        cluster=cluster,
        words=words,
        instance=instance,
        output=output,
    )
