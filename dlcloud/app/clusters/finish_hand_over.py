"""What an `up` does about a hand-over that an earlier `up --detach` had begun."""

from dlcloud.app.context import Context
from dlcloud.app.lifecycle import detached_error
from dlcloud.detached.handover import HandOver
from dlcloud.launch.launcher import Launcher


def refuse_detached(context: Context, launcher: Launcher) -> None:
    """Finish a hand-over that was cut off.

    Raises:
        RecipeError: The coordinator is in charge.
    """
    if HandOver(managed=launcher, database=context.database).finish():
        controller = launcher.store.clusters.controller_instance_id(launcher.cluster_id)
        raise detached_error(launcher.cluster, controller or "")
