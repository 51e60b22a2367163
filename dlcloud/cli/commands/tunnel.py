"""`dlcloud tunnel`: bytes between standard input and output and an instance's SSH server."""

import click

from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import verbose_option


@click.command("tunnel")
@click.argument("cluster")
@click.argument("instance")
@verbose_option
def command(*, cluster: str, instance: str, verbose: bool) -> None:
    """Connect to the SSH server of INSTANCE of CLUSTER the way that its network allows: a ProxyCommand.

    \b
    ssh -o ProxyCommand='dlcloud tunnel CLUSTER INSTANCE' ubuntu@INSTANCE
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    invoke("dlcloud.app.clusters.tunnel:run", "tunnel", verbose=verbose, cluster=cluster, instance=instance)
