"""`dlcloud take-over`: what an instance that stands by runs when it hears nothing of the coordinator."""

import os

from dlcloud.app.context import Context
from dlcloud.detached.handover import STAND_BY, HandOver
from dlcloud.detached.standby import Succession, wait_until_lost
from dlcloud.model.errors import RecipeError
from dlcloud.model.job_environment import JobEnvironment
from dlcloud.model.secret_source import CONTROLLER_PREFIX


def run(context: Context, *, cluster_id: str, watch: bool) -> None:
    """Take the control of this instance's own cluster, unless another instance has it.

    With `watch`, wait first until EC2 lists no instance that has it, and begin again: what this instance
    knows of the cluster is renewed meanwhile.
    """
    own, cluster = context.controller_instance_id, context.clusters.find(cluster_id)
    if not own or cluster is None:
        raise RecipeError("take-over is for instances of a detached cluster", "dlcloud up --detach")
    if watch:
        wait_until_lost(context.machines.launcher(cluster), own)
        program = context.paths.home.parent / STAND_BY
        os.execv(program, [str(program)])  # noqa: S606  its own program, with the home as it is now
    hand_over = HandOver(managed=context.machines.launcher(cluster), database=context.database)
    secrets = {name: value for name, value in os.environ.items() if name.startswith(CONTROLLER_PREFIX)}
    succession = Succession(
        hand_over=hand_over,
        own=own,
        control=context.paths.home.parent,
        environment=JobEnvironment(secrets=secrets),
    )
    if not succession.take_over():
        raise SystemExit(1)
