"""The end of a cluster, by whichever command: instances, runs that were cut off, keys, and what it cost."""

from dlcloud.cli.context import Context
from dlcloud.core.cluster import Cluster
from dlcloud.core.events import Notice
from dlcloud.core.result import RunState
from dlcloud.launch.down import take_down
from dlcloud.launch.lock import forget_secrets
from dlcloud.report.cost_details import cost_of_cluster


def end_cluster(context: Context, cluster: Cluster) -> None:
    """Take down a cluster that we are in charge of, and tell what it cost.

    Raises:
        CloudError: Something is left of it; running it again goes on.
    """
    cloud = context.cloud(cluster.cloud, cluster.region)
    members = take_down(
        cluster, cloud=cloud, clusters=context.clusters, clock=context.clock, emit=context.emit
    )
    for run in context.runs.of_cluster(cluster.cluster_id):
        if run.state is RunState.RUNNING:
            context.runs.end(run.run_id, RunState.LOST, None, context.clock.now())
    forget_secrets(cluster, paths=context.paths)
    context.emit(Notice(message=cost_of_cluster(cluster, members)))
