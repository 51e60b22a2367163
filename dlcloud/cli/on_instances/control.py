"""`dlcloud control`: what an instance runs that controls the training of its own cluster."""

import click

from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import cidr_option


@click.command("control", hidden=True)
@click.argument("recipe")
@click.option("--name", required=True, help="The name of its cluster.")
@cidr_option("new instances")
def command(*, recipe: str, name: str, cidrs: tuple[str, ...]) -> None:
    """Train on the cluster that this instance belongs to, and end all instances but this one."""
    invoke("dlcloud.app.clusters.control:run", "control", recipe=recipe, name=name, cidrs=cidrs)
