"""`dlcloud ssh`: a shell or a command on an instance, forwarded ports, and entries for ~/.ssh/config."""

from typing import TYPE_CHECKING

import click

from dlcloud.cli.complete import complete_clusters
from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import collect_options, verbose_option

if TYPE_CHECKING:
    from dlcloud.app.clusters.ssh_session import SshSession


@click.command("ssh", context_settings={"ignore_unknown_options": True})
@click.argument("cluster", default="", shell_complete=complete_clusters)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option("-i", "--instance", default="", help="Which instance: its id, or its number from 1.")
@click.option(
    "-L", "forwards", multiple=True, metavar="PORT:HOST:PORT", help="Forward a local port, as ssh -L."
)
@click.option("--config", is_flag=True, help="Write entries for scp, VS Code and others; open no shell.")
@click.option("--include", is_flag=True, help="With --config: include them in ~/.ssh/config.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(("text", "json")),
    default="text",
    help="json: print the command only.",
)
@verbose_option
@collect_options("session", "dlcloud.app.clusters.ssh_session:SshSession", ("words", "forwards", "instance"))
def command(
    *, cluster: str, session: "SshSession", config: bool, include: bool, output: str, verbose: bool
) -> int | None:
    """Open a shell on an instance of CLUSTER (the only one, if none is named), or run COMMAND there.

    Its host key is proven. --config writes an ssh_config file with an entry for each instance that is up:
    `scp`, `rsync`, VS Code and `ssh -L` then reach it by the cluster's name (NAME-2, NAME-3 for others).

    \b
    dlcloud ssh x -- nvidia-smi
    dlcloud ssh x -L 8888:localhost:8888
    dlcloud ssh --config --include
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    return invoke(
        "dlcloud.app.clusters.ssh:run",
        "ssh",
        verbose=verbose,
        cluster=cluster,
        session=session,
        config=config,
        include=include,
        output=output,
    )
