"""The instances of a cluster that a command connects to."""

import logging

from dlcloud.app.context import Context
from dlcloud.model.cluster import Cluster, Member, select_members
from dlcloud.model.errors import DlcloudError, RecipeError, WrongAccountError
from dlcloud.model.instance import Market
from dlcloud.store.clusters import BATCH

log = logging.getLogger(__name__)


def find_members(context: Context, cluster: Cluster, instance: str) -> list[Member]:
    """Return a cluster's running members, or the one with this instance id or number (from 1).

    The store learns late that EC2 took a spot instance back, so where there are some, EC2 is asked. Where it
    does not answer, the store's word is taken.

    Raises:
        WrongAccountError: The credentials are of another account than the cluster.
        RecipeError: There is none, or AWS Batch has launched them, without a key to log in with.
    """
    if context.clusters.intents(cluster.cluster_id, BATCH):
        raise RecipeError(f"AWS Batch runs the instances of {cluster.name}: no login", "dlcloud logs RUN")
    try:
        context.accounts.verify(cluster, recent=True)
    except WrongAccountError:
        raise
    except DlcloudError as error:
        log.info("the account of %s is not known: %s", cluster.name, error.message)
    stored = context.clusters.members(cluster.cluster_id)
    if any(member.instance.market is Market.SPOT and member.ended_at is None for member in stored):
        ended = _ended_ids(context, cluster)
        stored = [member for member in stored if member.instance.instance_id not in ended]
    return select_members(cluster, stored, instance)


def _ended_ids(context: Context, cluster: Cluster) -> set[str]:
    try:
        listed = context.clouds.cloud_of(cluster).instances.find(cluster.cluster_id)
    except DlcloudError:
        return set()
    return {instance.instance_id for instance in listed if not instance.alive}
