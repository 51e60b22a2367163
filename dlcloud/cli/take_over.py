"""`dlcloud take-over`: what an instance that stands by runs when it hears nothing of the coordinator."""

import click

from dlcloud.core.errors import RecipeError


@click.command("take-over", hidden=True)
@click.argument("cluster_id")
def command(*, cluster_id: str) -> None:
    """Take the control of this instance's own cluster, unless another instance has it."""
    from dlcloud.cli.context import Context
    from dlcloud.detached.handover import HandOver
    from dlcloud.detached.standby import Succession

    with Context("take-over") as context:
        own, cluster = context.controller_instance_id, context.clusters.find(cluster_id)
        if not own or cluster is None:
            raise RecipeError("take-over is for instances of a detached cluster", "dlcloud up --detach")
        hand_over = HandOver(managed=context.launcher(cluster), database=context.database)
        succession = Succession(hand_over=hand_over, own=own, control=context.paths.home.parent)
        if not succession.take_over():
            raise SystemExit(1)
