"""`dlcloud exec`: a command on every instance."""

import click

from dlcloud.cli.options import output_option, verbose_option


@click.command(
    "exec",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("cluster")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("-i", "--instance", default="", help="Only this instance: its id, or its number from 1.")
@output_option
@verbose_option
def command(*, cluster: str, words: tuple[str, ...], instance: str, output: str, verbose: bool) -> int | None:
    """Run COMMAND on every instance of CLUSTER at once; what it prints comes back, instance by instance.

    Ends with 4 if it failed everywhere, 5 if it failed somewhere.
    """
    from dlcloud.cli.context import Context
    from dlcloud.cli.elsewhere import passed_on
    from dlcloud.cli.remote_flow import run_everywhere

    with Context("exec", verbose=verbose) as context:
        status = passed_on(context, cluster)
        if status is None:
            run_everywhere(context, cluster, words, instance, output=output)
    return status
