"""`dlcloud ssh`: a shell on an instance."""

import click

from dlcloud.cli.options import verbose_option


@click.command("ssh")
@click.argument("cluster", default="")
@click.option("-i", "--instance", default="", help="Which instance: its id, or its number from 1.")
@click.option(
    "-o", "--output", type=click.Choice(("text", "json")), default="text", help="json: only say how."
)
@verbose_option
def command(*, cluster: str, instance: str, output: str, verbose: bool) -> int | None:
    """Open a shell on an instance of CLUSTER (the only one, if none is named); its host key is proven."""
    from dlcloud.cli.context import Context
    from dlcloud.cli.elsewhere import shell_passed_on
    from dlcloud.cli.remote_flow import open_shell

    with Context("ssh", verbose=verbose) as context:
        only_say = output == "json"
        status = shell_passed_on(context, cluster, instance, only_say=only_say)
        if status is None:
            open_shell(context, cluster, instance, only_say=only_say)
    return status
