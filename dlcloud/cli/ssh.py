"""`dlcloud ssh`: a shell on an instance."""

import os
import shutil
from typing import TYPE_CHECKING

import click

from dlcloud.cli.options import verbose_option
from dlcloud.core.cluster import select_members
from dlcloud.core.errors import RecipeError

if TYPE_CHECKING:
    from dlcloud.cli.context import Context


@click.command("ssh")
@click.argument("cluster", default="")
@click.option("-i", "--instance", default="", help="Which instance: its id, or its number from 1.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(("text", "json")),
    default="text",
    help="json: print the command only.",
)
@verbose_option
def command(*, cluster: str, instance: str, output: str, verbose: bool) -> int | None:
    """Open a shell on an instance of CLUSTER (the only one, if none is named); its host key is proven."""
    from dlcloud.cli.context import Context

    with Context("ssh", verbose=verbose) as context:
        print_only = output == "json"
        if print_only:
            status = context.forward_command(cluster)
        else:
            status = context.detached.open_shell(cluster, instance)
        if status is None:
            open_shell(context, cluster, instance, print_only=print_only)
    return status


def open_shell(context: "Context", name: str, instance: str, *, print_only: bool) -> None:
    """Become the system's ssh, held to the pinned host key.

    Raises:
        RecipeError: There is no such cluster or instance, or no ssh on this machine.
    """
    from dlcloud.report.table import envelope
    from dlcloud.ssh.command_line import ssh_command

    cluster = context.find_cluster(name)
    member = select_members(cluster, context.clusters.members(cluster.cluster_id), instance)[0]
    endpoint = member.instance.endpoint(cluster.user)
    context.admitting_dialer(cluster).dial(
        endpoint
    )  # proves and pins the host key, unless it is pinned already
    paths = context.paths
    words = ssh_command(endpoint, paths.key(cluster.cluster_id), paths.known_hosts(cluster.cluster_id))
    if print_only:
        click.echo(envelope("ssh", {"result": {"instance_id": endpoint.instance_id, "command": words}}))
        return
    program = shutil.which(words[0])
    if program is None:
        raise RecipeError("this machine has no ssh", f"dlcloud exec {cluster.name} -- COMMAND")
    os.execv(program, words)  # noqa: S606  no shell is wanted
