"""`dlcloud take-over`: what an instance that stands by runs when it hears nothing of the coordinator."""

import click

from dlcloud.cli.invoke import invoke


@click.command("take-over", hidden=True)
@click.argument("cluster_id")
@click.option("--watch", is_flag=True, help="Wait until no instance controls the cluster.")
def command(*, cluster_id: str, watch: bool) -> None:
    """Take the control of this instance's own cluster, unless another instance has it."""
    invoke("dlcloud.app.clusters.take_over:run", "take-over", cluster_id=cluster_id, watch=watch)
